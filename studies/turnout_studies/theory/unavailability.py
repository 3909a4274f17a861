"""What an adversary that silences clients can do at worst, and what robust FedAvg and FedProx guarantee against it.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023. Symbols, everywhere:
`epsilon` the adversary's budget; B and G bound how unlike the clients are, sum_i p_i |grad F_i|^2 <= B^2 |grad F|^2 +
G^2; `sigma` the noise of a stochastic gradient; L the smoothness of the losses, `nonconvexity` L_- how negative their
curvature gets; `strong_convexity` mu of the global objective; `amplification` beta of the server, `steps` s local ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from turnout.core.errors import UserError

TOLERANCE = 0.8  # what sqrt(epsilon) B must stay below


def theory_max_lr(
    amplification: float,
    L: float,
    B: float = 1.0,
    *,
    steps: int = 1,
    strong_convexity: float | None = None,
    nonconvexity: float | None = None,
) -> float:
    """The largest local learning rate with a guarantee (theorems 2 and 3):

    1 / (10 beta s L B^2), or mu / (10 beta s L^2 B^2) where F is strongly convex. For FedProx, whose learning rate is
    1 / mu_prox, give `nonconvexity` and one step: it must also stay below 1 / (10 L_-), which theorem 3 prints as
    1 / (10 L); this keeps both.
    """
    limit = 1 / (10 * amplification * steps * L * B**2)
    if strong_convexity is not None:
        limit *= strong_convexity / L
    return limit if nonconvexity is None else min(limit, 1 / (10 * max(L, nonconvexity)))


def tolerated(epsilon: float, B: float = 1.0, mu_over_L: float | None = None) -> bool:
    """Whether the guarantees speak of such a budget at all: sqrt(epsilon) B < 0.8, times mu / L where strong convexity
    is used. At best, B = 1, that is epsilon < 0.64. The published proof for FedProx assumes 0.1."""
    return math.sqrt(_share(epsilon)) * B < TOLERANCE * (1.0 if mu_over_L is None else mu_over_L)


def selection_bias(epsilon: float, gradient: float, B: float = 1.0, G: float = 0.0, sigma: float = 0.0) -> float:
    """How far silencing can bend a round's mean gradient at a point where |grad F| is `gradient` (lemma 2, over p):
    sqrt(epsilon) (B |grad F| + G + sigma)."""
    return math.sqrt(_share(epsilon)) * (B * gradient + G + sigma)


def error_floor(epsilon: float, G: float, sigma: float = 0.0, B: float = 1.0) -> float:
    """What no method gets below on some instance, of |grad F|^2, or of mu^2 |theta - optimum|^2 (theorem 4):
    epsilon max(G^2, sigma^2) / (4 (1 - epsilon)), which is at least epsilon (G^2 + sigma^2) / (8 (1 - epsilon)).

    Without strong convexity it is infinite where epsilon B^2 > 1 (remark 4).
    """
    if _share(epsilon) * B**2 > 1 or epsilon == 1:
        return math.inf
    return epsilon * max(G**2, sigma**2) / (4 * (1 - epsilon))


def local_drift(lr: float, steps: int, L: float) -> float:
    """Lemma 1: s steps of gradient descent end at most this times |gradient| away from one step that is s times as
    long: ((1 + lr L)^s - 1 - s lr L) / L, which is kappa lr^2 s (s - 1) / 2 L."""
    return ((1 + lr * L) ** steps - 1 - steps * lr * L) / L


def proximal_drift(lr: float, L: float, nonconvexity: float = 0.0) -> float:
    """Lemma 3: a proximal step ends at most this times |gradient| away from a gradient step: lr^2 L / (1 - lr L_-)."""
    if lr * nonconvexity >= 1:
        raise UserError(f"proximal_drift: lr {lr} must be below 1 / nonconvexity {nonconvexity}")
    return lr**2 * L / (1 - lr * nonconvexity)


class Descent(NamedTuple):
    """E[F(next)] <= F - a |grad F|^2 + b |grad F| + c, whoever is silenced within the budget."""

    a: float
    b: float
    c: float


def descent(
    epsilon: float,
    lr: float,
    L: float,
    amplification: float,
    sampling_rate: float,
    *,
    steps: int = 1,
    B: float = 1.0,
    G: float = 0.0,
    sigma: float = 0.0,
) -> Descent:
    """The constants of one round of robust FedAvg (appendix C.1), `sampling_rate` K / M. The published a adds its last
    term; it must be subtracted."""
    reach = amplification * sampling_rate * steps * lr
    drift = local_drift(lr, steps, L) / (steps * lr)  # kappa (s - 1) lr L / 2
    bias = math.sqrt(_share(epsilon)) + drift
    square = amplification * steps * lr * L / 2 * (1 + drift) ** 2
    return Descent(
        reach * (1 - bias * B - square * B**2), reach * bias * (G + sigma), reach * square * (G**2 + sigma**2)
    )


def _share(epsilon: float) -> float:
    if not 0 <= epsilon <= 1:
        raise UserError(f"epsilon: {epsilon} must be from 0 to 1")
    return epsilon
