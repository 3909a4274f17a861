"""FedAvgM: FedAvg with momentum at the server.

Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual classification", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.aggregation.optimisers import Beta, Momentum
from turnout.algorithms.fedavg import FedAvg


@dataclass
class FedAvgM(FedAvg):
    """`v <- beta v + change; model <- model + server_lr v`."""

    reads_updates = False
    of_part = FedAvg.of_part | {"optimiser": ("server_lr", "beta")}

    beta: Beta = 0.9  # share of its speed that the model keeps

    def own_optimiser(self) -> Momentum:
        return Momentum(self.server_lr, self.beta)
