"""FedEM: the clients learn a few models together, and each the weights with which it averages what they say.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021,
algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from turnout.algorithms._mixtures import Mixtures
from turnout.algorithms.fedavg import FedAvg
from turnout.local.mixture import MixtureSGD
from turnout.sampling._sampler import Sampler, Selection
from turnout.sampling.renormalised import Renormalised
from turnout.server.durations import Durations
from turnout.server.policy import Policy
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class FedEM(Mixtures, FedAvg):
    """Each round an invited client finds out how likely every component is to have made each of its samples (q), takes
    the mean of q for its weights pi, and trains all components from those received, sample i counting q[i, m] for
    component m. The server averages every component as FedAvg does its model; one component is FedAvg.

    The published runs let absent clients count as the unchanged model, which is the sampler `fill`. For the options see
    `Mixtures` and `FedAvg`.
    """

    reads_updates: ClassVar[bool] = False

    sampler: Sampler = field(default_factory=Renormalised)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()

    def work(self, server: Server) -> MixtureSGD:
        return self.predictor()

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        super().aggregate(server, updates, chosen)
        self.take_note(server, updates)

    def policy(self, durations: Durations, version: int = 0) -> Policy | None:
        return super().policy(durations, version) if self.components == 1 else None  # its work takes longer
