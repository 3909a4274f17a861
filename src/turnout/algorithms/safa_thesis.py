"""SAFA with the conventions behind its published tables. In simulation only: the server knows what it cannot know.

Wu's thesis (Warwick), chapter 3. Late updates are used in the round in which their jobs began, before they exist (the
`bypass` late policy); crashes are known from the start of a round; a client that goes on takes as long as one that
begins anew. For everything but reproducing the tables use `safa`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from turnout.algorithms.safa import Safa
from turnout.core.errors import UserError
from turnout.core.random import IntArray
from turnout.local.sgd import LocalSGD
from turnout.server.server import Keep, Server
from turnout.server.simulation import Simulation
from turnout.server.updates import Updates


def cfcfm(finishers: IntArray, last_picked: IntArray, quota: int) -> tuple[IntArray, IntArray]:
    """Picked and undrafted, of clients in order of arrival: those not picked last time come first."""
    again = np.isin(finishers, last_picked)
    order = np.concatenate([finishers[~again], finishers[again]])
    return order[:quota], order[quota:]


@dataclass
class SafaThesis(Safa):
    """`arrival_order` speed: clients are picked by their speed rather than by when they finish. `keep_best` revert: a
    round whose test loss is worse than the best so far is undone. `warm_start`: before round 1 all train one epoch."""

    keep: ClassVar[Keep] = Keep(full_time=True)

    arrival_order: Literal["time", "speed"] = "time"  # time, or speed: the fast are picked, whenever they finish
    keep_best: Literal["no", "revert"] = "no"  # no, or revert: a round that worsens the test loss is undone
    warm_start: bool = False  # whether all train one epoch before round 1
    best_loss: float = field(default=math.inf, init=False)
    best: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)

    def begin(self, server: Server) -> None:
        if not isinstance(server, Simulation):
            raise UserError("algorithm.name: safa_thesis runs in simulation only; deploy safa")
        if self.keep_best != "no" and server.whole_population.test is None:
            raise UserError("algorithm.keep_best: clients need test data of their own to tell which model is best")
        server.log("foresight", why="late updates are used before they exist")
        self.best_loss, self.best = math.inf, server.model
        super().begin(server)

    def work(self, server: Server) -> LocalSGD:
        warming = self.warm_start and server.version == 0
        return self.local.bind({"epochs": 1, "steps": None}) if warming else self.local

    def quota(self, server: Server) -> int:
        return server.population.size if self.warm_start and server.version == 0 else super().quota(server)

    def select(self, server: Server, distribution: float) -> Updates:
        assert isinstance(server, Simulation)
        limit = self.limit(distribution)
        finishers, seconds = server.foresee()
        late = seconds > limit
        on_time = finishers[~late]
        if self.arrival_order == "speed":
            on_time = on_time[np.argsort(server.durations(self.local).speed[on_time] * -1, kind="stable")]
        quota = self.quota(server)
        chosen, _ = cfcfm(on_time, np.flatnonzero(self.last_picked), quota)
        runs_out = not len(chosen) or (len(chosen) < quota and late.any())
        if self.close_rule == "deadline":
            runs_out |= self.last_picked[chosen].any() or len(chosen) < quota
        wasted = (self.retry if self.deadline is None else limit) if runs_out else 0.0
        close = server.now + wasted
        picked = server.wait(len(chosen), of=chosen) if len(chosen) else server.wait(of=[], seconds=0)
        server.wait(of=[], seconds=max(0.0, close - server.now))
        server.hasten()
        return picked

    def judge(self, server: Server, model: Tensor) -> Tensor:
        if self.keep_best == "no":
            return model
        loss = server.measure(model).get("test_loss", math.nan)
        if loss <= self.best_loss:
            self.best_loss, self.best = loss, model
        return self.best
