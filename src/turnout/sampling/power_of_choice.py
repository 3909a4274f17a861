"""Power of choice: of some candidates, those with the largest loss.

Cho, Wang, Joshi, "Client selection in federated learning: convergence analysis and power-of-choice selection
strategies", 2020 (pi_pow-d).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core import random
from turnout.core.allowed import Count
from turnout.core.errors import UserError
from turnout.local.answers import LossReport
from turnout.sampling._sampler import DEFAULT_SIZE, IntArray, Sampler, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class PowerOfChoice(Sampler):
    """`candidates` clients, drawn without replacement in proportion to importance, report their loss of the current
    model; the `clients_per_round` with the largest train, and count 1 / m each. **Biased** towards clients that fit
    badly: faster at first, and to another optimum. The reports cost the time of an answer, and a download that those
    who train do not need again."""

    depends_on = "the losses"

    clients_per_round: Count = DEFAULT_SIZE  # clients invited in a round
    candidates: Count = 20  # clients that report their loss

    def __post_init__(self) -> None:
        if self.clients_per_round > self.candidates:
            given = self.clients_per_round
            raise UserError(f"sampler.clients_per_round: {given} must be from 1 to the {self.candidates} candidates")

    def sample(self, server: Server) -> Selection:
        asked = self.draw(server)
        answers = self.answers_of(server, asked, LossReport())
        losses = answers["loss"].double().cpu().numpy() if len(answers) else np.zeros(0)
        order = np.lexsort((answers.clients, -np.nan_to_num(losses, nan=-np.inf)))[: self.clients_per_round]
        return Selection(answers.clients[order], np.full(len(order), 1 / max(1, len(order))), informed=True)

    def draw(self, server: Server) -> IntArray:
        """The candidates: the largest of u_i^(1 / p_i) are a draw in proportion to p_i."""
        matter = self.present(server)
        chances = random.uniform(random.key(server.seed, "sampling candidate", server.version, matter), 1)[:, 0]
        score = np.log(np.maximum(chances, 2.0**-54)) / server.importance[matter]
        return np.sort(matter[np.argsort(-score, kind="stable")[: self.candidates]])
