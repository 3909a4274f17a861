"""What an estimator of the slack factor makes of clients that drop out: counts alone, no model and no clock.

Wu's thesis (Warwick), figure 4.4: 20 clients in two regions, which want three in ten to survive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.core import random
from turnout.core.random import FloatArray, IntArray
from turnout.theory.slack import Counts, Slack, quota, woken


@dataclass(frozen=True)
class SlackTrace:
    """`[rounds, M]` each."""

    theta: FloatArray  # before the round
    woken: FloatArray  # C_r, share of the region
    survivors: FloatArray  # |X_r| / N_r
    submitted: FloatArray  # |Psi_r| / N_r

    @property
    def in_time(self) -> FloatArray:
        """q_r* = |Psi_r| / |X_r|, the true one; 1 where there is no survivor."""
        return np.divide(self.submitted, self.survivors, out=np.ones_like(self.survivors), where=self.survivors > 0)

    def assumed_in_time(self, fraction: float) -> FloatArray:
        """q_r = |Psi_r| / (C N_r), which the source takes for it."""
        return self.submitted / fraction


def slack_trace(
    slack: Slack,
    regions: IntArray,
    reliability: FloatArray,
    seconds: FloatArray,
    fraction: float,
    rounds: int,
    seed: int = 0,
) -> SlackTrace:
    """Every round an edge wakes as many as the estimator says; each survives with its `reliability` and takes its
    `seconds`; the quota of the quickest submit. All late survivors are heard of, where the estimator counts them.

    >>> slack_trace(CountLate(), *toy_clients(), fraction=0.3, rounds=100).theta[-1]
    """
    size = np.bincount(regions)
    members = [np.flatnonzero(regions == number) for number in range(len(size))]
    enough = quota(fraction, len(regions))
    slack.begin(fraction, len(size))
    rows = []
    for t in range(rounds):
        told = woken(fraction, slack.theta, size)
        keys = random.key(seed, "slack draw", t, np.arange(len(size)))
        asked = np.concatenate(
            [ids[random.subset(key, n, len(ids))] for ids, key, n in zip(members, keys, told.tolist(), strict=True)]
        )
        alive = asked[random.uniform(random.key(seed, "slack fate", t, asked), 1)[:, 0] < reliability[asked]]
        first = alive[np.lexsort((alive, seconds[alive]))][:enough]
        survivors, submitted = (np.bincount(regions[ids], minlength=len(size)) for ids in (alive, first))
        rows.append((slack.theta, told / size, survivors / size, submitted / size))
        heard = survivors if slack.counts_late else submitted
        slack.observe(Counts(size, told, submitted, heard, len(first) == enough))
    return SlackTrace(*(np.array(column) for column in zip(*rows, strict=True)))


def toy_clients(seed: int = 0) -> tuple[IntArray, FloatArray, FloatArray]:
    """Region, reliability and seconds of the 20 clients of figure 4.4: 11 of N(.43, .15^2) and 9 of N(.57, .15^2), with
    speeds N(.5, .1^2)."""
    ids = np.arange(20)
    regions = np.repeat([0, 1], [11, 9])
    chance, speed = (random.normal(random.key(seed, f"toy {what}", ids), 1)[:, 0] for what in ("chance", "speed"))
    reliability = np.clip(np.array([0.43, 0.57])[regions] + 0.15 * chance, 0.0, 1.0)
    return regions, reliability, 1 / np.maximum(0.5 + 0.1 * speed, 0.2)
