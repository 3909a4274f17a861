"""Regret: how much worse the clients' plays were than the best fixed weights in hindsight, and how it grows.

Marfoq's thesis (2023), equations (4.25) and (4.47). With the true mixtures p_s of client c and its plays q_s:

    R_t  =  sum_{s <= t} KL(p_s, q_s) - min over fixed q of sum_{s <= t} KL(p_s, q)  =  sum_s E_{p_s} [log q* - log q_s]

Among all q the mean of the p_s is best; it is the mixture of the true sources by the time average of the true weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.core.statistics import interval
from turnout_studies.online.components import Gaussians
from turnout_studies.online.em import mixture_log_prob, weights_step
from turnout_studies.online.environment import GaussianStream
from turnout_studies.online.learner import Learner
from turnout_studies.online.samples import Samples

LINEAR = 0.9  # a regret that grows like t to a power above this is as good as linear
SUBLINEAR, UNDECIDED = "sub-linear", "undecided"


class Growth(NamedTuple):
    """Of the exponent b in R_t ~ t^b: mean over runs, half width of its 95 % interval, and what follows."""

    exponent: float
    half_width: float
    verdict: str


def exponents(times: ArrayLike, regrets: ArrayLike) -> FloatArray:
    """`[runs]` least-squares slope of log R_t by log t, from `[runs, len(times)]`; regrets at or below 0 do not count,
    and 0 where fewer than two are left."""
    found = []
    for curve in np.atleast_2d(np.asarray(regrets, np.float64)):
        kept = curve > 0
        log_times, log_regrets = np.log(np.asarray(times, np.float64)[kept]), np.log(curve[kept])
        found.append(np.polyfit(log_times, log_regrets, 1)[0] if kept.sum() > 1 else 0.0)
    return np.array(found)


def growth(times: ArrayLike, regrets: ArrayLike) -> Growth:
    """Whether the regret of several runs `[runs, len(times)]` grows more slowly than time."""
    mean, half = interval(exponents(times, regrets))
    verdict = SUBLINEAR if mean + half < LINEAR else "linear" if mean - half >= LINEAR else UNDECIDED
    return Growth(mean, half, verdict)


def best_weights(log_prob: Tensor, counted: Tensor, steps: int = 2000, tolerance: float = 1e-10) -> Tensor:
    """`[C, m]` weights of greatest likelihood for fixed sources `[C, n, m]`: EM over the weights alone."""
    weights = log_prob.new_full((len(log_prob), log_prob.shape[-1]), 1 / log_prob.shape[-1])
    for _ in range(steps):
        previous = weights
        _, weights = weights_step(log_prob, weights, counted)
        if float((weights - previous).abs().max()) < tolerance:
            break
    return weights


class RegretTracker:
    """Collects what was played, as logarithms of densities at points of every step, beside those of the true sources.

    The comparator is the time average of the true mixtures where these are told, else the weights of greatest
    likelihood at the points.
    """

    def __init__(self) -> None:
        self._played: list[Tensor] = []  # each [C, N]
        self._sources: list[Tensor] = []  # [C, N, m]
        self._counted: list[Tensor] = []  # [C, N]
        self._mixtures: list[Tensor] = []  # [C, m]

    def __len__(self) -> int:
        return len(self._played)

    def record(self, played: Tensor, sources: Tensor, counted: Tensor, mixture: Tensor | None = None) -> None:
        """One step: `[C, N]` and `[C, N, m]` log densities at points that count `[C, N]`, by client 1 in all."""
        if len(self) and (mixture is None) == bool(self._mixtures):
            raise UserError("regret: the true mixture must be told at every step, or at none")
        self._played.append(played)
        self._sources.append(sources)
        self._counted.append(counted)
        if mixture is not None:
            self._mixtures.append(mixture)

    def comparator(self, until: int | None = None) -> Tensor:
        """`[C, m]` the best fixed weights for the first `until` steps."""
        if self._mixtures:
            return torch.stack(self._mixtures[:until]).mean(0)
        return best_weights(torch.cat(self._sources[:until], 1), torch.cat(self._counted[:until], 1))

    def step_losses(self) -> Tensor:
        """`[T, C]` KL(p_s, q_s) of every step; the true mixtures must have been told."""
        columns = zip(self._played, self._sources, self._counted, self._mixtures, strict=True)
        return torch.stack([_mean(mixture_log_prob(p, pi) - q, w) for q, p, w, pi in columns])

    def regret(self, until: int | None = None, best: Tensor | None = None) -> Tensor:
        """`[C]` after the first `until` steps, against fixed weights `[C, m]`: by default the best for these steps."""
        best = self.comparator(until) if best is None else best
        columns = zip(self._played[:until], self._sources[:until], self._counted[:until], strict=True)
        return torch.stack([_mean(mixture_log_prob(p, best) - q, w) for q, p, w in columns]).sum(0)

    def curve(self, times: Sequence[int], best: Tensor | None = None) -> FloatArray:
        """`[C, len(times)]` regret of each client after so many steps; the mean over clients is `.mean(0)`."""
        return np.asarray(torch.stack([self.regret(time, best) for time in times], 1).numpy())


def follow(learner: Learner, stream: GaussianStream, steps: int, each: int = 20) -> RegretTracker:
    """Let a learner of Gaussians play against a stream; losses are taken over `each` points of every source."""
    tracker = RegretTracker()
    for step in range(steps):
        learner.play()
        points = stream.points(step, each)
        sources = Gaussians().log_prob(stream.centres, points)
        tracker.record(learner.log_prob(points), sources, points.counted, stream.mixture(step))
        learner.observe(stream.samples(step))
    return tracker


def mixture_kl(points: Samples, truth: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """`[C]` KL between mixtures of Gaussians, (means `[m, d]`, weights `[C, m]`) each, over points of the first."""
    logs = [mixture_log_prob(Gaussians().log_prob(means, points), weights) for means, weights in (truth, other)]
    return _mean(logs[0] - logs[1], points.counted)


def accuracy_regret(best: FloatArray, played: FloatArray) -> FloatArray:
    """`[T, C]` accuracy of the best model in hindsight minus what was played, both `[T, C]`, summed over time."""
    return np.cumsum(np.asarray(best, np.float64) - played, axis=0)


def smoothed(curve: FloatArray, factor: float = 0.7) -> FloatArray:
    """y_t = factor y_{t-1} + (1 - factor) x_t along the first axis, from y_0 = x_0."""
    values = [curve[0]]
    for value in curve[1:]:
        values.append(factor * values[-1] + (1 - factor) * value)
    return np.array(values)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum(1) / counted.sum(1)
