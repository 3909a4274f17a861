"""Optimal sampling: whose update is large is more likely to be asked for it.

Chen, Horvath, Richtarik, "Optimal client sampling for federated learning", TMLR 2022; Fraboni's thesis, appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core import random
from turnout.core.allowed import Count
from turnout.sampling._sampler import DEFAULT_SIZE, Sampler, Selection, water_fill
from turnout.sampling.full import Full

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates


@dataclass
class Optimal(Sampler):
    """Everybody trains and sends one number, the norm of its update; then each is asked for the update itself with
    q_i = min(1, c p_i |update_i|), m of them on average, and weight p_i / q_i: the least variance for so many uploads.

    It saves uploads, not work, and needs norms of individual updates: not for secure aggregation.
    """

    decides_later = True
    depends_on = "the updates"

    clients_per_round: Count = DEFAULT_SIZE  # updates asked for in a round, on average

    def sample(self, server: Server) -> Selection:
        return Full().sample(server)

    def settle(self, server: Server, chosen: Selection, answers: Updates) -> tuple[Updates, Selection]:
        decided = self.decide(server, answers)
        server.cancel(np.setdiff1d(chosen.clients, decided.clients))
        return super().settle(server, decided, server.fetch(decided.clients))

    def decide(self, server: Server, answers: Updates) -> Selection:
        """Whose update to fetch, of those who have answered with its norm."""
        m = self.clients_per_round
        importance = server.importance[answers.clients]
        norms = np.nan_to_num(answers.norms().double().cpu().numpy(), nan=0.0, posinf=0.0)
        chance = water_fill(importance * norms, min(m, int(np.count_nonzero(importance * norms))))
        coins = random.uniform(random.key(server.seed, "sampling coin", server.version, answers.clients), 1)[:, 0]
        drawn = coins < chance
        return Selection(answers.clients[drawn], importance[drawn] / chance[drawn])
