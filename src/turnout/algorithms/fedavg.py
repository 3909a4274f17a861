"""FedAvg: invite some clients, wait for them, average what they changed.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017; in the
difference form of Fraboni et al. (JMLR 2023, eq. 2.3), which stays right when the weights do not sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from turnout.algorithms.algorithm import Algorithm
from turnout.errors import UserError
from turnout.local.sgd import LocalSGD
from turnout.population.durations import Durations
from turnout.sampling.full import Full
from turnout.sampling.sampler import FloatArray, Sampler, Selection
from turnout.sampling.uniform import Uniform
from turnout.server.optimisers import Gradient
from turnout.server.policy import Policy
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class FedAvg(Algorithm):
    """`model <- model + server_lr * sum_i omega_i (returned_i - model)` over the clients that answered.

    With a `deadline` the server stops waiting after that many seconds and cancels whoever is late. A round that finds
    nobody online takes `retry` seconds.
    """

    local: LocalSGD
    sampler: Sampler = field(default_factory=Uniform)
    server_lr: float = 1.0
    deadline: float | None = None
    retry: float = 1.0

    def __post_init__(self) -> None:
        for name in ("server_lr", "deadline", "retry"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"algorithm.{name}: {value} must be above 0")

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            chosen = self.sampler.sample(server)
            server.invite(chosen.clients, self.work(server))
            updates = server.wait(
                len(chosen.clients) or None, seconds=self.deadline if len(chosen.clients) else self.retry
            )
            server.cancel(chosen.clients)
            self.aggregate(server, updates, chosen)

    def policy(self, durations: Durations, version: int = 0) -> Policy | None:
        return Policy() if isinstance(self.sampler, Full) and self.deadline is None else None

    def work(self, server: Server) -> LocalSGD:
        """What the invited clients do."""
        return self.local

    def weights(self, server: Server, updates: Updates, chosen: Selection) -> FloatArray:
        """How much each answer counts."""
        return chosen.weights_of(updates.clients)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        server.step(updates, self.weights(server, updates, chosen))

    def optimiser(self) -> Gradient:
        return Gradient(self.server_lr)
