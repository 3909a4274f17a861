"""FedRep: a representation learnt together, and a head that every client fits to it before it improves it.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized federated learning", ICML
2021, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedper import FedPer
from turnout.core.allowed import Count, WholeNumber
from turnout.local.head import HeadSGD


@dataclass
class FedRep(FedPer):
    """FedPer whose clients take turns: `head_epochs` passes train the head on the body received, then the local work
    trains the body under that head. A client never seen trains a head as long."""

    reads_updates = False

    tuning_epochs: Count = 10  # passes in which a client never seen trains a head
    head_epochs: WholeNumber = 10  # passes over the head before the body is trained

    def own_work(self) -> HeadSGD:
        return HeadSGD.extend(self.local, head=self.head, head_epochs=self.head_epochs, joint=False)
