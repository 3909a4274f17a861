"""F3AST: of those online, the clients that have been there least.

Ribero, Vikalo, de Veciana, "Federated learning under intermittent client availability and time-varying communication
constraints", IEEE JSTSP 2023; as a baseline in Marfoq's thesis, section 2.2.6.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from turnout.core.allowed import Count, Fraction
from turnout.sampling._presence import Presence
from turnout.sampling._sampler import DEFAULT_SIZE, FloatArray, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class F3AST(Presence):
    """r_k <- (1 - beta) r_k + beta 1{k online}; of those online the `clients_per_round` with the largest
    (alpha_k / r_k)^2 train, and count alpha_k / r_k. **Biased** towards clients that are seldom online.

    `smoothing` is beta, one over the number of rounds in the paper; r begins as the availability known beforehand.
    """

    looks_at_data = False

    clients_per_round: Count = DEFAULT_SIZE  # clients invited in a round
    smoothing: Fraction = 0.005  # beta: share of the newest round in the rates
    rate: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N] r

    def begin(self, server: Server) -> None:
        super().begin(server)
        self.rate = self.availability(server)

    def sample(self, server: Server) -> Selection:
        here = self.watch(server)
        self.rate[server.importance > 0] *= 1 - self.smoothing
        self.rate[here] += self.smoothing
        q = server.importance[here] / self.rate[here]
        chosen = np.sort(np.argsort(-q, kind="stable")[: self.clients_per_round])
        return Selection(here[chosen], q[chosen])
