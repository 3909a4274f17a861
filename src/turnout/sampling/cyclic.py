"""Clients in turn: in every round the next ones, in the order of their ids.

Cho, Sharma, Joshi, Xu, Kale, Zhang, "On the convergence of federated averaging with cyclic client participation", ICML
2023. With one client a round and a model of members it is cyclic boosting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core.allowed import Count
from turnout.sampling._sampler import Moments, Selection, Subset
from turnout.sampling.uniform import Uniform

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class Cyclic(Subset):
    """omega_i = (n / m) p_i for the m clients whose turn it is; each has m turns in n rounds: p_i on average.
    Whoever is offline misses its turn."""

    looks_at_data = False

    clients_per_round: Count | None = 1  # clients whose turn it is; none: ten, or as many as there are

    def moments(self, server: Server) -> Moments:
        """Those of a round at any time: each client has a turn as often as a uniform draw takes it."""
        m, matter = self.size(server.population), np.flatnonzero(server.importance)
        mean, variance, inclusion, _, _ = Uniform(m).moments(server)
        weights = server.importance[matter] * len(matter) / m
        turns = (np.arange(len(matter))[:, None] * m + np.arange(m)) % len(matter)
        return mean, variance, inclusion, float(weights[turns].sum(1).var()), None

    def sample(self, server: Server) -> Selection:
        m, matter = self.size(server.population), np.flatnonzero(server.importance)
        m = min(m, len(matter))  # some may be no members now
        clients = matter[(server.version * m + np.arange(m)) % max(1, len(matter))]
        clients = clients[server.online().contains(clients)]
        return Selection(clients, server.importance[clients] * len(matter) / max(1, m))
