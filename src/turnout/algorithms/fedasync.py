"""FedAsync: mix each client's model into the global one the moment it arrives, less if it is stale.

Xie, Koyejo, Gupta, "Asynchronous federated optimization", 2019 (algorithm 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from turnout.algorithms._arrivals import Arrivals
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.local.modifiers import Proximal
from turnout.local.sgd import LocalSGD
from turnout.server.durations import Durations
from turnout.server.policy import Policy
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class FedAsync(Arrivals):
    """`model <- (1 - a) model + a returned_i` with a = mixing * s(staleness); clients minimise
    L_i(theta) + mu/2 |theta - received|^2.

    Fast clients count more often: the audit shows by how much. The paper's s is `staleness_discount = polynomial` with
    `discount_rate` 0.5, or `hinge` with 10 from 4.
    """

    cannot: ClassVar[dict[str, str]] = {
        "weigh": "mixes models one by one",
        "remember": "mixes models one by one",
        "rule": "mixes models one by one",
    }
    mixing: float = 0.6  # share of a client's model in the mixture, before its staleness counts
    mu: float = 0.0  # strength of the proximal term
    staleness_discount: str = "polynomial"  # none, polynomial or hinge: how it shrinks with staleness

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mixing <= 1:
            raise UserError(f"algorithm.mixing: {self.mixing} must be above 0 and at most 1")
        if not 0 <= self.mu < math.inf:
            raise UserError(f"algorithm.mu: {self.mu} must be at least 0")

    def aggregate(self, server: Server, updates: Updates, policy: Policy, durations: Durations) -> None:
        updates = server.finite(updates)
        if not len(updates):
            server.step(updates, [])
            return
        weights = self.discounted(np.full(len(updates), self.mixing), updates)
        model = server.model
        for weight, returned in zip(weights.tolist(), updates.returned(), strict=True):
            model = torch.lerp(model, returned, weight)
        server.publish(model, updates, weights)

    def work(self, clients: IntArray, policy: Policy, durations: Durations, importance: FloatArray) -> LocalSGD:
        return self.local.modified(Proximal(self.mu)) if self.mu else self.local
