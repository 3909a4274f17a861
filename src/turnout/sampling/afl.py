"""Active federated learning: clients with a large loss on much data.

Goetz, Malik, Bui, Moon, Liu, Kumar, "Active federated learning", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from turnout.core import random
from turnout.core.allowed import Count, NotNegative, Share
from turnout.sampling._sampler import DEFAULT_SIZE, FloatArray, Sampler, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates


@dataclass
class AFL(Sampler):
    """A client is worth v_k = sqrt(n_k) loss_k, its loss of the model last received; one never asked is worth more than
    any other, one that was asked and has not answered yet nothing. The `drop` share worth least is left out, the rest
    drawn with P(k) ~ exp(`temperature` v_k), except for a share `explore` of the places, which go to anybody. All count
    1 / m. **Biased** towards clients that fit badly, those with bad data among them."""

    report = "loss"
    depends_on = "the losses"

    clients_per_round: Count = DEFAULT_SIZE  # clients invited in a round
    drop: Share = 0.75  # share of the clients worth least that is left out
    temperature: NotNegative = 0.01  # how strongly worth counts in the draw
    explore: Share = 0.1  # share of the places that goes to anybody
    values: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N]; infinite: never asked

    def observe(self, updates: Updates) -> None:
        if len(updates) and len(self.values):  # before its first draw it remembers nothing
            losses = updates["loss"].double().cpu().numpy()
            self.values[updates.clients] = np.sqrt(updates.samples) * np.nan_to_num(losses, nan=0.0, posinf=0.0)

    def sample(self, server: Server) -> Selection:
        if len(self.values) != server.population.size:
            self.values = np.full(server.population.size, np.inf)
        clients = self.present(server)
        m = min(self.clients_per_round, len(clients))
        by_value = m - round(self.explore * m)
        draws = random.uniform(random.key(server.seed, "sampling afl", server.version, clients), 2)
        values = self.values[clients]
        new = np.isinf(values)
        kept = np.ones(len(clients), bool)
        kept[np.lexsort((draws[:, 0], values))[: int(self.drop * len(clients))]] = False
        kept |= new
        gumbel = self.temperature * np.where(new, 0.0, values) - np.log(-np.log(np.maximum(draws[:, 0], 2.0**-54)))
        ranked = np.lexsort((-gumbel, ~new, ~kept))[: min(by_value, int(kept.sum()))]
        others = np.setdiff1d(np.argsort(draws[:, 1], kind="stable"), ranked, assume_unique=True)
        chosen = np.concatenate([ranked, others[: m - len(ranked)]])
        self.values[clients[chosen[new[chosen]]]] = 0.0  # until they answer
        return Selection(np.sort(clients[chosen]), np.full(m, 1 / max(1, m)))
