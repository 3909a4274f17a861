"""Multinomial (MD) sampling.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020 (scheme I); Fraboni's thesis, section 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout import random
from turnout.errors import UserError
from turnout.sampling.sampler import Sampler, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class MD(Sampler):
    """m draws with replacement, P(l_k = i) = p_i; omega_i = #{k : l_k = i} / m. Unbiased, and the weights sum to 1.

    A client drawn twice trains once and counts twice. Draws of clients that are offline are drawn again.
    """

    clients_per_round: int = 10

    def sample(self, server: Server) -> Selection:
        m = self.clients_per_round
        if m < 1:
            raise UserError(f"sampler.clients_per_round: {m} must be at least 1")
        edges, online, tried = np.cumsum(server.importance), server.online(), m
        if not edges[-1] > 0:
            return Selection(np.zeros(0, np.int64), np.zeros(0))
        while True:
            u = random.uniform(self.key(server), tried)
            draws = np.searchsorted(edges, u * edges[-1], side="right")
            draws = draws[online.contains(draws)][:m]
            if len(draws) == m or tried > 64 * len(edges):
                break
            tried *= 4
        clients, times = np.unique(draws, return_counts=True)
        return Selection(clients, times / max(1, len(draws)))
