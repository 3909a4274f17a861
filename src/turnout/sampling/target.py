"""Target sampling: clustered sampling by groups that are known.

Fraboni et al., "Clustered sampling", ICML 2021, section 6 ("target"): the ideal that similarity approaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core.errors import UserError
from turnout.sampling._clusters import Allocation, Clustered, fill_rows, own_rows
from turnout.sampling._sampler import FloatArray, IntArray

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class Target(Clustered):
    """`groups` names the group of each client (their regions, unless given); one client is drawn from each of m rows,
    and a row holds clients of one group as far as the groups' importance allows."""

    looks_at_data = False

    groups: list[int] | None = None  # that of each client; none: their regions

    def allocate(self, server: Server) -> Allocation:
        people = server.population
        groups = people.regions if self.groups is None else np.asarray(self.groups, np.int64)
        if groups is None or len(groups) != people.size:
            given = "none" if groups is None else len(groups)
            raise UserError(f"sampler.groups: {given} for {people.size} clients; it needs a group for each")
        rank = self.ties(server)
        _, left = own_rows(server.importance, self.clients_per_round)
        found = [
            part for group in np.unique(groups) for part in _parts(np.flatnonzero((groups == group) & (left > 0)), left)
        ]
        return fill_rows(server.importance, self.clients_per_round, found, rank)


def _parts(clients: IntArray, left: FloatArray) -> list[IntArray]:
    """A group cut so that no part is heavier than a row."""
    parts: list[list[int]] = [[]]
    mass = 0.0
    for client in clients.tolist():
        if mass + left[client] > 1 + 1e-9:
            parts.append([])
            mass = 0.0
        parts[-1].append(client)
        mass += float(left[client])
    return [np.array(part, np.int64) for part in parts if part]
