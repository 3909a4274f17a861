"""Who is invited, and with which weight: what every sampling scheme returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turnout import random
from turnout.errors import UserError

if TYPE_CHECKING:
    from turnout.server.server import Server

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Selection:
    """Distinct clients and the weight omega_i each contribution has if it arrives."""

    clients: IntArray
    weights: FloatArray

    def weights_of(self, clients: IntArray) -> FloatArray:
        """The weights of those who answered, in their order."""
        order = np.argsort(self.clients)
        return self.weights[order[np.searchsorted(self.clients, clients, sorter=order)]]


@dataclass
class Sampler:
    """Draws are keyed by (seed, round): a scheme has no hidden state, and a resumed run draws the same."""

    def sample(self, server: Server) -> Selection:
        raise NotImplementedError

    @staticmethod
    def key(server: Server) -> IntArray:
        return random.key(server.seed, "sampling", server.version)


@dataclass
class Subset(Sampler):
    """A uniformly drawn subset of `clients_per_round` (m) of the n clients that matter; subclasses weigh it."""

    clients_per_round: int = 10

    def sample(self, server: Server) -> Selection:
        m, everybody = self.clients_per_round, int(np.count_nonzero(server.population.base_importance))
        if not 1 <= m <= everybody:
            raise UserError(f"sampler.clients_per_round: {m} must be from 1 to the {everybody} clients")
        clients = server.online().sample(m, self.key(server))
        return Selection(clients, self.weigh(server.importance[clients], int(np.count_nonzero(server.importance))))

    def weigh(self, importance: FloatArray, candidates: int) -> FloatArray:
        """Weights of the drawn clients, from their importance and n."""
        raise NotImplementedError
