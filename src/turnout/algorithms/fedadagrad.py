"""FedAdagrad: Adagrad at the server. Reddi et al., "Adaptive federated optimization", ICLR 2021, algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.aggregation.optimisers import Adagrad
from turnout.algorithms.fedadam import FedAdam
from turnout.core.allowed import Share


@dataclass
class FedAdagrad(FedAdam):
    """`v <- v + change^2`, the rest as FedAdam; Adagrad has no first moment, so beta1 is 0, and forgets nothing, so
    there is no beta2."""

    reads_updates = False

    no_use_for = ("beta2",)

    beta1: Share = 0.0  # share that the mean of the changes keeps

    def own_optimiser(self) -> Adagrad:
        return Adagrad(self.server_lr, self.beta1, tau=self.tau)
