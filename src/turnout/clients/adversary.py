"""Clients that never answer because somebody chose them, after a look at everything: at their updates too.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023. Of the K clients just
invited an adversary may silence a set D whose importance p is bounded,

    sum over i in D of p_i  <=  budget * K / M          (budget: epsilon; M members; |D| <= epsilon K if all are equal)

It only silences. It never alters an update, and what it has silenced looks to the server like any other failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.clients.columns import check_members
from turnout.core import random
from turnout.core.allowed import Share, WholeNumber
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates

_ROUNDING = 1e-9  # of a budget that is met exactly
_FEW = 12  # clients of which every set is tried


class Room(NamedTuple):
    """What may be silenced of one invitation."""

    shares: FloatArray  # [k] p_i / (K / M) of those who would answer: 1 / K each if all are equal
    budget: float  # on the sum of their shares
    clients: int  # at most so many

    def allows(self, share: ArrayLike, clients: ArrayLike) -> NDArray[np.bool_]:
        """Whether there is room for sets of so large a share and so many clients."""
        return (np.asarray(share) <= self.budget + _ROUNDING) & (np.asarray(clients) <= self.clients)


@dataclass
class Adversary(Spelt):
    """Subclasses say whom they want silent, most of all first; the budget is enforced here, for all of them alike.

    `leave` clients of an invitation answer whatever the budget, so that an invitation of one client (an asynchronous
    restart) cannot be silenced unless it is 0. The adversary acts from round `begins` on and until round `ends`.
    Answers that carry no update (reports) pass. Fields with `init=False` are state, as those of an algorithm.
    """

    section: ClassVar[str] = "adversary"
    looks_at_data: ClassVar[bool] = True  # a class whose choice follows from no update declares False itself

    budget: Share  # epsilon: share of those invited that may be silenced, by importance
    leave: WholeNumber = field(default=1, kw_only=True)  # clients of an invitation that always answer
    begins: WholeNumber = field(default=0, kw_only=True)  # first round in which it acts
    ends: WholeNumber | None = field(default=None, kw_only=True)  # round from which it acts no more; none: never

    def begin(self, clients: int) -> None:
        """Before the first round, for those that remember."""

    def wanted(self, server: Server, updates: Updates, room: Room) -> IntArray:
        """Rows of the updates that are coming, most wanted first; rows left out are not wanted."""
        raise NotImplementedError

    def observe(self, answering: Updates) -> None:
        """Whom it lets through."""

    def silence(self, server: Server, updates: Updates, invited: int) -> tuple[IntArray, float]:
        """Rows of the updates that will never come, of an invitation of so many clients, and their share epsilon_t."""
        if server.version < self.begins or (self.ends is not None and server.version >= self.ends):
            self.observe(updates)
            return np.zeros(0, np.int64), 0.0
        members = np.count_nonzero(server.importance)
        shares = server.importance[updates.clients] * members / invited
        room = Room(shares, self.budget, max(0, len(updates) - self.leave))
        rows: list[int] = []
        share = 0.0
        for row in self.wanted(server, updates, room).tolist() if room.clients else []:
            if room.allows(share + shares[row], len(rows) + 1):
                rows.append(row)
                share += float(shares[row])
        silent = np.sort(np.array(rows, np.int64))
        self.observe(updates.select(np.delete(np.arange(len(updates)), silent)))
        return silent, share

    @staticmethod
    def shuffled(server: Server, updates: Updates) -> IntArray:
        """Rows in an order that depends on the clients and their job numbers alone: the same for every algorithm."""
        keys = random.key(server.population.seed, "adversary", updates.clients, updates.numbers)
        return np.lexsort((updates.clients, random.uniform(keys, 1)[:, 0]))


def nobody() -> None:
    """Nobody is silenced on purpose."""


@dataclass
class Random(Adversary):
    """Anybody, within the budget."""

    looks_at_data: ClassVar[bool] = False

    def wanted(self, server: Server, updates: Updates, room: Room) -> IntArray:
        return self.shuffled(server, updates)


@dataclass
class Silence(Adversary):
    """Always the same `clients`, in random order where the budget does not reach for all who are invited.

    With `ends` they sleep until that round; `turnout.run.shadow.candidates` finds clients worth silencing.
    """

    looks_at_data: ClassVar[bool] = False

    clients: list[int]  # ids of those who are silenced

    def begin(self, clients: int) -> None:
        check_members("adversary.clients", self.clients, clients)

    def wanted(self, server: Server, updates: Updates, room: Room) -> IntArray:
        order = self.shuffled(server, updates)
        return order[np.isin(updates.clients[order], self.clients)]


@dataclass
class LargestNorm(Adversary):
    """Whose updates are longest."""

    def wanted(self, server: Server, updates: Updates, room: Room) -> IntArray:
        return np.argsort(-np.nan_to_num(updates.norms().double().cpu().numpy(), nan=np.inf), kind="stable")


@dataclass
class WorstCase(Adversary):
    """The set whose loss bends the round most: the largest |sum_{i in D} p_i update_i|.

    Of up to 12 clients every set is tried, of more it is built greedily, one client after the other.
    """

    def wanted(self, server: Server, updates: Updates, room: Room) -> IntArray:
        p = server.importance[updates.clients]
        gram = updates.gram(held=True).double().cpu().numpy()
        products = np.nan_to_num(np.outer(p, p) * gram, nan=0.0, posinf=0.0, neginf=0.0)
        return _every_set(products, room) if len(p) <= _FEW else _greedy(products, room)


@dataclass
class Starve(Adversary):
    """Those it has let through least often so far, so that some are never heard."""

    looks_at_data: ClassVar[bool] = False

    heard: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N]

    def begin(self, clients: int) -> None:
        self.heard = np.zeros(clients, np.int64)

    def wanted(self, server: Server, updates: Updates, room: Room) -> IntArray:
        return np.lexsort((updates.clients, self.heard[updates.clients]))

    def observe(self, answering: Updates) -> None:
        self.heard[answering.clients] += 1


def _every_set(products: FloatArray, room: Room) -> IntArray:
    """The set D of rows with the largest sum of products over D x D, of all that there is room for."""
    sets = (np.arange(1 << len(products))[:, None] >> np.arange(len(products)) & 1).astype(bool)
    sets = sets[room.allows(sets @ room.shares, sets.sum(1))]
    squares = np.einsum("si,ij,sj->s", sets, products, sets, optimize=True)
    return np.flatnonzero(sets[np.argmax(squares)])


def _greedy(products: FloatArray, room: Room) -> IntArray:
    """Such a set, grown by the row that adds most while one adds anything."""
    rows: list[int] = []
    while True:
        fits = room.allows(room.shares[rows].sum() + room.shares, len(rows) + 1)
        fits[rows] = False
        gains = np.where(fits, 2 * products[:, rows].sum(1) + np.diag(products), 0.0)
        best = int(np.argmax(gains))
        if not gains[best] > 0:
            return np.array(rows, np.int64)
        rows.append(best)
