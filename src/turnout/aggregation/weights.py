"""How much each update counts, where that is not what the method says: parts that make other weights of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from turnout.core.random import FloatArray
from turnout.core.spelling import Spelt

if TYPE_CHECKING:
    from turnout.local.sgd import LocalSGD
    from turnout.server.server import Server
    from turnout.server.updates import Updates


@dataclass(frozen=True)
class Weigh(Spelt):
    """Make weights `[k]` of the weights that the method gives its updates."""

    moves_one: ClassVar[bool] = True  # whether it makes something else of a single weight

    def check(self, work: LocalSGD) -> None:
        """Raise where updates of that work cannot be weighed so."""

    def of(self, server: Server, updates: Updates, weights: FloatArray) -> FloatArray:
        """Compute `[k]` how much each update counts."""
        raise NotImplementedError


@dataclass(frozen=True)
class Equal(Weigh):
    """Share the method's total weight equally among its updates: **biased** towards clients that matter little."""

    moves_one: ClassVar[bool] = False

    def of(self, server: Server, updates: Updates, weights: FloatArray) -> FloatArray:
        return np.full(len(weights), weights.sum() / max(1, len(weights)))


@dataclass(frozen=True)
class BySamples(Weigh):
    """Share the method's total weight in proportion to the samples that each job had."""

    moves_one: ClassVar[bool] = False

    def of(self, server: Server, updates: Updates, weights: FloatArray) -> FloatArray:
        return np.asarray(weights.sum() * updates.samples / max(1, updates.samples.sum()), np.float64)


@dataclass(frozen=True)
class Normalised(Weigh):
    """Scale the weights so that they sum to 1, whoever has answered: **biased** if it matters who is silent."""

    def of(self, server: Server, updates: Updates, weights: FloatArray) -> FloatArray:
        total = float(weights.sum())
        return weights / total if total > 0 else weights


@dataclass(frozen=True)
class Nova(Weigh):
    """Multiply by a_bar / a_i, a_i the effective local steps: clients that do unequal amounts of work minimise the same
    objective (FedNova: Wang et al., NeurIPS 2020). a_bar = sum_j p_j a_j."""

    observed: bool = False  # a_bar: the weighted mean over those who answered

    def check(self, work: LocalSGD) -> None:
        work.effective_steps(1)

    def of(self, server: Server, updates: Updates, weights: FloatArray) -> FloatArray:
        work = server.algorithm.stepping(server).at(server.version)
        a = work.effective_steps(updates.steps)
        if self.observed:
            a_bar = (weights * a).sum() / max(weights.sum(), np.finfo(float).tiny)
        else:
            everybody = server.population.counts(server.population.ids, np.full(server.population.size, server.now))
            a_bar = (server.importance * work.effective_steps(work.num_steps(everybody))).sum()
        found: FloatArray = np.divide(a_bar * weights, a, out=np.zeros_like(weights), where=a > 0)
        return found


WEIGHTS: dict[str, type[Weigh]] = {"equal": Equal, "samples": BySamples, "normalised": Normalised, "fednova": Nova}
