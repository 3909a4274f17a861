"""FedAvg+: a global model, fine-tuned by every client on its own data before it is used.

Jiang, Konečný, Rush, Kannan, "Improving federated learning personalization via model agnostic meta learning", 2019;
named FedAvg+ in Marfoq's thesis (sections 3.5.4 and 3.6.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedavg import FedAvg
from turnout.errors import UserError
from turnout.local.own import OwnModelSGD


@dataclass
class FedAvgPlus(FedAvg):
    """Trains as FedAvg. A client, also one that never trained, serves the model it gets by `tuning_epochs` passes of
    its local work from the global one."""

    tuning_epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tuning_epochs < 1:
            raise UserError(f"algorithm.tuning_epochs: {self.tuning_epochs} must be at least 1")

    def adaptation(self, unseen: bool) -> OwnModelSGD:
        return OwnModelSGD.extend(self.local).bind({"epochs": self.tuning_epochs, "steps": None})
