"""How much clients with old and with new data should count: a bound on the error, and the weights that minimise it.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, section 4.3.3 and
appendix G.4. Historical clients keep their samples; fresh clients collect some every round and store only those. With
p the importance of clients (sums to 1), n their shares of all samples, each of which should count alike, nu the share
of historical samples, and M_f fresh clients,

    error <= psi(p) = c0 + c1 sqrt(sum_fresh p_m^2) + c2 sqrt(sum_m p_m^2 / n_m):

noise of changing gradients against too few samples. The minimum depends on rho = c2 / c1 alone, the `ratio`. Everywhere
`n` may be samples or shares, only proportions matter, and `fresh` says of each client whether it is; a client without
samples has no importance.

>>> optimal_importance([10, 10, 40, 40], [False, False, True, True], 0.5).round(3)
array([0.237, 0.237, 0.263, 0.263])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.core.errors import UserError, check_positive
from turnout.core.random import FloatArray

GRID = (0.0, 0.2, 0.5, 0.8, 1.0)  # shares of historical clients that are tried where the best is searched by accuracy
_HALVINGS = 100
BoolArray = NDArray[np.bool_]


def shares(n: ArrayLike, fresh: ArrayLike) -> tuple[FloatArray, BoolArray]:
    """n as shares that sum to 1, and who is fresh."""
    n, fresh = np.asarray(n, np.float64), np.asarray(fresh)
    if n.ndim != 1 or not (np.isfinite(n).all() and (n >= 0).all() and n.any()):
        raise UserError("streams.n: the samples of clients must be numbers of at least 0, some of them above")
    if fresh.dtype != np.bool_ or fresh.shape != n.shape:
        raise UserError(f"streams.fresh: must be {n.size} times true or false, one for each client")
    return n / n.sum(), fresh


def stream_bound(p: ArrayLike, n: ArrayLike, fresh: ArrayLike, c0: float, c1: float, c2: float) -> float:
    """psi(p)."""
    (n, fresh), p = shares(n, fresh), np.asarray(p, np.float64)
    return c0 + c1 * float(np.linalg.norm(p[fresh])) + c2 * math.sqrt(_spread(p, n))


def effective_samples(p: ArrayLike, samples: ArrayLike = 1) -> float:
    """N_eff = 1 / sum_m p_m^2 / N_m: as many samples, all counting alike, would teach as much. Of single samples of
    importance p, N_m = 1; of shares n, N_eff / N. Nothing if someone without samples counts."""
    return float(1 / _spread(p, samples))


def noise_bound(p: ArrayLike, fresh: ArrayLike, sigma0: float = 1.0) -> float:
    """sigma = sigma0 sqrt(M_f sum_fresh p_m^2): how far a round's gradient is from that of all rounds. `sigma0` bounds
    how far that of one sample is from its client's. Historical clients make no noise."""
    own = np.asarray(p, np.float64)[np.asarray(fresh, np.bool_)]
    return sigma0 * math.sqrt(own.size * np.square(own).sum())


# -- strategies: how much each client counts ---------------------------------------------------------------------


def grouped(n: ArrayLike, fresh: ArrayLike, share: float) -> FloatArray:
    """Historical clients count `share` together, fresh ones the rest, inside a group in proportion to n_m."""
    if not 0 <= share <= 1:
        raise UserError(f"streams.share: {share} must be from 0 to 1")
    n, fresh = shares(n, fresh)
    p = np.zeros_like(n)
    for kind, group, part in (("historical", ~fresh, share), ("fresh", fresh, 1 - share)):
        if part and not n[group].any():
            raise UserError(f"streams.share: {kind} clients are to count {part:g} and have no samples")
        p[group] = part * n[group] / (n[group].sum() or 1)
    return p


def uniform(n: ArrayLike, fresh: ArrayLike) -> FloatArray:
    """p = n: every sample counts alike; the most effective samples."""
    return shares(n, fresh)[0]


historical = partial(grouped, share=1.0)  # no noise
fresh_only = partial(grouped, share=0.0)
STRATEGIES: dict[str, Callable[[ArrayLike, ArrayLike], FloatArray]] = {
    "uniform": uniform,
    "historical": historical,
    "fresh": fresh_only,
    **{f"grid_{share}": partial(grouped, share=share) for share in GRID[1:-1]},
}


