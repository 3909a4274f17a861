"""FedAsync: mix each client's model into the global one the moment it arrives, less if it is stale.

Xie, Koyejo, Gupta, "Asynchronous federated optimization", 2019 (algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from turnout.aggregation.staleness import Discount
from turnout.algorithms._arrivals import Arrivals
from turnout.core.allowed import Finite, Fraction
from turnout.local.modifiers import Modifier, Proximal
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

    cannot = dict.fromkeys(("weigh", "remember", "rule"), "mixes models one by one")

    mixing: Fraction = 0.6  # share of a client's model in the mixture, before its staleness counts
    mu: Finite = 0.0  # strength of the proximal term
    staleness_discount: Discount = "polynomial"  # how it shrinks with staleness

    def aggregate(self, server: Server, updates: Updates, policy: Policy, durations: Durations) -> None:
        updates = server.finite(updates)
        if not len(updates):
            server.step(updates, [])
            return
        weights = self.discounted(np.full(len(updates), self.mixing), updates.staleness)
        model = server.model
        for weight, returned in zip(weights.tolist(), updates.returned(), strict=True):
            model = torch.lerp(model, returned, weight)
        server.publish(model, updates, weights)

    def own_modifiers(self) -> tuple[Modifier, ...]:
        return (Proximal(self.mu),) if self.mu else ()
