"""Local only: every client trains its own model on its own data, and nothing is exchanged. The baseline below."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turnout.algorithms._algorithm import LAW, Algorithm
from turnout.core.allowed import Count, Seconds
from turnout.core.errors import UserError
from turnout.local.own import OwnModelSGD
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import Sampler
from turnout.sampling.full import Full
from turnout.server.server import Server


@dataclass
class Local(Algorithm):
    """Each round the sampled clients go on with their own models; each is evaluated with its own, or with `average` all
    with the average of the models (the one-shot average of the SAFA thesis, as if the run ended there). A client never
    seen trains alone too before it serves, from the initial model: `tuning_epochs` passes, or without that number as
    much as there have been rounds for, anew at every evaluation. A round that finds nobody online takes `retry`
    seconds."""

    cannot = dict.fromkeys(LAW, "exchanges nothing") | {"serve": "has no global model to adapt"}
    trains = OwnModelSGD
    sends_updates = False

    local: LocalSGD
    sampler: Sampler = field(default_factory=Full)
    average: bool = False  # whether all are evaluated with the average of the models
    tuning_epochs: Count | None = None  # passes of a client never seen; none: as much as there have been rounds for
    retry: Seconds = 1.0  # seconds that a round takes which finds nobody online
    rounds: int = field(default=0, init=False)  # so far

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler.decides_later:
            raise UserError("sampler.name: local training sends nothing, so there is no update to choose by")

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            chosen = self.sampler.sample(server)
            server.invite(chosen.clients, self.own_work(), server.task.initial)
            updates = server.wait(seconds=None if len(chosen.clients) else self.retry)
            server.settle()
            server.publish(self.shown(server), updates, np.zeros(len(updates)))
            self.rounds = server.version

    def own_work(self) -> OwnModelSGD:
        return OwnModelSGD.extend(self.local)

    def shown(self, server: Server) -> Tensor:
        """The model to publish: nobody's, or everybody's average."""
        if not self.average or not server.importance.any():
            return server.model
        state = server.store.get(self.own_work().state_shapes(server.task), server.population.ids)
        own = torch.where(state["started"][:, None] > 0, state["model"], server.task.initial)
        average: Tensor = torch.tensordot(torch.as_tensor(server.importance).to(own), own, dims=1)
        return average

    def predictor(self) -> LocalSGD | None:
        return None if self.average else self.own_work()

    def adaptation(self, unseen: bool) -> OwnModelSGD | None:
        if self.average or not unseen:
            return None
        work = self.own_work().at(0)  # it begins where the others began
        if self.tuning_epochs is not None:
            return work.bind({"epochs": self.tuning_epochs, "steps": None})
        steps = None if work.steps is None else work.steps * self.rounds
        return work.bind({"epochs": work.epochs * self.rounds, "steps": steps})