def optimal_importance(n: ArrayLike, fresh: ArrayLike, ratio: float) -> FloatArray:
    """The p that minimises psi. Historical up to the threshold; beyond it, with a u for which psi is stationary,

        p_m in proportion to n_m (historical) and u n_m / (u + n_m) (fresh):
        rho |n / (u + n)|_fresh = sqrt(nu + sum_fresh n_m (u / (u + n_m))^2),

    whose left side falls in u and whose right side rises: s = u / (1 + u) by bisection, 0 Historical and 1 Uniform. An
    infinite ratio is c1 = 0. Without historical samples p tends to 1 / M_f as the ratio tends to 0.
    """
    _check_ratio(ratio)
    n, fresh = shares(n, fresh)
    own, nu = n[fresh], float(n[~fresh].sum())
    if nu and ratio <= historical_threshold(n, fresh):
        return historical(n, fresh)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        s = (low + high) / 2
        damped = s + (1 - s) * own
        noise = ratio * float(np.linalg.norm((1 - s) * own / damped))
        low, high = (s, high) if noise > math.sqrt(nu + own @ (s / damped) ** 2) else (low, s)
    p = np.where(fresh, high * n / (high + (1 - high) * n), n)
    return np.asarray(p / p.sum())


def optimal_historical_share(nu: ArrayLike, ratio: ArrayLike, fresh_clients: float) -> FloatArray:
    """What historical clients count together in the optimum if fresh clients collect equally much:

    1 up to the threshold, rho^2 M_f <= nu, else nu + v / sqrt(rho^2 M_f - v) with v = nu (1 - nu).
    """
    check_positive("streams.fresh_clients", fresh_clients)
    nu, square = np.broadcast_arrays(_fraction(nu), np.square(_check_ratio(ratio)) * fresh_clients)
    spread = nu * (1 - nu)
    beyond = square > nu
    more = np.divide(spread, np.sqrt(np.where(beyond, square - spread, 1)))
    return np.asarray(np.where(beyond, nu + more, nu > 0), np.float64)


def historical_threshold(n: ArrayLike, fresh: ArrayLike) -> float:
    """sqrt(nu / M_f): up to this ratio the optimum is Historical, whatever the shares inside the groups."""
    n, fresh = shares(n, fresh)
    return math.sqrt(n[~fresh].sum() / np.count_nonzero(n[fresh])) if n[fresh].any() else math.inf


def crossover_ratio(n: ArrayLike, fresh: ArrayLike) -> float:
    """Below this ratio Historical has the lower bound, above it Uniform: |n|_fresh / (1 / sqrt(nu) - 1), which is
    sqrt(nu) (1 + sqrt(nu)) / sqrt(M_f) if fresh clients collect equally much."""
    n, fresh = shares(n, fresh)
    root, own = math.sqrt(n[~fresh].sum()), n[fresh]
    return root * (1 + root) * float(np.linalg.norm(own) / own.sum()) if own.any() else math.inf


def equal_groups(nu: float, historical_clients: int, fresh_clients: int) -> tuple[FloatArray, BoolArray]:
    """n and who is fresh: historical clients hold a share nu of the samples, and clients of a group equally many."""
    _fraction(nu)
    fresh = np.arange(historical_clients + fresh_clients) >= historical_clients
    return np.where(fresh, (1 - nu) / max(fresh_clients, 1), nu / max(historical_clients, 1)), fresh


def _spread(p: ArrayLike, samples: ArrayLike) -> np.float64:
    """sum_m p_m^2 / N_m."""
    p, samples = np.broadcast_arrays(np.asarray(p, np.float64), np.asarray(samples, np.float64))
    each = np.divide(p**2, samples, out=np.where(p > 0, np.inf, 0.0), where=samples > 0)
    return np.float64(each.sum())


def _check_ratio(ratio: ArrayLike) -> FloatArray:
    found = np.asarray(ratio, np.float64)
    if not (found >= 0).all():
        raise UserError(f"streams.ratio: {found} must be at least 0")
    return found


def _fraction(nu: ArrayLike) -> FloatArray:
    found = np.asarray(nu, np.float64)
    if not ((found >= 0) & (found <= 1)).all():
        raise UserError(f"streams.nu: {found} must be from 0 to 1")
    return found
