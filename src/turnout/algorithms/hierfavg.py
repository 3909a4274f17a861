"""HierFAVG: edges average their clients in every round, the cloud averages the edges in every tenth.

Liu, Zhang, Song, Letaief, "Client-edge-cloud hierarchical federated learning", ICC 2020; as the baseline of Wu et al.,
HybridFL (IEEE Transactions on Parallel and Distributed Systems 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from turnout.algorithms._regional import Regional
from turnout.core.allowed import Count
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout.theory.slack import woken


@dataclass
class HierFAVG(Regional):
    """Each region draws ceil(`fraction` N_r) clients, which start from its own model, and waits for all of them or the
    deadline: w_r <- sum_k n_k w_k / sum_k n_k over those that answered, or, with `idle_fallback` regional, over all its
    clients, those that did not as its last model. In every `cloud_interval`-th round (kappa_2)
    w <- sum_r |D_r| / |D| w_r, and the regions go on from it: only that takes the time from edges to cloud and back.

    The model evaluated after any other round is the same average, which nobody has been sent.
    """

    cannot = Regional.cannot | {"optimiser": "has a model of its own in every region; nobody starts from their average"}
    cloud_interval: Count = 10  # rounds of the edges for one of the cloud
    idle_fallback: Literal["none", "regional"] = "none"  # regional: who is silent counts as its region's last model

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
        self.take_in(server, updates, shares, 1 - covered / counted, self.models)
        if not len(updates):
            server.log("empty_round")
        model = self.over_regions(whole) if whole.any() else server.model
        server.publish(model, updates, whole[region] * shares)
