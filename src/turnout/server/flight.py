"""Jobs in flight: whose they are, when each ends, and a wait for them."""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnout.core.errors import UserError
from turnout.core.random import IntArray
from turnout.server.fleet import Fleet
from turnout.server.jobs import ARRIVED, NOT_KNOWN, Crew, Job, Wave, together

End = tuple[int, int, int]  # tick, client, job number


class Queue:
    """Keep the ends of jobs in order of (tick, client): a heap."""

    def __init__(self) -> None:
        self._heap: list[End] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, ends: list[End]) -> None:
        if len(ends) < len(self._heap) // 8:
            for end in ends:
                heapq.heappush(self._heap, end)
        else:
            self._heap += ends
            self._heap.sort()

    def due(self, close: int | None) -> bool:
        """Tell whether the first end comes by tick `close` (None: ever)."""
        return bool(self._heap) and (close is None or self._heap[0][0] <= close)

    def take(self, most: int, close: int | None) -> list[End]:
        """Remove the first ends by tick `close`, at most so many."""
        heap = self._heap
        first: list[End] = []
        few = min(most, len(heap) // 8)
        if few < most and close is None:
            few = 0
        while len(first) < few and (close is None or heap[0][0] <= close):
            first.append(heapq.heappop(heap))
        if len(first) == few < most:  # there may be many more
            heap.sort()  # a heap still
            more = min(most - few, len(heap) if close is None else bisect(heap, (close + 1,)))
            first += heap[:more]
            del heap[:more]
        return first


class Flight:
    """Keep jobs in flight, one by one or as columns, with the queue of their ends."""

    def __init__(self, clients: int) -> None:
        self.busy = np.zeros(clients, bool)  # [N] whose job is in flight
        self.crew: Crew | None = None  # together and alone
        self.fleet: Fleet | None = None  # the same of jobs of all clients, that began at different times
        self.waves: list[Wave] = []  # as columns, of whatever happens to them; then there are no others
        self.learnt = self.standing = 0  # jobs whose end will be known; jobs under a standing invitation
        self._jobs: dict[int, Job] = {}
        self._queue = Queue()

    def __len__(self) -> int:
        return len(self._jobs) + len(self.crew or self.fleet or ()) + sum(map(len, self.waves))

    @property
    def jobs(self) -> dict[int, Job]:
        """Give the jobs by client; whoever looks finds them one by one."""
        self._disperse()
        return self._jobs

    @property
    def queue(self) -> Queue:
        """Give the ends of the jobs one by one."""
        self._disperse()
        return self._queue

    def enter(self, clients: IntArray | list[int], jobs: Sequence[Job]) -> None:
        """Add jobs that have just begun, one for each of `clients`."""
        self.busy[clients] = True
        if type(jobs) is Crew:
            self.crew = jobs
            return
        if type(jobs) is Wave and (self.waves or not len(self)):
            self.waves.append(jobs)
            return
        self._disperse()
        self._add(jobs)

    def enter_fleet(self, fleet: Fleet) -> None:
        """Take a fleet, which has all jobs in flight, in their place."""
        self.fleet, self._jobs, self._queue = fleet, {}, Queue()
        self.learnt = self.standing = 0

    def _disperse(self) -> None:
        crew, fleet = self.crew, self.fleet
        self.crew = self.fleet = None
        waves, self.waves = self.waves, []
        for wave in waves:
            self._add(wave.jobs)
        if crew is not None:
            self._add(crew.jobs)
        if fleet is not None:
            self._add(fleet.jobs())

    def _add(self, jobs: Sequence[Job]) -> None:
        self._jobs |= {job.client: job for job in jobs}
        self.learnt += sum([job.learnt for job in jobs])
        self.standing += sum([job.again for job in jobs])
        ends = [(job.ends_at, job.client, job.number) for job in jobs if job.learnt and job.ends_at != NOT_KNOWN]
        self._queue.add(ends)

    def leave(self, jobs: Sequence[Job]) -> None:
        """Remove jobs that are over."""
        in_flight = self.jobs
        for job in jobs:
            del in_flight[job.client]
            self.busy[job.client] = False
        self.learnt -= sum([job.learnt for job in jobs])
        self.standing -= sum([job.again for job in jobs])

    def take_whole(self, most: int | None, close: int | None) -> Crew | None:
        """Remove the crew, in order of arrival, if it has at most so many jobs and the last ends by tick `close`."""
        crew = together(self.crew or ())
        if crew is None or (most is not None and most < len(crew)):
            return None
        if close is not None and crew.ends_at.max() > close:
            return None
        crew.sort()
        self.crew = None
        self.busy[crew.client] = False
        return crew

    def take_wave(self, count: int | None, close: int | None) -> Wave | None:
        """Remove the first jobs of the waves in flight to end, in order of (tick, client): until so many have arrived,
        or all by tick `close`. None where it is neither, or not known to come."""
        if not self.waves or (count is None) == (close is None):
            return None
        if (wave := Wave.joined(self.waves)) is None:
            return None
        self.waves = [wave]
        columns = wave.columns
        rows = np.flatnonzero(columns.learnt)
        order = rows[np.lexsort((columns.client[rows], columns.ends_at[rows]))]
        if count is None:
            assert close is not None
            first = int(np.searchsorted(columns.ends_at[order], close, side="right"))
        else:
            arrived = np.cumsum(columns.outcome[order] == ARRIVED)
            first = int(np.searchsorted(arrived, count)) + 1
            if count < 1 or first > len(order):
                return None
        ended, left = order[:first], np.ones(len(wave), bool)
        left[ended] = False
        self.waves = [wave.take(left)] if first < len(wave) else []
        self.busy[columns.client[ended]] = False
        return wave.take(ended)

    def take_ended(self, most: int, close: int | None) -> list[Job]:
        """Find the jobs of the first ends in the queue, without those cancelled before; they are in flight still."""
        in_flight = self.jobs
        return [
            job
            for _, client, number in self._queue.take(most, close)
            if (job := in_flight.get(client)) is not None and job.number == number
        ]


@dataclass(slots=True)
class Waiting:
    """Count what one wait is for, until `count` updates are in, at most until tick `close`; see `Server.wait`."""

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
            self.expected, self.alive = len(awaited), sum(job.learnt for job in awaited)
            standing = sum(job.again for job in awaited)
        if standing and self.count is None and self.close is None:
            raise UserError("wait: a standing invitation never ends; say how many updates or how long to wait for")

    def add_begun(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if self.of is None or job.client in self.of:
                self.expected, self.alive = self.expected + 1, self.alive + job.learnt

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
