"""FedAvg+: a global model, fine-tuned by every client on its own data before it is used.

Jiang, Konečný, Rush, Kannan, "Improving federated learning personalization via model agnostic meta learning", 2019;
named FedAvg+ in Marfoq's thesis (sections 3.5.4 and 3.6.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnout.algorithms._personalised import Personalised
from turnout.local.own import OwnModelSGD
from turnout.local.sgd import LocalSGD


@dataclass
class FedAvgPlus(Personalised):
    """Trains as FedAvg. A client, also one that never trained, serves the model it gets by `tuning_epochs` passes of
    its local work from the global one."""

    reads_updates: ClassVar[bool] = False
    trains: ClassVar[type[LocalSGD] | None] = OwnModelSGD

    def adaptation(self, unseen: bool) -> OwnModelSGD:
        return OwnModelSGD.extend(self.tuning)
