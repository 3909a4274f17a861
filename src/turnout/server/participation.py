"""How often a client is heard, and the weight that makes up for it: d_i = p_i / f_i, f_i its updates a round.

One rule behind every waiting policy (Fraboni et al., JMLR 2023, table 2: a renewal argument): weighted like this,
sum_i d_i f_i = sum_i p_i, and the model is pulled towards the intended objective, however unequal the speeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from turnout.core.random import FloatArray, IntArray
from turnout.server.durations import Durations
from turnout.server.policy import Policy

_UPDATES_OF_SLOWEST = 200  # in the schedule a rate is counted in, where it has no closed form
_MOST_UPDATES = 2_000_000  # in that schedule, of everybody
_FEW = 3  # updates too few to count a rate by
_MEMORY = 0.1  # of the moving average of measured gaps


def rates(policy: Policy, durations: Durations) -> FloatArray:
    """`[N]` f_i, the long-run updates of each client a round, of clients that never fail."""
    people = durations.population
    count = people.size if policy.count is None else policy.count
    if policy.window is not None:
        return np.asarray(1 / durations.mean_windows(policy.window))
    if policy.restart or count == 1:
        speed = 1 / durations.mean
        return np.asarray(count * speed / speed.sum())
    if count == people.size:
        return np.ones(people.size)
    return _counted(policy, durations)


def _counted(policy: Policy, durations: Durations) -> FloatArray:
    """Rates from the schedule itself: exact over a period if it shows one, else over its second half."""
    updates = _UPDATES_OF_SLOWEST if durations.fixed else 20 * _UPDATES_OF_SLOWEST
    enough = _MOST_UPDATES / float((1 / durations.mean).sum())
    schedule = policy.schedule(durations, seconds=min(updates * float(durations.mean.max()), enough))
    period = schedule.period() if durations.fixed else None
    if period is not None:
        return schedule.between(period[0] + 1, period[1] + 1).rates
    counted = schedule.between(schedule.rounds // 2, schedule.rounds)
    a_round = schedule.seconds / max(1, schedule.rounds)
    alone = a_round / (durations.mean + a_round / 2)  # a slow client waits half a round for its flush
    return np.where(counted.counts >= _FEW, counted.rates, alone)


@dataclass
class Gaps:
    """Measured rates: a moving average of the rounds between two updates of a client, whose inverse is f_i.

    Before its second update a client counts p_i N / |S|, as if all were equally fast.
    """

    mean: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N]; 0: not known yet
    last: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N] version of the last update

    def begin(self, clients: int) -> None:
        self.mean, self.last = np.zeros(clients), np.full(clients, -1)

    def inverse_rates(self, version: int, clients: IntArray) -> FloatArray:
        """`1 / f_i` of the clients aggregated now, these updates included."""
        _, place, times = np.unique(clients, return_inverse=True, return_counts=True)  # twice in one buffer: half a gap
        gaps = (version - self.last[clients]) / times[place]
        seen, known = self.last[clients] >= 0, self.mean[clients] > 0
        kept = (1 - _MEMORY) ** times[place]
        learnt = np.where(known, kept * self.mean[clients] + (1 - kept) * gaps, gaps)
        self.mean[clients] = np.where(seen, learnt, 0.0)
        self.last[clients] = version
        return np.where(seen, learnt, len(self.mean) / max(1, len(clients)))
