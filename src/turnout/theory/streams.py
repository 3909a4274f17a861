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
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.core.random import FloatArray

GRID = (0.0, 0.2, 0.5, 0.8, 1.0)  # shares of historical clients that are tried where the best is searched by accuracy
OPTIMAL = "optimal"
FAR = 0.1  # a bound that is more than this part above the least one deserves a warning
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
    POSITIVE.check("streams.fresh_clients", fresh_clients)
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


def estimated_ratio(B: float, D: float, G: float, parameters: float, samples: float, fresh_clients: float) -> float:
    """c2 / c1 by what a few local steps show: (B + sqrt(d / N)) / (G D sqrt(M_f)), d `parameters` of the model.

    B is log(classes), the loss of a model that knows nothing; D the longest way from the first model to one trained on
    a client's old data, G the largest norm of a gradient on the way. Taken for granted: Pdim = d / (10 B)^2,
    sqrt(1 + ln(N / Pdim)) = 2, sigma0 = 2 G, disc = B, many rounds.
    """
    values = {"B": B, "D": D, "G": G, "parameters": parameters, "samples": samples, "fresh_clients": fresh_clients}
    for name, value in values.items():
        POSITIVE.check(f"streams.{name}", value)
    return (B + math.sqrt(parameters / samples)) / (G * D * math.sqrt(fresh_clients))


# -- every strategy with its bound, before anything is trained ---------------------------------------------------


@dataclass(frozen=True)
class Strategy:
    name: str
    importance: FloatArray  # [M]
    historical_share: float  # what historical clients count together
    bound: float  # psi / c1, without c0
    effective_samples: float
    noise: float  # sigma / sigma0


@dataclass(frozen=True)
class StreamPlan:
    """The optimum comes first; strategies that need clients who are not there are left out."""

    ratio: float
    historical_samples: float  # nu
    threshold: float  # up to this ratio the optimum is Historical
    crossover: float  # above this ratio Uniform has a lower bound than Historical
    strategies: tuple[Strategy, ...]

    @property
    def warnings(self) -> list[str]:
        """One sentence for each of Uniform and Historical that is far from the optimum."""
        best, *others = self.strategies
        return [
            f"{row.name}: its bound is {row.bound / best.bound - 1:.0%} above the least one; historical clients should "
            f"count {best.historical_share:.2f} together, not {row.historical_share:.2f}."
            for row in others
            if row.name in ("uniform", "historical") and row.bound > (1 + FAR) * best.bound
        ]

    def as_dict(self) -> dict[str, Any]:
        figures = {name: getattr(self, name) for name in ("ratio", "historical_samples", "threshold", "crossover")}
        rows = [{**vars(row), "importance": row.importance.tolist()} for row in self.strategies]
        return {**figures, "strategies": rows, "warnings": self.warnings}


def stream_plan(samples: ArrayLike, fresh: ArrayLike, ratio: float) -> StreamPlan:
    """`samples` that each client will have collected by the end, `fresh` whether it stores only the latest, `ratio`
    c2 / c1 (see `estimated_ratio`)."""
    POSITIVE.check("streams.ratio", ratio)
    n, fresh = shares(samples, fresh)
    rows = {OPTIMAL: optimal_importance(n, fresh, ratio)}
    for name, strategy in STRATEGIES.items():
        try:
            rows[name] = strategy(n, fresh)
        except UserError:
            continue
    total = float(np.sum(np.asarray(samples, np.float64)))

    def row(name: str, p: FloatArray) -> Strategy:
        figures = stream_bound(p, n, fresh, 0, 1, ratio), total * effective_samples(p, n), noise_bound(p, fresh)
        return Strategy(name, p, float(p[~fresh].sum()), *figures)

    return StreamPlan(
        ratio,
        float(n[~fresh].sum()),
        historical_threshold(n, fresh),
        crossover_ratio(n, fresh),
        tuple(row(name, p) for name, p in rows.items()),
    )


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
