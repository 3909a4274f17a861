"""IFCA: as many models as there are clusters, and clients that find out by themselves which one is theirs.

Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020, algorithm 1
(model averaging).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Count
from turnout.local.clusters import ClusterModel, ClusterSGD
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import FloatArray, IntArray, Selection
from turnout.server.server import ModelChoice, Server
from turnout.server.updates import Updates


@dataclass
class IFCA(FedAvg):
    """Clients are sent all `clusters` models and train the one of the least loss on their samples. The server moves
    each by the weighted mean of what its clients changed; one that nobody chose stays. A client, also one never seen,
    serves the model of the least loss on its training samples. The server's own model is the mean of all.
    """

    cannot = dict.fromkeys(("weigh", "remember", "optimiser", "serve"), "has as many models as clusters")
    trains = ClusterSGD
    no_use_for = ("normalise",)

    clusters: Count = 2  # models that clients choose from
    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [clusters, P]

    def begin(self, server: Server) -> None:
        self.models = server.task.initials(self.clusters)
        server.model = self.models.mean(0)

    def invitation(self, server: Server, clients: IntArray) -> tuple[LocalSGD, ModelChoice]:
        return ClusterSGD.extend(self.local, models=self.models), server.model

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        updates = server.finite(updates)
        weights = self.weights(server, updates, chosen)
        if len(updates):
            mine = updates["cluster"].long().cpu().numpy()
            weights = weights / np.maximum(np.bincount(mine, weights), np.finfo(float).tiny)[mine]
            shares = np.zeros((self.clusters, len(updates)))
            shares[mine, np.arange(len(updates))] = self.server_lr * weights
            self.models = self.models + self._moved(server, updates, shares)
        if server.law.rule is None:
            server.step(updates, weights / self.clusters)
        else:
            server.publish(self.models.mean(0), updates, weights / self.clusters)

    def _moved(self, server: Server, updates: Updates, shares: FloatArray) -> Tensor:
        """`[clusters, P]` weighted sums of updates by shares `[clusters, k]`, or what the rule makes of them."""
        if server.law.rule is None:
            return torch.as_tensor(shares).to(self.models) @ updates.deltas
        moved = torch.zeros_like(self.models)
        for cluster in np.flatnonzero(shares.any(1)).tolist():
            mine = shares[cluster] != 0
            moved[cluster] = server.combined(updates.deltas[mine], shares[cluster, mine], group=cluster)
        return moved

    def adaptation(self, unseen: bool) -> ClusterModel | None:
        return ClusterModel(models=self.models) if len(self.models) else None
