"""Clustered federated learning: where clients pull apart at a stationary point, they are split in two, again and again.

Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed multi-task optimization under privacy
constraints", IEEE TNNLS 2021, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Positive
from turnout.core.errors import UserError
from turnout.local.clusters import ClusterModel
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import FloatArray, IntArray, Sampler, Selection
from turnout.sampling.full import Full
from turnout.server.server import ModelChoice, Server
from turnout.server.updates import Updates


@dataclass
class ClusteredFL(FedAvg):
    """FedAvg in every cluster, at first one of all clients. A cluster of more than two is split once the mean of its
    updates is shorter than `tol_1` and one of them longer than `tol_2`, into the two branches of their tree by complete
    linkage of cosine distances; in a round in which one of its members is silent, it is not. A client never seen serves
    the model of the least loss on its samples; one that joins later begins in the first cluster. The server's own model
    is the mean over all clients.
    """

    cannot = dict.fromkeys(("weigh", "remember", "optimiser", "serve", "held"), "has as many models as clusters")
    sampler: Sampler = field(default_factory=Full, init=False)
    tol_1: Positive = 0.4  # norm: a cluster is split once its mean update is shorter
    tol_2: Positive = 1.6  # norm: and one of its updates is longer
    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [C, P]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wait_for is not None:
            raise UserError("algorithm.wait_for: everybody must be heard to tell clusters apart; leave it out")

    def begin(self, server: Server) -> None:
        self.models = server.model[None].clone()

    def clusters(self, server: Server) -> IntArray:
        """`[N]` the cluster each client is in."""
        shapes = ClusterModel().state_shapes(server.task)
        found: IntArray = server.store.get(shapes, server.population.ids)["cluster"].long().cpu().numpy()
        return found

    def invitation(self, server: Server, clients: IntArray) -> tuple[LocalSGD, ModelChoice]:
        return self.local, (self.models, self.clusters(server)[clients])

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        updates = server.finite(updates)
        for cluster in range(len(self.models)):
            self.split(server, cluster, updates)
        clusters, weights = self.clusters(server), np.zeros(len(updates))
        models = self.models.clone()
        for cluster in np.unique(clusters[updates.clients]).tolist():
            rows, invited = clusters[updates.clients] == cluster, clusters[chosen.clients] == cluster
            mine, among = updates.select(rows), Selection(chosen.clients[invited], chosen.weights[invited])
            weights[rows] = self.weights(server, mine, among)
            mass = float(server.importance[clusters == cluster].sum())
            models[cluster] += self.server_lr / mass * self._moved(server, mine, weights[rows], cluster)
        self.models = models
        if server.law.rule is None:
            server.step(updates, weights)
        else:
            masses = np.bincount(clusters, server.importance, minlength=len(models))
            server.publish(torch.as_tensor(masses).to(models) @ models, updates, weights)

    @staticmethod
    def _moved(server: Server, updates: Updates, weights: FloatArray, cluster: int) -> Tensor:
        """`[P]` the weighted sum of a cluster's updates, or what the rule makes of them."""
        if server.law.rule is None:
            return updates.weighted_sum(weights)
        return server.combined(updates.deltas, weights, group=cluster)

    def split(self, server: Server, cluster: int, updates: Updates) -> None:
        """Where it is due, give the branch without the first client a model of its own."""
        members = np.flatnonzero((self.clusters(server) == cluster) & (server.importance > 0))
        rows = np.flatnonzero(np.isin(updates.clients, members))
        if len(rows) < max(3, len(members)):
            return
        rows = rows[np.argsort(updates.clients[rows])]
        products = updates.select(rows).gram().double().cpu().numpy()
        lengths, p = np.sqrt(np.diag(products)), server.importance[members] / server.importance[members].sum()
        if np.sqrt(max(0.0, p @ products @ p)) >= self.tol_1 or lengths.max() <= self.tol_2:
            return
        branch = bipartition(products)
        if (branch != branch[0]).any():
            moved = members[branch != branch[0]]
            server.store.put(moved, {"cluster": torch.full((len(moved),), float(len(self.models)))})
            self.models = torch.cat([self.models, self.models[cluster : cluster + 1]])
            server.log("split", cluster=cluster, into=len(self.models) - 1, clients=moved.tolist())

    def predictor(self) -> ClusterModel | None:
        return ClusterModel(models=self.models) if len(self.models) else None

    def adaptation(self, unseen: bool) -> ClusterModel | None:
        return self.predictor() if unseen else None


def bipartition(products: FloatArray) -> IntArray:
    """`[k]` the branch, 1 or 2, of each update in the tree of their cosine distances, from inner products `[k, k]`."""
    lengths = np.sqrt(np.diag(products))
    scale = np.outer(lengths, lengths)
    distance = 1 - np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance.clip(0), checks=False), "complete")
    return np.asarray(fcluster(tree, 2, "maxclust"), np.int64)
