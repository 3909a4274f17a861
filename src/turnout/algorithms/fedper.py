"""FedPer: a shared body, and a head that every client keeps to itself.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms._personalised import Personalised
from turnout.local.head import HeadSGD


@dataclass
class FedPer(Personalised):
    """Clients train body and head together, and only the body is sent and averaged. `head` names the layers that make
    up the head, with commas between; without, it is the last fully connected one. A client never seen trains a head on
    the body as it is.
    """

    reads_updates = False
    trains = HeadSGD

    head: str = ""  # layers of the head, with commas between; "": the last fully connected one

    def own_work(self) -> HeadSGD:
        return HeadSGD.extend(self.local, head=self.head)

    def adaptation(self, unseen: bool) -> HeadSGD | None:
        if not unseen:
            return None
        return HeadSGD.extend(self.local, head=self.head, head_epochs=self.tuning_epochs).bind(
            {"epochs": 0, "steps": None}
        )
