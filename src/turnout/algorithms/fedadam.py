"""FedAdam: Adam at the server, on the aggregated difference.

Reddi et al., "Adaptive federated optimization", ICLR 2021, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.aggregation.optimisers import Adam, Adaptive, Tau
from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Positive, Share


@dataclass
class FedAdam(FedAvg):
    """FedAvg with the `optimiser` adam: `v <- beta2 v + (1 - beta2) change^2; model <- model + server_lr m / (sqrt(v) +
    tau)`."""

    reads_updates = False
    of_part = FedAvg.of_part | {"optimiser": ("server_lr", "beta1", "beta2", "tau")}

    server_lr: Positive = 0.01  # how far the server goes
    beta1: Share = 0.9  # share that the mean of the changes keeps
    beta2: Share = 0.99  # share that the mean of the squared changes keeps
    tau: Tau = 1e-3  # what keeps the denominator from 0

    def own_optimiser(self) -> Adaptive:
        return Adam(self.server_lr, self.beta1, self.tau, self.beta2)
