"""Who is there to be asked, whose job fails, and how the server learns of it.

Every draw is keyed by (client, interval number) or (client, job or round number), so the same trace meets every
algorithm and nobody's state depends on who asked when.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.clients.columns import PerClient, Shares, option
from turnout.core import random
from turnout.core.allowed import Finite
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt

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

    @property
    def correlation(self) -> PerClient | None:
        """Of presence at two successive rounds or intervals, where it is known."""

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray: ...

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        """Seconds at which each client, online now, next goes offline; infinite if never or on a round clock."""

    def online_from(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        """Seconds at which each client, offline now, next comes online; infinite if never or on a round clock."""


@dataclass(frozen=True)
class Always(Spelt):
    """Everybody, at any time."""

    clock: ClassVar[Clock] = "seconds"
    probability: ClassVar[float] = 1.0
    correlation: ClassVar[float] = 0.0

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray:
        return np.ones(len(ids), bool)

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return np.full(len(ids), np.inf)

    def online_from(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return np.full(len(ids), np.inf)


@dataclass(frozen=True, eq=False)
class Crashes(Spelt):
    """A job fails with `probability`, after a uniform share of its work, or `during` all of it, transfers included;
    numbered by the client's jobs or by rounds.

    Reference: Wu et al., SAFA, IEEE Transactions on Computers 2021: Bernoulli(cr) a client and round, progress U(0, 1).
    """

    section: ClassVar[str] = "crashes"

    probability: Shares = 0.0  # that a job fails: one, or one a client
    clock: Literal["job", "round"] = "job"  # whether each job or each round has a draw of its own
    during: Literal["work", "job"] = "work"  # when: in the work, or in all of the job with its transfers

    def draw(self, seed: int, ids: IntArray, number: ArrayLike) -> tuple[BoolArray, FloatArray]:
        """Whether each client's job of that number crashes, and at which share of its work in (0, 1)."""
        if self._never:
            return np.zeros(len(ids), bool), np.ones(len(ids))
        u = random.coins(seed, "crash", ids, number, each=2)
        return u[:, 0] < option(self, "probability", ids), np.maximum(u[:, 1], 2.0**-54)

    @cached_property
    def _never(self) -> bool:
        return not np.any(self.probability)

    def seconds(self, share: FloatArray, down: FloatArray, compute: FloatArray, up: FloatArray) -> FloatArray:
        """When in its job a client crashes, whose share that is and whose parts take so long."""
        return share * (down + compute + up) if self.during == "job" else down + share * compute


@dataclass(frozen=True)
class Detection(Spelt):
    """How the server learns that a job died: at once (`oracle`), `seconds` later (`heartbeat`), or never (`none`)."""

    section: ClassVar[str] = "detection"

    kind: Literal["oracle", "heartbeat", "none"] = "oracle"  # how the server learns of a death
    seconds: Finite = 0.0  # after which a heartbeat is missed

    def __post_init__(self) -> None:
        if self.kind == "heartbeat" and not 1e-6 <= self.seconds <= 1e9:
            raise UserError(f"detection.seconds: {self.seconds} must be above 0: from a microsecond to 1e9 seconds")
