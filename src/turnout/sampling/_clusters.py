"""Clustered sampling: one draw from each of m distributions that together give every client its due.

Fraboni, Vidal, Kameni, Lorenzi, "Clustered sampling: low-variance and improved representativity for clients selection
in federated learning", ICML 2021; Fraboni's thesis, chapter 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core import random
from turnout.core.allowed import Count
from turnout.core.errors import check_room
from turnout.sampling._sampler import DEFAULT_SIZE, FloatArray, IntArray, Moments, Sampler, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server

_NOTHING = 1e-12  # of a row


@dataclass(frozen=True)
class Allocation:
    """m distributions over clients, as triples: in row k, client i has probability r_ki. Rows are in order, they sum to
    1, and over the rows a client has m p_i: sufficient for unbiased weights."""

    rows: IntArray
    clients: IntArray
    shares: FloatArray

    def matrix(self, m: int, clients: int) -> FloatArray:
        """`[m, n]` r_ki."""
        r = np.zeros((m, clients))
        np.add.at(r, (self.rows, self.clients), self.shares)
        return r


@dataclass
class Clustered(Sampler):
    """omega_i = #{k : l_k = i} / m: unbiased, the weights sum to 1, and every client's weight varies less than with
    `md`. Where some clients are offline, a row draws among those of its clients that are there."""

    clients_per_round: Count = DEFAULT_SIZE  # clients invited in a round

    def allocate(self, server: Server) -> Allocation:
        """The m distributions of this round."""
        raise NotImplementedError

    def moments(self, server: Server) -> Moments:
        m, importance = self.clients_per_round, server.importance
        r = self.allocate(server).matrix(m, len(importance))
        variance = importance / m - np.square(r).sum(axis=0) / m**2
        return importance, variance, 1 - np.prod(1 - r, axis=0), 0.0, None

    def sample(self, server: Server) -> Selection:
        m = self.clients_per_round
        check_room(f"sampler.clients_per_round: {m} draws", 8 * m)
        allocation = self.allocate(server)
        ends = np.cumsum(allocation.shares * server.online().contains(allocation.clients))
        first = np.searchsorted(allocation.rows, np.arange(m))
        before = np.concatenate([[0.0], ends])[first]
        lengths = np.append(before[1:], ends[-1] if len(ends) else 0.0) - before
        some = lengths > 0  # a row of which somebody is there
        chances = random.uniform(random.key(server.seed, "sampling row", server.version, np.arange(m)), 1)[:, 0]
        places = np.searchsorted(ends, (before + chances * lengths)[some], side="right")
        drawn, times = np.unique(allocation.clients[places], return_counts=True)
        return Selection(drawn, times / max(1, int(some.sum())))

    @staticmethod
    def ties(server: Server) -> IntArray:
        """A fixed random order of the clients: in the order of the list, clients alike may stand side by side."""
        return random.permutation(random.key(server.seed, "sampling ties"), server.population.size)


def lay_out(importance: FloatArray, m: int) -> Allocation:
    """Clients in the order given, end to end on a ruler of length m, cut into m pieces of length 1 (algorithm 2)."""
    if not len(importance):
        return Allocation(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    edges = np.minimum(np.concatenate([[0.0], np.cumsum(m * importance)]), m)
    edges[-1] = m
    cuts = np.unique(np.concatenate([edges, np.arange(m + 1)]))
    middle = (cuts[1:] + cuts[:-1]) / 2
    owner = np.searchsorted(edges, middle, side="right") - 1
    return Allocation(np.floor(middle).astype(np.int64), owner, np.diff(cuts))


def own_rows(importance: FloatArray, m: int) -> tuple[IntArray, FloatArray]:
    """Whole rows of clients with m p_i >= 1, and what is left of everybody's m p_i."""
    masses = m * importance
    whole = np.floor(masses + _NOTHING).astype(np.int64)
    left = masses - whole
    return whole, np.where(left > _NOTHING, left, 0.0)


def fill_rows(importance: FloatArray, m: int, groups: Sequence[IntArray], rank: IntArray) -> Allocation:
    """Steps 3 to 6 of algorithm 3: the heaviest groups begin a row each, the others are poured into what is free.

    Groups hold clients whose rest of m p_i sums to at most 1 each; ties go to the client of the lowest `rank`."""
    whole, left = own_rows(importance, m)
    triples: list[tuple[int, int, float]] = []
    for client in np.flatnonzero(whole).tolist():
        triples += [(len(triples) + copy, client, 1.0) for copy in range(int(whole[client]))]
    first, free = len(triples), m - len(triples)
    ordered = sorted(groups, key=lambda group: (-round(float(left[group].sum()), 9), int(rank[group].min())))
    room = np.ones(free)
    for row, group in enumerate(ordered[:free]):
        triples += [(first + row, client, float(left[client])) for client in group.tolist()]
        room[row] -= left[group].sum()
    row = 0
    for client in (client for group in ordered[free:] for client in group.tolist()):
        mass = float(left[client])
        while mass > _NOTHING and row < free:
            taken = min(mass, float(room[row]))
            if taken > _NOTHING:
                triples.append((first + row, client, taken))
            mass, room[row] = mass - taken, room[row] - taken
            row += room[row] <= _NOTHING
    triples.sort(key=lambda triple: triple[0])
    rows, clients, shares = np.array(triples, np.float64).reshape(-1, 3).T  # of nobody, before anybody has joined
    return Allocation(rows.astype(np.int64), clients.astype(np.int64), shares.copy())
