"""How far training over regions can stray from training in one place.

Wu et al., HybridFL, IEEE Transactions on Parallel and Distributed Systems 2021; Wu's thesis (Warwick), theorems 4.1 and
4.2. Local losses are convex, rho-Lipschitz and beta-smooth; their gradients differ by at most delta from that of the
objective, whose weights are those of the round. `steps` are gradient steps, tau of them a round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.core.random import FloatArray


def divergence_bound(x: ArrayLike, delta: float, beta: float, lr: float) -> FloatArray:
    """h(x) = delta / beta ((lr beta + 1)^x - 1) - lr delta x: the distance from central descent x steps after a cloud
    aggregation; rho h(x) bounds the gap in loss. Zero up to the first step."""
    POSITIVE.check("divergence bound: beta", beta)
    x = np.asarray(x, np.float64)
    return np.asarray(delta / beta * ((lr * beta + 1) ** x - 1) - lr * delta * x)


def convergence_bound(
    rounds: int, steps: int, lr: float, *, beta: float, rho: float, delta: float, epsilon: float, omega: float
) -> float:
    """F(w) - F(w*) <= 1 / (t tau (omega lr (1 - beta lr / 2) - rho h(tau) / (tau epsilon^2))) after t rounds.

    `omega` is the smallest |v - w*|^-2 over the starts of rounds, `epsilon` what no gap in loss falls below before.
    """
    positive = {"rounds": rounds, "steps": steps, "lr": lr, "beta": beta, "epsilon": epsilon, "omega": omega}
    for name, value in positive.items():
        POSITIVE.check(f"convergence bound: {name}", value)
    if lr > 1 / beta:
        raise UserError(f"convergence bound: lr {lr} must be at most 1 / beta = {1 / beta:.6g}")
    drift = rho * float(divergence_bound(steps, delta, beta, lr)) / (steps * epsilon**2)
    progress = omega * lr * (1 - beta * lr / 2) - drift
    if not progress > 0:
        raise UserError(
            f"convergence bound: with {steps} steps a round the regions drift by {drift:.6g} and progress by "
            f"{progress + drift:.6g}; take fewer steps or a smaller lr"
        )
    return 1 / (rounds * steps * progress)
