"""Who is there to be asked, whose job fails, and how the server learns of it.

Every draw is keyed by (client, interval number) or (client, job or round number), so the same trace meets every
algorithm and nobody's state depends on who asked when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout import random
from turnout.errors import UserError
from turnout.population.devices import PerClient, choose, column, require
from turnout.random import FloatArray, IntArray

BoolArray = NDArray[np.bool_]
Clock = Literal["round", "seconds"]
MICRO = 1_000_000


class Availability(Protocol):
    """Presence as a function of client and time; `at` is a round number or seconds, as `clock` says."""

    @property
    def clock(self) -> Clock: ...

    @property
    def probability(self) -> PerClient | None:
        """Long-run share of time online, where it is known."""

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray: ...

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        """Seconds at which each client, online now, next goes offline; infinite if never or on a round clock."""


@dataclass(frozen=True)
class Always:
    """Everybody, at any time."""

    clock: ClassVar[Clock] = "seconds"
    probability: ClassVar[float] = 1.0

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray:
        return np.ones(len(ids), bool)

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return np.full(len(ids), np.inf)


@dataclass(frozen=True, eq=False)
class Bernoulli:
    """Independent coin flips: online with `probability` in each round, or in each `interval` of seconds."""

    probability: PerClient
    clock: Clock = "round"
    interval: float = 1.0

    def __post_init__(self) -> None:
        _probability("bernoulli", self.probability)
        choose("bernoulli: clock", self.clock, "round", "seconds")
        if not MICRO * self.interval >= 1:
            raise UserError(f"bernoulli: interval is {self.interval}; it must be at least a microsecond")

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray:
        return self._flips(seed, ids, self._number(at, ids), 1)[:, 0]

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        until = np.full(len(ids), np.inf)
        if self.clock == "round":
            return until
        waiting = np.flatnonzero(column("bernoulli: probability", self.probability, ids) < 1)
        number, ahead = self._number(at, ids) + 1, 8
        while waiting.size:  # look ahead in blocks until everybody has an offline interval
            off = ~self._flips(seed, ids[waiting], number[waiting], ahead)
            found = off.any(axis=1)
            ends = number[waiting] + off.argmax(axis=1)
            until[waiting[found]] = ends[found] * self._width / MICRO
            waiting = waiting[~found]
            number += ahead
            ahead = max(8, min(2 * ahead, 2**20 // max(len(waiting), 1)))
        return until

    @property
    def _width(self) -> int:
        return round(MICRO * self.interval)

    def _number(self, at: ArrayLike, ids: IntArray) -> IntArray:
        """The interval of each client's `at`, counted in microseconds so that an end belongs to the next interval."""
        time = np.broadcast_to(np.asarray(at, np.float64), len(ids))
        if self.clock == "round":
            return time.astype(np.int64)
        return np.rint(MICRO * time).astype(np.int64) // self._width

    def _flips(self, seed: int, ids: IntArray, number: IntArray, count: int) -> BoolArray:
        """`[len(ids), count]` presence in the intervals from `number` on."""
        keys = random.key(seed, "online", ids[:, None], number[:, None] + np.arange(count))
        return random.uniform(keys, 1)[..., 0] < column("bernoulli: probability", self.probability, ids)[:, None]


@dataclass(frozen=True, eq=False)
class Crashes:
    """A job fails with `probability`, after a uniform share of its work; numbered by the client's jobs or by rounds.

    Reference: Wu et al., SAFA, IEEE Transactions on Computers 2021: Bernoulli(cr) a client and round, progress U(0, 1).
    """

    probability: PerClient = 0.0
    clock: Literal["job", "round"] = "job"

    def __post_init__(self) -> None:
        _probability("crashes", self.probability)
        choose("crashes: clock", self.clock, "job", "round")

    def draw(self, seed: int, ids: IntArray, number: ArrayLike) -> tuple[BoolArray, FloatArray]:
        """Whether each client's job of that number crashes, and at which share of its work in (0, 1)."""
        u = random.uniform(random.key(seed, "crash", ids, number), 2)
        return u[:, 0] < column("crashes: probability", self.probability, ids), np.maximum(u[:, 1], 2.0**-54)


@dataclass(frozen=True)
class Detection:
    """How the server learns that a job died: at once (`oracle`), `seconds` later (`heartbeat`), or never (`none`)."""

    kind: Literal["oracle", "heartbeat", "none"] = "oracle"
    seconds: float = 0.0

    def __post_init__(self) -> None:
        choose("detection: kind", self.kind, "oracle", "heartbeat", "none")
        if self.kind == "heartbeat" and not 0 < self.seconds < np.inf:
            raise UserError(f"detection: a heartbeat of {self.seconds} seconds; it must be positive and finite")


def _probability(name: str, value: PerClient) -> None:
    values = np.asarray(value)
    require(f"{name}: probability", values, (values >= 0) & (values <= 1), "between 0 and 1")
