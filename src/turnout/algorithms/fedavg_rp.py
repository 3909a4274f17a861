"""FedAvg-RP: some clients' models, rescaled to stand for everybody's.

Li et al., "On the convergence of FedAvg on non-iid data", ICLR 2020 (scheme II), as the baseline of FedProf in Wu's
thesis (Warwick), section 5.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from turnout.algorithms.fedavg import FedAvg, Normalise
from turnout.sampling._sampler import Selection
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class FedAvgRP(FedAvg):
    """`model <- (N / K) sum_k p_k returned_k`: the weights of `uniform`, on models rather than on differences. They sum
    to 1 only on average, so clients of unequal size **rescale the model itself**; FedAvg with `uniform` does not.
    `server_lr` is the share of the way taken; the weight of a silent client goes to those who answer."""

    cannot = {
        "weigh": "has weights for models, not for updates",
        "remember": "averages models, not updates",
    }
    normalise: Normalise = "responders"  # responders: the weight of the silent goes to the others; invited: it is lost

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        updates = server.finite(updates)
        if not len(updates):
            server.log("empty_round")
            server.publish(server.model, updates, [])
            return
        weights = self.weights(server, updates, chosen)
        target = server.combined(updates.returned(), weights, around=server.model)
        server.publish(torch.lerp(server.model, target, self.server_lr), updates, weights)
