"""SAFA: everybody trains, the server closes on the first quota of arrivals, and lagging clients are left to go on.

Wu, He, Lin, Mao, Maple, Jarvis, "SAFA: a semi-asynchronous protocol for fast federated learning with low overhead",
IEEE Transactions on Computers 2021; Wu's thesis (Warwick), chapter 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.cfcfm import first_come
from turnout.core.allowed import NotNegative, Seconds, Share
from turnout.core.errors import UserError
from turnout.core.random import IntArray
from turnout.local.sgd import LocalSGD
from turnout.server.server import KEEP, Keep, Server
from turnout.server.updates import Updates

BoolArray = NDArray[np.bool_]


@dataclass
class Safa(Algorithm):
    """The model is the average of a cache with one entry a client: `model <- sum_k p_k cache_k`.

    A round closes when ceil(`fraction` N) updates of clients not picked in the round before are in; if they cannot fill
    the quota, others do. Picked updates enter the cache at once, other arrivals after the aggregation. Clients whose
    version lags by more than `lag_tolerance` rounds (`lag_rule` eq37: at least) are sent the model anew, those behind
    by less go on with what they have. `close_rule` deadline waits out `deadline` whenever the quota cannot be filled by
    clients that have priority. Memory: N models.
    """

    cannot = {
        "weigh": "averages a cache in which every client counts its importance",
        "remember": "has a cache of models already",
    }
    clients_keep = "unfinished"
    keep: ClassVar[Keep] = KEEP  # how tolerable clients go on

    local: LocalSGD
    fraction: Share = 0.3  # share of the clients whose updates close a round
    lag_tolerance: NotNegative = 5.0  # rounds behind: whoever lags more is sent the model anew
    deadline: Seconds | None = None  # seconds after the models are out; none: no limit
    lag_rule: Literal["more_than", "eq37"] = "more_than"  # eq37: at least so many rounds
    close_rule: Literal["liveness", "deadline"] = "liveness"  # deadline: wait it out where the quota is not filled
    deadline_includes_distribution: bool = False  # whether the time to push the models counts
    retry: Seconds = 1.0  # seconds that a round takes which finds nobody online
    versions: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N]
    last_picked: BoolArray = field(default_factory=lambda: np.zeros(0, bool), init=False)  # [N]
    cache: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)  # [N, P]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.close_rule == "deadline" and self.deadline is None:
            raise UserError("algorithm.close_rule: deadline needs algorithm.deadline")

    def begin(self, server: Server) -> None:
        clients = server.population.size
        self.versions, self.last_picked = np.zeros(clients, np.int64), np.zeros(clients, bool)
        self.cache = server.model.repeat(clients, 1)

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            late = server.finite(server.wait(seconds=0))  # not picked in the round before: they bypass its aggregation
            self.commit(late, server.version)
            overwritten = self.deprecated(server)
            distribution = self.distribute(server)
            picked = server.finite(self.select(server, distribution))
            self.cache[picked.clients] = picked.returned()
            replaced = overwritten[late.clients] | np.isin(late.clients, picked.clients)
            updates = picked + late.select(~replaced)  # with what bypassed the round before and is still in the cache
            if not len(updates):
                server.log("empty_round")
            server.publish(self.judge(server, self.average(server)), updates, server.importance[updates.clients])
            self.versions[picked.clients] = server.version
            self.last_picked[:] = False
            self.last_picked[picked.clients] = True

    def average(self, server: Server) -> Tensor:
        """Of the cache; the model as it is where nobody is left."""
        if not server.importance.any():
            return server.model
        return server.combined(self.cache, server.importance, around=server.model)

    def commit(self, updates: Updates, version: int) -> None:
        """Into the cache; their clients are up to date."""
        if len(updates):
            self.cache[updates.clients] = updates.returned()
            self.versions[updates.clients] = version

    def deprecated(self, server: Server) -> BoolArray:
        """Who lags too far behind to go on."""
        lag = server.version - self.versions
        return lag > self.lag_tolerance if self.lag_rule == "more_than" else lag >= self.lag_tolerance

    def distribute(self, server: Server) -> float:
        """Lag-tolerant distribution (3.7); how long the server takes to send its copies."""
        lag, deprecated = server.version - self.versions, self.deprecated(server)
        server.cancel(np.flatnonzero(deprecated))
        self.cache[deprecated] = server.model
        idle = server.population.ids[server.online().contains(server.population.ids)]
        goes_on = (lag[idle] > 0) & ~deprecated[idle] & server.keeps(idle)
        self.versions[idle[~goes_on]] = server.version  # the absent remain deprecated until they are back
        work = self.work(server)
        server.invite(idle[~goes_on], work)
        server.invite(idle[goes_on], work, self.keep)
        return server.push_seconds(int((~goes_on).sum()), work)

    def work(self, server: Server) -> LocalSGD:
        """What the clients do."""
        return self.local

    def quota(self, server: Server) -> int:
        """How many updates close a round."""
        return max(1, math.ceil(round(self.fraction * server.population.size, 9)))

    def limit(self, distribution: float) -> float:
        """Seconds from now to the deadline."""
        seconds = math.inf if self.deadline is None else self.deadline
        return seconds + (0.0 if self.deadline_includes_distribution else distribution)

    def select(self, server: Server, distribution: float) -> Updates:
        """CFCFM, compensatory first-come-first-merge: clients not picked last time come first."""
        limit = self.limit(distribution)
        close = server.now + limit
        picked = first_come(server, self.quota(server), self.last_picked, limit, self.close_rule == "deadline")
        if not len(picked):  # nobody was there, or all have crashed
            server.wait(of=[], seconds=self.retry if self.deadline is None else max(0.0, close - server.now))
        return picked

    def judge(self, server: Server, model: Tensor) -> Tensor:
        """The model to publish."""
        return model
