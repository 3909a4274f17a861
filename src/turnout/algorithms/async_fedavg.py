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
        server.step(updates, self.discounted(self.weights(server, updates, policy, durations), updates))

    def weights(self, server: Server, updates: Updates, policy: Policy, durations: Durations) -> FloatArray:
        """d_i of each update."""
        if self.weight_rule in ("naive", "learning_rate"):
            return self.closing.naive(server, updates)
        clients = updates.clients
        if self.weight_rule == "measured" or not durations.reliable or self.concurrency is not None:
            return server.importance[clients] * self.gaps.inverse_rates(server.version, clients)
        return server.importance[clients] * self.inverse_rates(policy, durations)[clients]

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
