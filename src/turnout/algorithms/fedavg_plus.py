"""FedAvg+: a global model, fine-tuned by every client on its own data before it is used.

Jiang, Konečný, Rush, Kannan, "Improving federated learning personalization via model agnostic meta learning", 2019;
named FedAvg+ in Marfoq's thesis (sections 3.5.4 and 3.6.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Count
from turnout.local.own import OwnModelSGD
from turnout.local.serving import FineTuned


@dataclass
class FedAvgPlus(FedAvg):
    """Trains as FedAvg. A client, also one that never trained, serves the model it gets by `tuning_epochs` passes of
    its local work from the global one."""

    reads_updates = False
    trains = OwnModelSGD
    of_part = FedAvg.of_part | {"serve": ("tuning_epochs",)}
    given_as = FedAvg.given_as | {"serve.epochs": "algorithm.tuning_epochs"}

    tuning_epochs: Count = 1  # passes in which a client makes itself a model before it serves

    def own_serve(self) -> FineTuned:
        return FineTuned(self.tuning_epochs)
