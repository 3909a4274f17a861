"""Clustered sampling by sample size: as many draws as MD, but from m different distributions.

Fraboni, Vidal, Kameni, Lorenzi, "Clustered sampling: low-variance and improved representativity for clients selection
in federated learning", ICML 2021 (algorithm 2); Fraboni's thesis, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from turnout.sampling._clusters import Allocation, Clustered, lay_out

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class ClusteredSize(Clustered):
    """Clients are laid end to end by importance, the largest first, ties in random order, and cut into m rows; one is
    drawn from each row."""

    looks_at_data = False

    def allocate(self, server: Server) -> Allocation:
        importance = server.importance
        order = np.lexsort((self.ties(server), -importance))
        order = order[importance[order] > 0]
        found = lay_out(importance[order], self.clients_per_round)
        return replace(found, clients=order[found.clients])
