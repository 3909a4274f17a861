"""Who can be invited: a set that computes nothing for clients nobody asks about."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.clients.population import Population
from turnout.core import random
from turnout.core.random import FloatArray, IntArray


class OnlineSet:
    """Who can be invited now. Lazy: nothing is computed for clients nobody asks about."""

    def __init__(self, population: Population, version: int, now: float, busy: NDArray[np.bool_] | None = None) -> None:
        self._population, self._now, self._busy = population, now, busy
        self._at = float(version) if population.availability.clock == "round" else now

    def contains(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """Which of these clients are members, online, with something to train on and not busy with a job."""
        ids = np.asarray(ids, np.int64)
        population = self._population
        here = population.availability.online(population.seed, ids, self._at)
        if population.changes:
            here = here & population.members(ids, self._now)
        if population.stream is not None:
            here = here & population.has_samples(ids, self._now)
        return np.broadcast_to(here, ids.shape) if self._busy is None else here & ~self._busy[ids]

    def back_at(self, ids: IntArray) -> FloatArray:
        """Seconds before which it is no use to look for these absent clients again; now where that is not known."""
        population, soonest = self._population, np.full(len(ids), self._now)
        presence, seed = population.availability, population.seed
        if presence.clock == "seconds":
            away = ~presence.online(seed, ids, self._now)
            soonest[away] = presence.online_from(seed, ids[away], self._now)
        if population.joined_at is not None:
            soonest = np.maximum(soonest, population.joined_at[ids])
        return soonest

    def sample(self, size: int, seed: int, purpose: str, number: int) -> IntArray:
        """At most `size` distinct clients that matter, all equally likely, in O(size / share online); the seed, a
        purpose and a number say which."""
        everybody, tried = self._population.size, 2 * size + 16
        if self._population.always_there and self._population.mattering == everybody and self._busy is None:
            return random.nth_subset(seed, purpose, number, size, everybody)
        key, found, before = random.key(seed, purpose, number), np.zeros(0, np.int64), 0
        while True:
            ids = random.subset(key, min(tried, everybody), everybody)
            new = ids[before:]  # those looked at before come first
            here = new[self.contains(new) & (self._population.base_importance[new] > 0)]
            found = np.append(found, here)
            if len(found) >= size or tried >= everybody:
                return found[:size]
            before = tried
            likely = 5 * tried * size // (4 * max(1, len(found))) + 16  # with as many online among the next
            tried = min(4 * tried, likely) if 12 * tried <= everybody else 4 * tried
            if 3 * tried > everybody:  # `subset` draws otherwise
                found, before = found[:0], 0

    @property
    def ids(self) -> IntArray:
        """Everybody online: O(N)."""
        return self._population.ids[self.contains(self._population.ids)]

    @property
    def count(self) -> int:
        """How many are online: O(N)."""
        return len(self.ids)
