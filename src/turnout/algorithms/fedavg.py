"""FedAvg: invite some clients, wait for them, average what they changed.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017; in the
difference form of Fraboni et al. (JMLR 2023, equation 5), which stays right when the weights do not sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from turnout.aggregation.optimisers import Step
from turnout.algorithms._algorithm import Algorithm
from turnout.core.errors import UserError, check_positive, check_seconds, unknown
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import FloatArray, IntArray, Sampler, Selection
from turnout.sampling.full import Full
from turnout.sampling.uniform import Uniform
from turnout.server.durations import Durations
from turnout.server.policy import Policy
from turnout.server.server import CURRENT, ModelChoice, Server
from turnout.server.updates import Updates

NORMALISE = ("invited", "responders")


@dataclass
class FedAvg(Algorithm):
    """`model <- model + server_lr * sum_i omega_i (returned_i - model)` over the clients that answered.

    With a `deadline` the server stops waiting so many seconds after the models are out, and cancels whoever is late;
    `wait_for_crashed` makes it wait until then for clients it knows to have failed. `wait_for` closes the round at that
    many answers (over-selection: invite more than are needed), whose weights are scaled up to stand for all invited.
    The weight of a client that does not answer is lost; `normalise` responders gives it to those who do, which is what
    most frameworks do, and **biased** if it matters who is silent. A round that finds nobody online takes `retry`
    seconds.
    """

    reads_updates: ClassVar[bool] = False
    of_part: ClassVar[dict[str, tuple[str, ...]]] = {"optimiser": ("server_lr",), "remember": ("normalise",)}

    local: LocalSGD
    sampler: Sampler = field(default_factory=Uniform)
    server_lr: float = 1.0
    deadline: float | None = None
    wait_for: int | None = None
    wait_for_crashed: bool = False
    retry: float = 1.0
    normalise: str = "invited"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise not in NORMALISE:
            raise unknown("algorithm.normalise", self.normalise, NORMALISE)
        for name in ("server_lr", "wait_for"):
            check_positive(f"algorithm.{name}", getattr(self, name))
        for name in ("deadline", "retry"):
            check_seconds(f"algorithm.{name}", getattr(self, name))
        if self.wait_for is not None and self.sampler.decides_later:
            raise UserError("algorithm.wait_for: this sampler must hear everybody's norm before it decides")
        if self.wait_for_crashed and self.deadline is None:
            raise UserError("algorithm.wait_for_crashed: it needs algorithm.deadline, or the wait never ends")

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            chosen = self.choose(server)
            everybody, invited = chosen.clients, len(chosen.clients)
            work, model = self.invitation(server, chosen.clients)
            work, informed = work.reporting(self.sampler.report), chosen.informed and model is None
            server.invite(chosen.clients, work, CURRENT if informed else model, hold=self.sampler.decides_later)
            limit = self.time_limit
            if limit is not None and not informed:
                limit += server.push_seconds(invited, work)
            close = server.now + (limit or 0.0)
            enough = min(self.wait_for or invited, invited)
            updates = server.wait(enough or None, seconds=limit if invited else self.retry)
            if self.wait_for_crashed and len(updates) < enough:
                server.wait(of=[], seconds=max(0.0, close - server.now))
            if self.sampler.decides_later:
                chosen = self.sampler.decide(server, updates)
                server.cancel(np.setdiff1d(everybody, chosen.clients))
                updates = server.fetch(chosen.clients)
            server.cancel(everybody)
            self.sampler.observe(updates)
            self.aggregate(server, updates, chosen)

    def policy(self, durations: Durations, version: int = 0) -> Policy | None:
        return Policy() if isinstance(self.sampler, Full) and self.deadline is None and self.wait_for is None else None

    def choose(self, server: Server) -> Selection:
        """Who is invited."""
        return self.sampler.sample(server)

    def invitation(self, server: Server, clients: IntArray) -> tuple[LocalSGD, ModelChoice]:
        """What the invited clients do, and from which model: None is the current one."""
        return self.work(server), None

    def work(self, server: Server) -> LocalSGD:
        """What the invited clients do."""
        return self.local

    def weights(self, server: Server, updates: Updates, chosen: Selection) -> FloatArray:
        """How much each answer counts."""
        weights = chosen.weights_of(updates.clients)
        if self.normalise == "responders" and 0 < len(updates) < len(chosen.clients) and weights.sum() > 0:
            return weights * float(chosen.weights.sum() / weights.sum())
        closed_early = self.wait_for is not None and len(updates) == self.wait_for
        return weights * (len(chosen.clients) / len(updates)) if closed_early else weights

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        server.step(updates, self.weights(server, updates, chosen))

    def own_optimiser(self) -> Step:
        return Step(self.server_lr)

    def stepping(self, server: Server) -> LocalSGD:
        return self.work(server)
