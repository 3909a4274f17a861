"""Which weights for a data stream? Every strategy with its bound, before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.errors import UserError, check_positive
from turnout.core.random import FloatArray
from turnout.theory.streams import (
    STRATEGIES,
    crossover_ratio,
    effective_samples,
    historical_threshold,
    noise_bound,
    optimal_importance,
    shares,
    stream_bound,
)

OPTIMAL = "optimal"
FAR = 0.1  # a bound that is more than this part above the least one deserves a warning


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
    check_positive("streams.ratio", ratio)
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
