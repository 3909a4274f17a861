"""One wait of a server: what is counted, when that is enough, what is returned. `Server.wait` has the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnout.core.errors import UserError
from turnout.server.flight import Flight
from turnout.server.jobs import ARRIVED, Job


@dataclass(slots=True)
class Wait:
    """Count updates until `count` of them are in, at most until tick `close`."""

    count: int | None  # None: as many as come
    of: set[int] | None  # the clients counted and returned; None: all
    close: int | None  # ticks; None: there is no limit
    ready: int = 0  # updates in the inbox
    expected: int = 0  # jobs in flight
    alive: int = 0  # of these, whose end will be known

    # -- what is counted --------------------------------------------------------------------------------------

    def begin(self, flight: Flight, inbox: list[Job]) -> None:
        """Count what is there already."""
        in_flight = flight.jobs
        if self.of is None:
            self.ready, self.expected, self.alive, standing = len(inbox), len(in_flight), flight.learnt, flight.standing
        else:
            awaited = [in_flight[client] for client in self.of if client in in_flight]
            self.ready = sum(job.client in self.of for job in inbox)
            self.expected, self.alive = len(awaited), sum(job.heard for job in awaited)
            standing = sum(job.again for job in awaited)
        if standing and self.count is None and self.close is None:
            raise UserError("wait: a standing invitation never ends; say how many updates or how long to wait for")

    def add_begun(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if self.of is None or job.client in self.of:
                self.expected, self.alive = self.expected + 1, self.alive + job.heard

    def add_ended(self, jobs: Sequence[Job]) -> None:
        if self.of is not None:
            jobs = [job for job in jobs if job.client in self.of]
        self.ready += [job.outcome for job in jobs].count(ARRIVED)
        self.expected, self.alive = self.expected - len(jobs), self.alive - len(jobs)

    # -- when it is enough ------------------------------------------------------------------------------------

    @property
    def timer(self) -> bool:
        """Tell whether time alone ends it."""
        return self.count is None and self.close is not None

    def enough(self) -> bool:
        return self.count is not None and self.ready >= self.count

    def in_vain(self) -> bool:
        """Tell whether nobody can still answer; raise where that is never learnt."""
        if not self.expected and not self.timer:
            return True
        if self.close is None and not self.alive:
            raise UserError(
                f"wait: {self.expected} jobs will never be heard of again; "
                "set population.detection to oracle or heartbeat, or give the wait a time limit"
            )
        return False

    def least(self, queued: int) -> int:
        """Bound from below how many jobs must end before it is over, where `queued` ends are known."""
        left = self.alive if self.close is None else queued if self.count is None else self.expected
        return left if self.count is None else min(left, self.count - self.ready)

    # -- what is returned -------------------------------------------------------------------------------------

    def take(self, waiting: list[Job], most: int | None = None) -> list[Job]:
        """Remove the first jobs that are counted from the list, at most so many."""
        if self.of is None:
            first = waiting[:most]
            del waiting[: len(first)]
            return first
        taken: list[Job] = []
        left: list[Job] = []
        for job in waiting:
            fits = job.client in self.of and (most is None or len(taken) < most)
            (taken if fits else left).append(job)
        waiting[:] = left
        return taken
