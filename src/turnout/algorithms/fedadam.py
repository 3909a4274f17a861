"""FedAdam: Adam at the server, on the aggregated difference.

Reddi et al., "Adaptive federated optimization", ICLR 2021, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnout.aggregation.optimisers import Adaptive, Gradient
from turnout.algorithms.fedavg import FedAvg


@dataclass
class FedAdam(FedAvg):
    """`v <- beta2 v + (1 - beta2) change^2; model <- model + server_lr m / (sqrt(v) + tau)`."""

    reads_updates: ClassVar[bool] = False

    second: ClassVar[str] = "adam"

    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def optimiser(self) -> Gradient:
        return Adaptive(self.server_lr, self.beta1, self.beta2, self.tau, self.second)
