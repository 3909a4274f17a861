"""Mixing matrices: W[i, j] is what silo i takes of the model that silo j sent it; the row is the receiver.

    w_i <- sum_j W[i, j] w_j

A doubly stochastic W leaves the average of the models where it is and draws them together: their distance to it shrinks
by `contraction(W)` or more. Xiao, Boyd, "Fast linear iterations for distributed averaging", Systems & Control Letters
2004.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from turnout.core.errors import UserError, unknown
from turnout.core.random import FloatArray
from turnout.peers.network import BoolArray, Overlay

_TOLERANCE = 1e-9


def local_degree(arcs: BoolArray) -> FloatArray:
    """`W[i, j] = 1 / (1 + max(deg_i, deg_j))` where j sends to i, and the rest of each row to itself.

    The degrees are those of what is received. Also known as Metropolis weights. Doubly stochastic where arcs go both
    ways, and where every silo sends to as many as everybody receives from, as in a ring.
    """
    degree = arcs.sum(0)
    weights = np.where(arcs.T, 1 / (1 + np.maximum(degree[:, None], degree)), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return weights


def uniform(arcs: BoolArray) -> FloatArray:
    """The average, at once: `W[i, j] = 1 / N`."""
    return np.full(arcs.shape, 1 / len(arcs))


def none(arcs: BoolArray) -> FloatArray:
    """Everybody keeps to itself: `W = I`."""
    return np.eye(len(arcs))


def fdla(arcs: BoolArray) -> FloatArray:
    """Fastest distributed linear averaging: of the symmetric W on these edges one with the least `contraction`. Entries
    may be negative.

    The largest modulus of an eigenvalue is a convex function of the weights. It is smoothed to a log-sum-exp over all
    of them, made sharper and sharper.
    """
    if (arcs != arcs.T).any():
        raise UserError("algorithm.mixing: fdla is for overlays whose arcs go both ways; use local_degree for this one")
    one, other = np.nonzero(np.triu(arcs))
    silos = len(arcs)

    def matrix(weights: FloatArray) -> FloatArray:
        made = np.zeros((silos, silos))
        made[one, other] = made[other, one] = weights
        np.fill_diagonal(made, 1 - made.sum(1))
        return made

    def smoothed(weights: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
        values, vectors = np.linalg.eigh(matrix(weights) - 1 / silos)
        both = sharpness * np.concatenate([values, -values])
        top = float(logsumexp(both))
        share = np.exp(both - top)
        return top / sharpness, -((vectors[one] - vectors[other]) ** 2) @ (share[:silos] - share[silos:])

    limits: Any = {"ftol": 1e-12, "gtol": 1e-8, "maxiter": 100}
    found = [local_degree(arcs)[one, other]]
    for sharpness in 2.0 ** np.arange(4, 19) if len(one) else ():
        found.append(minimize(smoothed, found[-1], (sharpness,), method="L-BFGS-B", jac=True, options=limits).x)
    return min(map(matrix, found), key=contraction)


MIXINGS: dict[str, Callable[[BoolArray], FloatArray]] = {
    "local_degree": local_degree, "metropolis": local_degree, "fdla": fdla, "uniform": uniform, "none": none,
}  # fmt: skip


def contraction(weights: FloatArray) -> float:
    """The largest modulus of an eigenvalue of `W - 1 1^T / N`: 0 where one mixing is enough, 1 where none helps."""
    return float(np.abs(np.linalg.eigvals(weights - 1 / len(weights))).max())


def mixing_matrix(overlay: Overlay, round: int = 0, rule: str | None = None) -> FloatArray:
    """`[N, N]` what is mixed over an overlay in that round: by a rule, or as the overlay says, or `local_degree`."""
    if rule is not None and rule not in MIXINGS:
        raise unknown("algorithm.mixing", rule, MIXINGS)
    arcs, own = overlay.arcs(round), overlay.mixing(round)
    weights = MIXINGS[rule or "local_degree"](arcs) if rule is not None or own is None else own
    linked = arcs.T | np.eye(len(arcs), dtype=np.bool_) | (False if own is None else own != 0)
    name = rule or ("local_degree" if own is None else "the mixing")
    if (~linked & (weights != 0)).any():
        raise UserError(
            f"algorithm.mixing: {name} needs everybody to hear everybody, which overlay {overlay.name} does not give; "
            "use local_degree, or a star"
        )
    if max(abs(weights.sum(0) - 1).max(), abs(weights.sum(1) - 1).max()) > _TOLERANCE:
        raise UserError(
            f"algorithm.mixing: {name} over overlay {overlay.name} would move the average of the models; "
            "choose an overlay whose arcs go both ways, or a ring"
        )
    return weights
