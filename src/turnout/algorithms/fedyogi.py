"""FedYogi: Yogi at the server. Reddi et al., "Adaptive federated optimization", ICLR 2021, algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.aggregation.optimisers import Yogi
from turnout.algorithms.fedadam import FedAdam


@dataclass
class FedYogi(FedAdam):
    """`v <- v - (1 - beta2) change^2 sign(v - change^2)`, the rest as FedAdam."""

    reads_updates = False

    def own_optimiser(self) -> Yogi:
        return Yogi(self.server_lr, self.beta1, self.tau, self.beta2)
