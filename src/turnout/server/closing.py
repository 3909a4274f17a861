"""When a round closes: parts that a method waits with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from turnout.core.allowed import Count, OneOf, Positive, Seconds
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt
from turnout.server.durations import Durations
from turnout.server.policy import Policy

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates

MODES = ("wait", "restart")
Mode = Annotated[str, OneOf(MODES)]
DEFAULT_SIZE = 10
LONGEST = 1e9  # seconds


@dataclass(frozen=True)
class Wait(Spelt):
    """Say when a round closes."""

    section: ClassVar[str] = "wait"
    of: ClassVar[str] = "closes its rounds by it"  # the methods it is for: one that ...
    like: ClassVar[str] = "your own"  # the name of such a method


@dataclass(frozen=True)
class Answers(Wait):
    """Close a round when everybody invited has answered or failed, or earlier."""

    of: ClassVar[str] = "invites clients anew in every round"
    like: ClassVar[str] = "fedavg"

    deadline: Seconds | None = None  # seconds from when the models are out; none: no limit
    count: Count | None = None  # answers that close a round; none: all. Invite more than are needed
    for_crashed: bool = False  # whether to wait until the deadline for clients known to have failed
    retry: Seconds = 1.0  # seconds that a round takes which finds nobody online

    def __post_init__(self) -> None:
        if self.for_crashed and self.deadline is None:
            raise UserError("wait.for_crashed: it needs a deadline, or the wait never ends")

    def gather(self, server: Server, invited: int, distribution: float = 0.0) -> Updates:
        """Return what arrives from so many invited clients, whose models take `distribution` seconds to go out."""
        limit = None if self.deadline is None else self.deadline + distribution
        close = server.now + (limit or 0.0)
        enough = min(self.count or invited, invited)
        updates = server.wait(enough or None, seconds=limit if invited else self.retry)
        if self.for_crashed and len(updates) < enough:
            server.wait(of=[], seconds=max(0.0, close - server.now))
        return updates


@dataclass(frozen=True)
class Arriving(Wait):
    """Close a round by what arrives, of clients that never wait for one another."""

    of: ClassVar[str] = "lets clients begin again as they deliver"
    like: ClassVar[str] = "fedbuff"

    def policy(self, durations: Durations, version: int = 0, concurrency: int | None = None) -> Policy:
        """Give the policy of round `version`, with at most so many clients at work."""
        raise NotImplementedError

    @property
    def steady(self) -> bool:
        """Tell whether all rounds have the same policy, and a naive weight depends on its client alone."""
        return False

    def naive(self, server: Server, clients: IntArray) -> FloatArray:
        """Weigh updates of these clients `[k]` without regard to who answers how often."""
        raise NotImplementedError

    def check(self, concurrency: int | None) -> None:
        """Raise where it cannot be with so many clients at work."""


@dataclass(frozen=True)
class EachArrival(Arriving):
    """Close a round at each arrival (asynchronous FedAvg)."""

    def policy(self, durations: Durations, version: int = 0, concurrency: int | None = None) -> Policy:
        return Policy(count=1)

    @property
    def steady(self) -> bool:
        return type(self) is EachArrival

    def naive(self, server: Server, clients: IntArray) -> FloatArray:
        return np.ones(len(clients))


@dataclass(frozen=True)
class Window(Arriving):
    """Close a round every so many seconds, whatever has arrived (FedFix)."""

    seconds: Seconds | None = None  # of a window; none: half of the slowest client's mean duration
    growth: Positive = 1.0  # how much longer each window is than the one before
    limit: Seconds | None = None  # that a window lasts at most

    def policy(self, durations: Durations, version: int = 0, concurrency: int | None = None) -> Policy:
        first, tick = self.seconds or float(durations.mean.max()) / 2, 1 / durations.population.ticks_per_second
        with np.errstate(over="ignore"):
            window = float(first * np.float64(self.growth) ** version)
        return Policy(window=min(max(window, tick), self.limit or LONGEST))

    @property
    def steady(self) -> bool:
        return type(self) is Window and self.growth == 1

    def naive(self, server: Server, clients: IntArray) -> FloatArray:
        return server.importance[clients]


@dataclass(frozen=True)
class Buffer(Arriving):
    """Close a round when so many updates are in (FedBuff)."""

    size: Count | None = None  # updates of a flush; none: ten, or as many as can wait where that is fewer
    mode: Mode = "wait"  # wait: clients wait for the flush; restart: they begin again at once
    divisor: Positive | None = None  # of naive weights; none: the size

    def check(self, concurrency: int | None) -> None:
        if concurrency is not None and self.mode == "restart":
            raise UserError("algorithm.concurrency: clients that restart by themselves leave no place; use mode wait")
        if concurrency is not None and (self.size or 0) > concurrency:
            raise UserError(f"wait.size: {self.size} waiting clients, but only {concurrency} work at once")

    def filled(self, clients: int, concurrency: int | None = None) -> int:
        """Count the updates of a flush, with so many clients."""
        if self.size is None:
            return DEFAULT_SIZE if self.mode == "restart" else min(DEFAULT_SIZE, clients, concurrency or clients)
        if self.mode == "wait" and self.size > clients:
            raise UserError(f"wait.size: {self.size} waiting clients, but there are only {clients}")
        return self.size

    def policy(self, durations: Durations, version: int = 0, concurrency: int | None = None) -> Policy:
        return Policy(count=self.filled(durations.population.size, concurrency), restart=self.mode == "restart")

    @property
    def steady(self) -> bool:
        return type(self) is Buffer

    def naive(self, server: Server, clients: IntArray) -> FloatArray:
        waiting = getattr(server.algorithm, "concurrency", None)
        return np.full(len(clients), 1 / (self.divisor or self.filled(server.population.size, waiting)))


WAITS: dict[str, type[Wait]] = {"answers": Answers, "arrival": EachArrival, "window": Window, "buffer": Buffer}
