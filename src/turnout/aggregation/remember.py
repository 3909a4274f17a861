"""What the server remembers of updates, to use it while their clients are silent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from turnout.core.spelling import Spelt

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates


@dataclass
class LastUpdate(Spelt):
    """Keep every client's last update: each counts its importance in every round, whoever has answered (MIFA: Gu et
    al., NeurIPS 2021). Where the learning rate falls, updates are taken as they would be at the current one. Memory: N
    models."""

    memory: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)  # [N, P] last updates, at a rate of 1

    def take(self, server: Server, updates: Updates) -> Tensor:
        """Remember these updates: `[N, P]` the memory with them in it; of two of one client the later stays."""
        if not len(self.memory):
            self.memory = server.model.new_zeros(server.population.size, len(server.model))
        last = {client: row for row, client in enumerate(updates.clients.tolist())}
        if len(last) < len(updates):
            updates = updates.select(list(last.values()))
        rates = torch.as_tensor(server.algorithm.stepping(server).lr_factor(updates.versions)).to(self.memory)
        self.memory[updates.clients] = updates.deltas / rates[:, None]
        return self.memory

    def factor(self, server: Server) -> float:
        """Compute what the memory is multiplied by in this round."""
        return float(server.algorithm.stepping(server).lr_factor(server.version))


REMEMBER: dict[str, type[LastUpdate]] = {"last_update": LastUpdate}
