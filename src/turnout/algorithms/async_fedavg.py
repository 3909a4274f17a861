"""Asynchronous FedAvg: aggregate each update the moment it arrives, and send its client the new model.

Fraboni, Vidal, Kameni, Lorenzi, "A general theory for federated optimization with asynchronous and heterogeneous
clients updates", JMLR 2023, section 4.3 (algorithm 1 with the weights of table 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from turnout.aggregation.optimisers import Step
from turnout.algorithms._arrivals import Arrivals
from turnout.core.allowed import Positive
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.local.sgd import LocalSGD
from turnout.server.closing import EachArrival
from turnout.server.durations import Durations
from turnout.server.policy import Gaps, Policy, rates
from turnout.server.server import Server
from turnout.server.updates import Updates

# What a stretch does itself, or believes to be the same in all its rounds:
_FORESEEN = (
    "aggregate", "weights", "inverse_rates", "_measures", "work", "policy", "discounted", "_fresh", "_idle", "_invite",
)  # fmt: skip


@dataclass
class AsyncFedAvg(Arrivals):
    """`model <- model + server_lr * d_i (returned_i - received_i)` at each arrival.

    `weight_rule`: `unbiased` is d_i = p_i / f_i with f_i the client's updates a round (the paper's TIME-BASED), from
    the durations where they are known and nobody fails, measured otherwise; `measured` always measures; `naive` is the
    paper's IDENTICAL, d_i = 1, which optimises a loss weighted by speed; `learning_rate` leaves d_i = 1 and multiplies
    the clients' learning rates by p_i / f_i instead, the same for one local step. With `concurrency`, f_i is measured.
    """

    reads_updates = False
    of_part = {"optimiser": ("server_lr",)}

    weight_rule: Literal["unbiased", "measured", "naive", "learning_rate"] = "unbiased"  # unbiased: p / f
    server_lr: Positive = 1.0  # how far the server goes along an update
    gaps: Gaps = field(default_factory=Gaps, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_rule == "learning_rate" and not isinstance(self.closing, EachArrival):
            raise UserError("algorithm.weight_rule: learning_rate is a correction for async_fedavg only")
        if self.weight_rule == "learning_rate" and self.concurrency is not None:
            raise UserError("algorithm.weight_rule: learning_rate needs rates that concurrency leaves to chance")
        self._inverse_rates: dict[Policy, FloatArray] = {}  # of the policy in force

    def begin(self, server: Server) -> None:
        self.gaps.begin(server.population.size)
        self._inverse_rates = {}
        super().begin(server)

    def aggregate(self, server: Server, updates: Updates, policy: Policy, durations: Durations) -> None:
        weights = self.weights(server, updates.clients, policy, durations)
        server.step(updates, self.discounted(weights, updates.staleness))

    def weights(self, server: Server, clients: IntArray, policy: Policy, durations: Durations) -> FloatArray:
        """d_i of updates of these clients."""
        if self.weight_rule in ("naive", "learning_rate"):
            return self.closing.naive(server, clients)
        if self._measures(durations):
            return server.importance[clients] * self.gaps.inverse_rates(server.version, clients)
        return server.importance[clients] * self.inverse_rates(policy, durations)[clients]

    def _measures(self, durations: Durations) -> bool:
        """Whether d_i follows from what has arrived."""
        known = self.weight_rule != "measured" and durations.reliable and self.concurrency is None
        return self.weight_rule in ("unbiased", "measured") and not known

    def _foreseen(self, server: Server, policy: Policy, durations: Durations) -> bool:
        own = all(getattr(type(self), name) is getattr(AsyncFedAvg, name) for name in _FORESEEN)
        everybody = self.concurrency is None and self.max_staleness is None
        alike = self.closing.steady and self.weight_rule != "learning_rate" and not self._measures(durations)
        if not (own and everybody and alike):
            return False

        def weigh(clients: IntArray, staleness: IntArray) -> FloatArray:
            return self.discounted(self.weights(server, clients, policy, durations), staleness)

        work = self.work(server.population.ids, policy, durations, server.importance)
        return server.pass_rounds(policy, work, weigh)

    def inverse_rates(self, policy: Policy, durations: Durations) -> FloatArray:
        """`[N]` 1 / f_i."""
        if policy not in self._inverse_rates:
            self._inverse_rates = {policy: 1 / rates(policy, durations)}
        return self._inverse_rates[policy]

    def work(self, clients: IntArray, policy: Policy, durations: Durations, importance: FloatArray) -> LocalSGD:
        if self.weight_rule != "learning_rate":
            return super().work(clients, policy, durations, importance)
        factors = importance[clients] * self.inverse_rates(policy, durations)[clients]
        return self.local.bind({"lr": self.local.lr * factors})

    def own_optimiser(self) -> Step:
        return Step(self.server_lr)
