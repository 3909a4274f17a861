"""What algorithms share whose clients each serve a model of their own."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Count
from turnout.local.sgd import LocalSGD


@dataclass
class Personalised(FedAvg):
    """FedAvg with another local work. A client that never trained makes itself a model from the global one, which it
    does not change, in `tuning_epochs` passes before it serves."""

    tuning_epochs: Count = 1  # passes in which a client never seen makes itself a model

    @property
    def tuning(self) -> LocalSGD:
        """How much a client trains before it serves."""
        return self.local.bind({"epochs": self.tuning_epochs, "steps": None})
