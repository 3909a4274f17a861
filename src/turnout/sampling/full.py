"""Everybody takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.sampling._sampler import Moments, Sampler, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class Full(Sampler):
    """omega_i = p_i for every client that is online: no variance, unbiased while everybody answers."""

    looks_at_data = False

    def moments(self, server: Server) -> Moments:
        importance = server.importance
        return importance, np.zeros(len(importance)), (importance > 0).astype(np.float64), 0.0, 0.0

    def sample(self, server: Server) -> Selection:
        clients = self.present(server)
        return Selection(clients, server.importance[clients])
