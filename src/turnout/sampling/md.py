"""Multinomial (MD) sampling.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020 (scheme I); Fraboni's thesis, section 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core.allowed import Count
from turnout.core.errors import check_room
from turnout.sampling._sampler import DEFAULT_SIZE, IntArray, Moments, Sampler, Selection, in_proportion

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class MD(Sampler):
    """m draws with replacement, P(l_k = i) = p_i; omega_i = #{k : l_k = i} / m. Unbiased, and the weights sum to 1.

    A client drawn twice trains once and counts twice. Draws of clients that are offline are drawn again.
    """

    looks_at_data = False

    clients_per_round: Count = DEFAULT_SIZE  # draws of a round

    def moments(self, server: Server) -> Moments:
        importance = server.importance
        m = self.clients_per_round
        return importance, importance * (1 - importance) / m, 1 - (1 - importance) ** m, 0.0, 1 / m

    def sample(self, server: Server) -> Selection:
        m = self.clients_per_round
        check_room(f"sampler.clients_per_round: {m} draws", 8 * m)
        online, tried = server.online(), m
        while True:
            draws = self._draw(server, np.arange(server.population.size), tried)
            draws = draws[online.contains(draws)][:m]
            if len(draws) == m:
                break
            tried *= 4
            if tried > 64 * m + server.population.size:  # hardly anybody is there: draw from those
                draws = self._draw(server, online.ids, m)
                break
        clients, times = np.unique(draws, return_counts=True)
        return Selection(clients, times / max(1, len(draws)))

    def _draw(self, server: Server, ids: IntArray, count: int) -> IntArray:
        """Draws with probability proportional to importance."""
        importance = server.importance[ids]
        if not importance.any():
            return np.zeros(0, np.int64)
        drawn: IntArray = ids[in_proportion(self.key(server), importance, count)]
        return drawn
