"""FedAvg: invite some clients, wait for them, average what they changed.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017; in the
difference form of Fraboni et al. (JMLR 2023, equation 5), which stays right when the weights do not sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal

from turnout.aggregation.optimisers import Step
from turnout.algorithms._algorithm import Algorithm
from turnout.core.allowed import Count, Positive, Seconds
from turnout.core.errors import UserError
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import FloatArray, IntArray, Sampler, Selection
from turnout.sampling.full import Full
from turnout.sampling.uniform import Uniform
from turnout.server.closing import Answers, Wait
from turnout.server.durations import Durations
from turnout.server.policy import Policy
from turnout.server.server import ModelChoice, Server
from turnout.server.updates import Updates

Normalise = Literal["invited", "responders"]

_answers = lru_cache(maxsize=16)(Answers)  # a round asks for it more than once


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

    reads_updates = False
    of_part: ClassVar[dict[str, tuple[str, ...]]] = {
        "wait": ("deadline", "wait_for", "wait_for_crashed", "retry"),
        "optimiser": ("server_lr",),
        "remember": ("normalise",),
    }
    given_as: ClassVar[dict[str, str]] = {
        "wait.count": "algorithm.wait_for",
        "wait.for_crashed": "algorithm.wait_for_crashed",
    }
    waits: ClassVar[type[Wait] | None] = Answers

    local: LocalSGD
    sampler: Sampler = field(default_factory=Uniform)
    server_lr: Positive = 1.0  # how far the server goes along the weighted sum
    deadline: Seconds | None = None  # seconds after the models are out; none: no limit
    wait_for: Count | None = None  # answers that close a round; none: all. Invite more than are needed
    wait_for_crashed: bool = False  # whether to wait until the deadline for clients known to have failed
    retry: Seconds = 1.0  # seconds that a round takes which finds nobody online
    normalise: Normalise = "invited"  # invited: the weight of the silent is lost; responders: it goes to the others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.closing.count is not None and self.sampler.decides_later:
            option = "algorithm.wait_for" if self.wait is None else "wait.count"
            raise UserError(f"{option}: this sampler must hear everybody's norm before it decides")

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            chosen = self.choose(server)
            work, model = self.invitation(server, chosen.clients)
            sending = self.sampler.invite(server, chosen, work, model)
            answers = self.closing.gather(server, len(chosen.clients), sending)
            updates, counted = self.sampler.settle(server, chosen, answers)
            self.aggregate(server, updates, counted)

    def choose(self, server: Server) -> Selection:
        """Who is invited."""
        return self.sampler.sample(server)

    def invitation(self, server: Server, clients: IntArray) -> tuple[LocalSGD, ModelChoice]:
        """What the invited clients do, and from which model: None is the current one."""
        return self.work(server), None

    def work(self, server: Server) -> LocalSGD:
        """What the invited clients do."""
        return self.modified(self.own_work() or self.local)

    @property
    def closing(self) -> Answers:
        """When a round closes."""
        return self.wait if isinstance(self.wait, Answers) else self.own_wait()

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        """Move the model by what came back."""
        server.step(updates, self.weights(server, updates, chosen))

    def weights(self, server: Server, updates: Updates, chosen: Selection) -> FloatArray:
        """How much each answer counts."""
        weights = chosen.weights_of(updates.clients)
        if self.normalise == "responders" and 0 < len(updates) < len(chosen.clients) and weights.sum() > 0:
            return weights * float(chosen.weights.sum() / weights.sum())
        closed_early = self.closing.count is not None and len(updates) == self.closing.count
        return weights * (len(chosen.clients) / len(updates)) if closed_early else weights

    def own_wait(self) -> Answers:
        return _answers(self.time_limit, self.wait_for, self.wait_for_crashed, self.retry)

    def own_optimiser(self) -> Step:
        return Step(self.server_lr)

    def stepping(self, server: Server) -> LocalSGD:
        return self.work(server)

    def policy(self, durations: Durations, version: int = 0) -> Policy | None:
        everybody = isinstance(self.sampler, Full) and self.time_limit is None and self.closing.count is None
        return Policy() if everybody and self.trains is None else None  # other work takes longer than the local one
