"""What hierarchical methods share: clients in regions, each with an edge and a model of its own, below one cloud."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from turnout.algorithms._algorithm import Algorithm, expected_deadline
from turnout.core import random
from turnout.core.allowed import Fraction, Seconds
from turnout.core.random import FloatArray, IntArray
from turnout.local.sgd import LocalSGD
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class Regional(Algorithm):
    """An edge draws uniformly among all its clients: it cannot know who is there, at work or dead. Whoever does not
    answer within `deadline` seconds after the models are out is not waited for; unless given, that is what the slowest
    client is expected to need. Without regions there is one edge."""

    cannot: ClassVar[dict[str, str]] = {
        "weigh": "averages models in regions, by their samples",
        "remember": "averages models in regions",
    }

    local: LocalSGD
    deadline: Seconds | None = None  # after the models are out, in seconds; none: what the slowest is expected to need
    fraction: Fraction = 0.3  # share of an edge's clients that is selected
    chosen_deadline: float | None = field(default=None, init=False)  # where none was given
    region: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N]
    names: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [M] as the population has them
    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [M, P]

    def begin(self, server: Server) -> None:
        if self.deadline is None:
            self.chosen_deadline = expected_deadline(server, self.local, lambda each: float(each.max()))
        given = server.population.regions
        one = np.zeros(server.population.size, np.int64)
        self.names, self.region = np.unique(one if given is None else given, return_inverse=True)
        self.models = server.model.repeat(len(self.names), 1)
        for region in np.setdiff1d(np.arange(self.names[-1]), self.names).tolist():
            server.log("empty_region", region=region, why="no client belongs to it")

    def sizes(self, server: Server) -> IntArray:
        """`[M]` N_r: clients that matter."""
        return np.bincount(self.region[server.importance > 0], minlength=len(self.models))

    def samples(self, server: Server) -> FloatArray:
        """`[M]` |D_r|, as a share of all."""
        return np.asarray(np.bincount(self.region, server.importance, minlength=len(self.models)), np.float64)

    def draw(self, server: Server, counts: IntArray) -> IntArray:
        """So many clients of each region, uniformly."""
        members = np.flatnonzero(server.importance > 0)
        members = members[np.argsort(self.region[members], kind="stable")]
        ends = np.cumsum(self.sizes(server))
        drawn = [
            clients[random.subset(random.key(server.seed, "regions", server.version, number), count, len(clients))]
            for number, (clients, count) in enumerate(zip(np.split(members, ends[:-1]), counts.tolist(), strict=True))
        ]
        return np.concatenate(drawn)

    def gather(self, server: Server, selected: IntArray, enough: int) -> Updates:
        """What arrives until there is enough. If there never is, the round lasts to its deadline."""
        limit = self.limit(server, selected)
        close = server.now + limit
        updates = server.wait(enough, of=selected, seconds=limit)
        if len(updates) < enough:
            server.wait(of=[], seconds=max(0.0, close - server.now))
        return updates

    def limit(self, server: Server, selected: IntArray) -> float:
        """Seconds from the invitation to the deadline."""
        return (self.time_limit or 0.0) + server.push_seconds(len(selected), self.local)

    def reach_cloud(self, server: Server) -> None:
        """Let the models of all edges go to the cloud, and its own back: T_c2e2c."""
        server.wait(of=[], seconds=server.backhaul_seconds(len(self.models), self.local))

    def take_in(self, server: Server, updates: Updates, shares: FloatArray, idle: FloatArray, before: Tensor) -> None:
        """Let each region's model be a weighted sum of those that its clients returned, by their shares, or what the
        rule makes of them, and of the one `before`, by what is idle of it `[M]`."""
        submitted = self._ruled(server, updates, shares) if server.law.rule else self._summed(updates, shares)
        self.models = submitted + torch.as_tensor(idle).to(self.models)[:, None] * before

    def _summed(self, updates: Updates, shares: FloatArray) -> Tensor:
        rows = np.zeros((len(self.models), len(updates)))
        rows[self.region[updates.clients], np.arange(len(updates))] = shares
        return torch.as_tensor(rows).to(self.models) @ updates.returned()

    def _ruled(self, server: Server, updates: Updates, shares: FloatArray) -> Tensor:
        sums, region = torch.zeros_like(self.models), self.region[updates.clients]
        for number in np.unique(region).tolist():
            mine = updates.select(region == number)
            around = mine.received()[0]  # the same for all of a region
            sums[number] = server.combined(mine.returned(), shares[region == number], around, number)
        return sums

    def over_regions(self, weights: FloatArray) -> Tensor:
        """`[P]` weighted sum of the regional models."""
        total: Tensor = torch.tensordot(torch.as_tensor(weights).to(self.models), self.models, dims=1)
        return total
