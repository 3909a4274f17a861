"""Weights for data streams where clients are meant to count otherwise than by their samples, such as all alike.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, corollary 4.3.5' in
appendix G.4.2. With the target alpha of clients, and disc the largest discrepancy of two clients' distributions,

    error <= psi(p) + 2 disc |alpha - p|_1,    with disc = 0 in the c2 of psi.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.theory.streams import BoolArray, shares, stream_bound

_NOTHING = 1e-14  # noise below this is none


def targeted_bound(
    p: ArrayLike, n: ArrayLike, fresh: ArrayLike, target: ArrayLike, c0: float, c1: float, c2: float, disc: float
) -> float:
    """psi(p) + 2 disc |target - p|_1."""
    distance = float(np.abs(np.asarray(target, np.float64) - np.asarray(p, np.float64)).sum())
    return stream_bound(p, n, fresh, c0, c1, c2) + 2 * disc * distance


def targeted_importance(
    n: ArrayLike, fresh: ArrayLike, target: ArrayLike, c1: float, c2: float, disc: float
) -> FloatArray:
    """The p that minimises the bound, up to rounding.

    A root is the least of quadratics, sqrt(x) = min_a (x / a + a) / 2, so the bound is the least over a and b of

        1/2 sum_m h_m p_m^2 + 2 disc |alpha - p|_1 + const,    h_m = [m fresh] c1 / a + c2 / (b n_m),

    jointly convex in p, a and b. For a multiplier mu of sum_m p_m = 1 each p_m is (mu + 2 disc) / h_m below alpha_m,
    (mu - 2 disc) / h_m above it, alpha_m between, and at least 0. Three roots of functions that rise: the mu at which
    the p_m sum to 1, b = sqrt(sum_m p_m^2 / n_m), a = sqrt(sum_fresh p_m^2).
    """
    n, fresh = shares(n, fresh)
    alpha = np.asarray(target, np.float64)
    if alpha.shape != n.shape or not (alpha >= 0).all() or abs(alpha.sum() - 1) > 1e-9:
        raise UserError(f"streams.target: must be {n.size} numbers of at least 0 that sum to 1")
    POSITIVE.check("streams.c2", c2)
    if not (0 <= c1 < math.inf and 0 <= disc < math.inf):
        raise UserError(f"streams: c1 is {c1} and disc {disc}; both must be at least 0 and finite")
    p = np.zeros_like(n)
    p[n > 0] = _minimum(n[n > 0], fresh[n > 0], alpha[n > 0], c1, c2, 2 * disc)
    return p


def _minimum(n: FloatArray, fresh: BoolArray, alpha: FloatArray, c1: float, c2: float, pull: float) -> FloatArray:
    def at(a: float, b: float) -> FloatArray:
        h = fresh * (c1 / a) + c2 / (b * n)

        def weights(mu: float) -> FloatArray:
            return np.maximum(0, np.minimum((mu + pull) / h, np.maximum(alpha, (mu - pull) / h)))

        p = weights(_root(lambda mu: float(weights(mu).sum()) - 1, -pull, pull + float(h.min())))
        return np.asarray(p / p.sum())

    def best(a: float) -> FloatArray:
        return at(a, _root(lambda b: b - math.sqrt(np.square(at(a, b)) @ (1 / n)), 1.0, 1 / math.sqrt(n.min())))

    return best(_root(lambda a: a - float(np.linalg.norm(best(a)[fresh])), _NOTHING, 1.0))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises goes through 0; `low` if it is above 0 already, `high` if it never is."""
    if function(low) >= 0:
        return low
    return high if function(high) <= 0 else float(brentq(function, low, high, xtol=1e-15, rtol=1e-14))
