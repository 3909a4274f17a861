"""HierFAVG: edges average their clients in every round, the cloud averages the edges in every tenth.

Liu, Zhang, Song, Letaief, "Client-edge-cloud hierarchical federated learning", ICC 2020; as the baseline of Wu et al.,
HybridFL (IEEE Transactions on Parallel and Distributed Systems 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from turnout.algorithms._regional import Regional
from turnout.core.errors import check_positive, unknown
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout.theory.slack import woken

FALLBACKS = ("none", "regional")


@dataclass
class HierFAVG(Regional):
    """Each region draws ceil(`fraction` N_r) clients, which start from its own model, and waits for all of them or the
    deadline: w_r <- sum_k n_k w_k / sum_k n_k over those that answered, or, with `idle_fallback` regional, over all its
    clients, those that did not as its last model. In every `cloud_interval`-th round (kappa_2)
    w <- sum_r |D_r| / |D| w_r, and the regions go on from it: only that takes the time from edges to cloud and back.

    The model evaluated after any other round is the same average, which nobody has been sent.
    """

    cannot: ClassVar[dict[str, str]] = {
        "weigh": "averages models in regions, by their samples",
        "remember": "averages models in regions",
        "optimiser": "has a model of its own in every region; nobody starts from their average",
    }
    cloud_interval: int = 10  # rounds of the edges for one of the cloud
    idle_fallback: str = "none"  # none: who is silent does not count; regional: it counts as its region's last model

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("algorithm.cloud_interval", self.cloud_interval)
        if self.idle_fallback not in FALLBACKS:
            raise unknown("algorithm.idle_fallback", self.idle_fallback, FALLBACKS)

    def run(self, server: Server) -> None:
        for number in server.rounds():
            selected = self.draw(server, woken(self.fraction, np.ones(len(self.models)), self.sizes(server)))
            server.invite(selected, self.local, (self.models, self.region[selected]))
            updates = self.gather(server, selected, max(1, len(selected)))
            server.cancel(selected)
            cloud = (number + 1) % self.cloud_interval == 0
            if cloud:
                self.reach_cloud(server)
            self.aggregate(server, server.finite(updates))
            if cloud:
                self.models = server.model.repeat(len(self.models), 1)

    def aggregate(self, server: Server, updates: Updates) -> None:
        samples, region = server.importance[updates.clients], self.region[updates.clients]
        covered = np.bincount(region, samples, minlength=len(self.models))
        whole = self.samples(server)
        counted = whole if self.idle_fallback == "regional" else covered
        counted = np.where(covered > 0, counted, 1)
        shares = samples / counted[region]
        idle = torch.as_tensor(1 - covered / counted).to(self.models)[:, None]
        self.models = self.by_region(server, updates, shares) + idle * self.models
        if not len(updates):
            server.log("empty_round")
        model = self.over_regions(whole) if whole.any() else server.model
        server.publish(model, updates, whole[region] * shares)
