"""Clustered sampling by similarity: clients whose updates point the same way share a row.

Fraboni, Vidal, Kameni, Lorenzi, "Clustered sampling: low-variance and improved representativity for clients selection
in federated learning", ICML 2021 (algorithm 3); Fraboni's thesis, section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from turnout.sampling._clusters import Allocation, Clustered, fill_rows, own_rows
from turnout.sampling._sampler import FloatArray, IntArray

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates


@dataclass
class ClusteredSimilarity(Clustered):
    """Rows follow a tree of the clients' last updates (zero until a client has answered), cut where a branch weighs no
    more than a row. The server sees individual updates: not for secure aggregation.

    `distance` is the angle between updates, or their l2 or l1 distance. `tree`: Ward's method over the clients' rows of
    distances (`profile`, as the authors ran it) or over the distances themselves (`condensed`).
    """

    distance: Literal["arccos", "l2", "l1"] = "arccos"  # of two updates
    tree: Literal["profile", "condensed"] = "profile"  # profile: over rows of distances; condensed: over distances
    seen: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [n, P] last update of each client
    lengths: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [n] of these
    distances: FloatArray = field(default_factory=lambda: np.zeros((0, 0)), init=False)  # [n, n]

    def observe(self, updates: Updates) -> None:
        """Remember what the clients sent, and how far it is from everybody else's."""
        if not len(updates) or not len(self.distances):  # before its first draw it remembers nothing
            return
        deltas = updates.deltas
        fine = torch.isfinite(deltas).all(dim=1)
        clients = updates.clients[fine.cpu().numpy()]
        if self.seen.shape[1] == 0:
            self.seen = deltas.new_zeros(len(self.distances), deltas.shape[1])
        self.seen[torch.as_tensor(clients, device=self.seen.device)] = deltas[fine]
        self.lengths[clients] = deltas[fine].norm(dim=1).double().cpu().numpy()
        rows = self._distances_to_all(clients)
        self.distances[clients] = rows
        self.distances[:, clients] = rows.T

    def _distances_to_all(self, clients: IntArray) -> FloatArray:
        """`[k, n]`; two clients that have said nothing are alike, one that has is at a right angle to them."""
        some = self.seen[torch.as_tensor(clients, device=self.seen.device)]
        if self.distance != "arccos":
            found = torch.cdist(some, self.seen, p=2.0 if self.distance == "l2" else 1.0)
            return np.asarray(found.double().cpu().numpy())
        products = (some @ self.seen.T).double().cpu().numpy()
        lengths = self.lengths
        scale = np.outer(lengths[clients], lengths)
        cosine = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
        angle = np.arccos(np.clip(cosine, -1, 1))
        angle[np.outer(lengths[clients] == 0, lengths == 0)] = 0
        angle[np.arange(len(clients)), clients] = 0
        return np.asarray(angle)

    def allocate(self, server: Server) -> Allocation:
        size = server.population.size
        if len(self.distances) != size:
            self.seen = torch.zeros(size, 0, device=server.model.device)
            self.lengths, self.distances = np.zeros(size), np.zeros((size, size))
        rank = self.ties(server)
        _, left = own_rows(server.importance, self.clients_per_round)
        clients = np.argsort(rank)
        clients = clients[left[clients] > 0]
        groups = self._branches(clients, left[clients]) if len(clients) > 1 else [clients] * len(clients)
        return fill_rows(server.importance, self.clients_per_round, groups, rank)

    def _branches(self, clients: IntArray, masses: FloatArray) -> list[IntArray]:
        """The branches of the clients' tree that weigh at most a row, from the root down."""
        from scipy.cluster.hierarchy import linkage, to_tree
        from scipy.spatial.distance import squareform

        between = self.distances[np.ix_(clients, clients)]
        if self.tree == "profile":
            squares = np.square(between).sum(1)
            between = np.sqrt(np.maximum(squares[:, None] + squares - 2 * between @ between.T, 0))
            np.fill_diagonal(between, 0)
        groups, waiting = [], [to_tree(linkage(squareform(between, checks=False), "ward"))]
        while waiting:
            node = waiting.pop()
            leaves = np.sort(node.pre_order())
            if len(leaves) > 1 and masses[leaves].sum() > 1 + 1e-9:
                waiting += filter(None, (node.left, node.right))
            else:
                groups.append(clients[leaves])
        return groups
