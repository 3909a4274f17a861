"""How long the jobs of a population take: download + compute + upload, in integer ticks and in the mean.

>>> Durations.of(population, LocalSGD(0.1)).mean          # [N] seconds
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from turnout.clients.fates import to_ticks
from turnout.clients.population import Population
from turnout.core.random import FloatArray, IntArray
from turnout.local.sgd import LocalSGD

_CERTAIN = 1e-12  # a survival below this adds nothing
_MOST_WINDOWS = 1_000_000


@dataclass(frozen=True, eq=False)
class Durations:
    """Tell how long one local work takes at every client; what happens to a job (crash, absence) is another matter."""

    population: Population
    steps: IntArray  # [N] of a job
    samples: IntArray  # [N]
    down: FloatArray  # [N] seconds of download
    up: FloatArray  # [N] of upload
    busy: tuple[ArrayLike, ArrayLike]  # steps and samples in time, reports included

    @classmethod
    def of(cls, population: Population, work: LocalSGD, bytes_down: int = 0, bytes_up: int = 0) -> Durations:
        ids, links, seed = population.ids, population.links, population.seed
        samples = population.counts(ids, np.zeros(len(ids)))
        down, up = links.download_seconds(seed, ids, bytes_down), links.upload_seconds(seed, ids, bytes_up)
        return cls(population, np.asarray(work.num_steps(samples)), samples, down, up, work.busy(samples))

    @property
    def reliable(self) -> bool:
        """Tell whether every job ends with an update, and nothing but its own duration delays it."""
        return self.population.reliable

    @property
    def fixed(self) -> bool:
        """Tell whether all jobs of a client take the same time."""
        return self.population.devices.each == "client"

    def ticks(self, job: int) -> IntArray:
        """Count the ticks `[N]` of every client's job of that number."""
        seconds = self.down + self.compute(job) + self.up
        return np.maximum(1, to_ticks(seconds, self.population.ticks_per_second))

    def compute(self, job: int) -> FloatArray:
        """Draw the seconds `[N]` of training."""
        people = self.population
        return people.devices.seconds(people.seed, people.ids, job, *self.busy)

    @cached_property
    def mean(self) -> FloatArray:
        """Compute expected seconds `[N]`, tau_i."""
        people = self.population
        if self.fixed:
            return self.ticks(0) / people.ticks_per_second
        compute = people.devices.mean_seconds(people.seed, people.ids, *self.busy)
        return np.asarray(self.down + compute + self.up)

    @property
    def speed(self) -> FloatArray:
        """Compute the samples a second `[N]`."""
        return self.samples / np.maximum(self.mean - self.down - self.up, 1e-12)

    def mean_windows(self, window: float) -> FloatArray:
        """Compute E[ceil(T_i / window)] `[N]`: the windows a job takes. An end exactly at a close counts for it.

        In integers where jobs take the same time, else by E[ceil(X)] = sum over k >= 0 of P(X > k).
        """
        people = self.population
        width = max(1, round(window * people.ticks_per_second))
        if self.fixed:
            return -(-self.ticks(0) // width).astype(np.float64)
        total = np.ones(people.size)
        for k in range(1, _MOST_WINDOWS):
            left = k * window - self.down - self.up
            longer = people.devices.longer_than(people.seed, people.ids, *self.busy, left)
            total += longer
            if longer.max() < _CERTAIN:
                break
        return total
