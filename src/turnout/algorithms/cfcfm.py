"""CFCFM, compensatory first-come-first-merge: everybody trains, the first to answer count. SAFA's selection alone.

Wu, He, Lin, Mao, Maple, Jarvis, "SAFA", IEEE Transactions on Computers 2021, algorithm 1; a baseline of FedProf in Wu's
thesis (Warwick), section 5.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnout.algorithms._algorithm import Algorithm
from turnout.core.allowed import Fraction, Seconds
from turnout.local.sgd import LocalSGD
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class CFCFM(Algorithm):
    """`model <- model + sum_k p_k (returned_k - model)` over the first ceil(`fraction` N) to answer; who was not picked
    in the round before comes first. What the others did is charged and lost. A round that finds
    nobody online takes `retry` seconds."""

    reads_updates = False

    local: LocalSGD
    fraction: Fraction = 0.3  # share of the clients whose answers close a round
    deadline: Seconds | None = None  # seconds after the models are out; none: no limit
    retry: Seconds = 1.0  # seconds that a round takes which finds nobody online
    last_picked: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), init=False)  # [N]

    def begin(self, server: Server) -> None:
        self.last_picked = np.zeros(server.population.size, bool)

    def run(self, server: Server) -> None:
        quota = math.ceil(round(self.fraction * server.population.size, 9))
        for _ in server.rounds():
            invited = server.online().ids
            invited = invited[server.importance[invited] > 0]
            if not len(invited):
                server.wait(seconds=self.retry)
            server.invite(invited, self.local)
            limit = math.inf if self.deadline is None else self.deadline + server.push_seconds(len(invited), self.local)
            picked = first_come(server, quota, self.last_picked, limit)
            server.wait(seconds=0)  # who answered and was not picked
            server.cancel(invited)
            server.step(picked, server.importance[picked.clients])
            self.last_picked[:] = False
            self.last_picked[picked.clients] = True


def first_come(
    server: Server, quota: int, last_picked: NDArray[np.bool_], seconds: float, patient: bool = False
) -> Updates:
    """The first of those not picked last time and, where they do not fill the quota, of the others; all within so many
    seconds, which are waited out before the others come in where the server is `patient`."""
    close = server.now + seconds
    picked = server.wait(quota, of=np.flatnonzero(~last_picked), seconds=seconds)
    if len(picked) < quota:
        if patient:
            server.wait(of=[], seconds=max(0.0, close - server.now))
        left = max(0.0, close - server.now)
        picked += server.wait(quota - len(picked), of=np.flatnonzero(last_picked), seconds=left)
    return picked
