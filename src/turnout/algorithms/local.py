"""Local only: every client trains its own model on its own data, and nothing is exchanged. The baseline below."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from turnout.algorithms.algorithm import Algorithm
from turnout.errors import UserError
from turnout.local.own import OwnModelSGD
from turnout.local.sgd import LocalSGD
from turnout.sampling.full import Full
from turnout.sampling.sampler import Sampler
from turnout.server.server import Server


@dataclass
class Local(Algorithm):
    """Each round the sampled clients go on with their own models; each is evaluated with its own. A round that finds
    nobody online takes `retry` seconds."""

    local: LocalSGD
    sampler: Sampler = field(default_factory=Full)
    retry: float = 1.0

    def __post_init__(self) -> None:
        if not self.retry > 0:
            raise UserError(f"algorithm.retry: {self.retry} must be above 0")

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            chosen = self.sampler.sample(server)
            server.invite(chosen.clients, self.predictor())
            updates = server.wait(seconds=None if len(chosen.clients) else self.retry)
            server.publish(server.model, updates, np.zeros(len(updates)))

    def predictor(self) -> LocalSGD:
        return OwnModelSGD.extend(self.local)
