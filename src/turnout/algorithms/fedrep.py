"""FedRep: a representation learnt together, and a head that every client fits to it before it improves it.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized federated learning", ICML
2021, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedper import FedPer
from turnout.core.errors import UserError
from turnout.local.head import HeadSGD


@dataclass
class FedRep(FedPer):
    """FedPer whose clients take turns: `head_epochs` passes train the head on the body received, then the local work
    trains the body under that head. A client never seen trains a head as long."""

    reads_updates = False

    tuning_epochs: int = 10  # passes in which a client never seen trains a head
    head_epochs: int = 10  # passes over the head before the body is trained

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_epochs < 0:
            raise UserError(f"algorithm.head_epochs: {self.head_epochs} must be at least 0")

    def own_work(self) -> HeadSGD:
        return HeadSGD.extend(self.local, head=self.head, head_epochs=self.head_epochs, joint=False)
