"""Waiting policies: when a round closes, and when its clients start again. Their events, without touching a model.

Fraboni et al., "A general theory for federated optimization with asynchronous and heterogeneous clients updates",
JMLR 2023, section 4: synchronous FedAvg, asynchronous FedAvg, FedFix and FedBuff differ in nothing else.

    Policy()                   all have answered        (synchronous FedAvg)
    Policy(count=1)            at each arrival          (asynchronous FedAvg)
    Policy(count=c)            c updates are in         (FedBuff; `restart`: clients do not wait for the flush)
    Policy(window=w)           every w seconds          (FedFix)

How often a client is heard under one, and the weight that makes up for it, d_i = p_i / f_i with f_i its updates a round
(table 2: a renewal argument): then sum_i d_i f_i = sum_i p_i, and the model is pulled towards the intended objective,
however unequal the speeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.server.durations import Durations

_UPDATES_OF_SLOWEST = 200  # in the schedule a rate is counted in, where it has no closed form
_MOST_UPDATES = 2_000_000  # in that schedule, of everybody
_FEW = 3  # updates too few to count a rate by
_MEMORY = 0.1  # of the moving average of measured gaps


@dataclass(frozen=True)
class Schedule:
    """Rows are updates, in order of use: when each arrived, which round used it and when that closed, whose it was,
    and the version it had received. Times are seconds."""

    arrived_at: FloatArray
    closed_at: FloatArray
    round: IntArray  # aggregations before it
    client: IntArray
    version: IntArray
    clients: int  # N
    rounds: int  # closed in all, empty ones too
    seconds: float  # when the last one closed
    restart: bool = False  # clients began their next jobs at their arrivals, not at the closes

    def __len__(self) -> int:
        return len(self.client)

    @property
    def staleness(self) -> IntArray:
        return self.round - self.version

    @property
    def counts(self) -> IntArray:
        """Count the updates of each client that were used, `[N]`."""
        return np.bincount(self.client, minlength=self.clients)

    @property
    def rates(self) -> FloatArray:
        """Count the updates of each client a round, `[N]`: f_i over this horizon."""
        return self.counts / max(1, self.rounds)

    def between(self, first: int, last: int) -> Schedule:
        """Take the rounds `first <= n < last`."""
        kept = slice(*np.searchsorted(self.round, [first, last]))
        columns = ("arrived_at", "closed_at", "round", "client", "version")
        return replace(self, **{name: getattr(self, name)[kept] for name in columns}, rounds=last - first)

    def period(self) -> tuple[int, int] | None:
        """Find two rounds `(first, last)` after which every client is equally far with its job, if there are such: with
        fixed durations the schedule repeats from there for ever. The window of fairness W is `last - first`."""
        begins = np.zeros(self.clients)  # since when each works on what it has
        ends = np.searchsorted(self.round, np.arange(1, self.rounds + 1))
        seen: dict[bytes, int] = {}
        row = 0
        for number, end in enumerate(ends.tolist()):
            if end == row:
                continue
            close = self.closed_at[end - 1]
            begins[self.client[row:end]] = self.arrived_at[row:end] if self.restart else close
            state = blake2b(np.round((close - begins) * 1e6).tobytes(), digest_size=16).digest()
            if state in seen:
                return seen[state], number
            seen[state], row = number, end
        return None


@dataclass(frozen=True)
class Policy:
    """`count` updates close a round (None: everybody's), or every multiple of `window` seconds does."""

    count: int | None = None
    window: float | None = None
    restart: bool = False

    def schedule(self, durations: Durations, rounds: int | None = None, seconds: float | None = None) -> Schedule:
        """List the events of clients that never fail, for so many rounds or so much time, whichever comes first."""
        seconds = None if seconds == math.inf else seconds
        if rounds is None and seconds is None:
            raise UserError("schedule: give rounds or seconds, or it never ends")
        if (rounds is not None and rounds < 0) or (seconds is not None and not seconds >= 0):
            raise UserError(f"schedule: {rounds} rounds and {seconds} seconds; neither may be below 0")
        if self.window is not None and not self.window > 0:
            raise UserError(f"schedule: a window of {self.window} seconds; it must be above 0")
        people = durations.population
        ticks = people.ticks_per_second
        last_round = 1 << 62 if rounds is None else rounds
        horizon = 1 << 62 if seconds is None else min(round(seconds * ticks), 1 << 62)
        duration = _lookup(durations)
        if self.window is not None:
            events = _by_window(duration, people.size, max(1, round(self.window * ticks)), last_round, horizon)
        else:
            count = people.size if self.count is None else self.count
            if count < 1 or (count > people.size and not self.restart):
                raise UserError(f"schedule: a round of {count} updates needs as many of the {people.size} clients")
            events = _by_count(duration, people.size, count, self.restart, last_round, horizon)
        rows, closes = events
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        arrived, number, client, version = columns
        closed = np.asarray(closes, np.int64)
        end = closed[-1] if len(closed) else 0
        return Schedule(
            arrived / ticks,
            closed[number] / ticks,
            number,
            client,
            version,
            people.size,
            len(closed),
            end / ticks,
            restart=self.restart,
        )


Row = tuple[int, int, int, int]  # arrival tick, round, client, version received
Duration = Callable[[int, int], int]  # of job number n of client i


def _lookup(durations: Durations) -> Duration:
    """Look up durations as plain integers, drawn for all clients at once, a job number at a time."""
    table: list[list[int]] = [durations.ticks(0).tolist()]
    same = durations.fixed

    def duration(client: int, job: int) -> int:
        if same:
            return table[0][client]
        while job >= len(table):
            table.append(durations.ticks(len(table)).tolist())
        return table[job][client]

    return duration


def _by_count(
    duration: Duration, clients: int, count: int, restart: bool, last_round: int, horizon: int
) -> tuple[list[Row], list[int]]:
    rows: list[Row] = []
    closes: list[int] = []
    jobs, versions = [1] * clients, [0] * clients  # jobs begun, version received
    heap = [(duration(client, 0), client) for client in range(clients)]
    heapify(heap)
    inbox = 0
    while len(closes) < last_round and heap[0][0] <= horizon:
        tick, client = heap[0]
        number = len(closes)
        rows.append((tick, number, client, versions[client]))
        inbox += 1
        if inbox == count:
            closes.append(tick)
            inbox, number = 0, number + 1
            if not restart:
                heappop(heap)
                for _, _, back, _ in rows[-count:]:
                    versions[back] = number
                    heappush(heap, (tick + duration(back, jobs[back]), back))
                    jobs[back] += 1
                continue
        if restart:
            versions[client] = number
            heapreplace(heap, (tick + duration(client, jobs[client]), client))
            jobs[client] += 1
        else:
            heappop(heap)
    return rows[: len(rows) - inbox], closes


def _by_window(
    duration: Duration, clients: int, width: int, last_round: int, horizon: int
) -> tuple[list[Row], list[int]]:
    rows: list[Row] = []
    closes: list[int] = []
    jobs, versions = [1] * clients, [0] * clients
    heap = [(duration(client, 0), client) for client in range(clients)]
    heapify(heap)
    close = width
    while len(closes) < last_round and close <= horizon:
        number, first = len(closes), len(rows)
        while heap and heap[0][0] <= close:
            tick, client = heappop(heap)
            rows.append((tick, number, client, versions[client]))
        for _, _, back, _ in rows[first:]:
            versions[back] = number + 1
            heappush(heap, (close + duration(back, jobs[back]), back))
            jobs[back] += 1
        closes.append(close)
        close += width
    return rows, closes


def rates(policy: Policy, durations: Durations) -> FloatArray:
    """Find f_i `[N]`, the long-run updates of each client a round, of clients that never fail."""
    people = durations.population
    count = people.size if policy.count is None else policy.count
    if policy.window is not None:
        return np.asarray(1 / durations.mean_windows(policy.window))
    if policy.restart or count == 1:
        speed = 1 / durations.mean
        return np.asarray(count * speed / speed.sum())
    if count == people.size:
        return np.ones(people.size)
    return _counted(policy, durations)


def _counted(policy: Policy, durations: Durations) -> FloatArray:
    """Count rates in the schedule itself: exact over a period if it shows one, else over its second half."""
    updates = _UPDATES_OF_SLOWEST if durations.fixed else 20 * _UPDATES_OF_SLOWEST
    enough = _MOST_UPDATES / float((1 / durations.mean).sum())
    schedule = policy.schedule(durations, seconds=min(updates * float(durations.mean.max()), enough))
    period = schedule.period() if durations.fixed else None
    if period is not None:
        return schedule.between(period[0] + 1, period[1] + 1).rates
    counted = schedule.between(schedule.rounds // 2, schedule.rounds)
    a_round = schedule.seconds / max(1, schedule.rounds)
    alone = a_round / (durations.mean + a_round / 2)  # a slow client waits half a round for its flush
    return np.where(counted.counts >= _FEW, counted.rates, alone)


@dataclass
class Gaps:
    """Measured rates: a moving average of the rounds between two updates of a client, whose inverse is f_i.

    Before its second update a client counts p_i N / |S|, as if all were equally fast.
    """

    mean: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N]; 0: not known yet
    last: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N] version of the last update

    def begin(self, clients: int) -> None:
        self.mean, self.last = np.zeros(clients), np.full(clients, -1)

    def inverse_rates(self, version: int, clients: IntArray) -> FloatArray:
        """Estimate `1 / f_i` of the clients aggregated now, these updates included."""
        _, place, times = np.unique(clients, return_inverse=True, return_counts=True)  # twice in one buffer: half a gap
        gaps = (version - self.last[clients]) / times[place]
        seen, known = self.last[clients] >= 0, self.mean[clients] > 0
        kept = (1 - _MEMORY) ** times[place]
        learnt = np.where(known, kept * self.mean[clients] + (1 - kept) * gaps, gaps)
        self.mean[clients] = np.where(seen, learnt, 0.0)
        self.last[clients] = version
        return np.where(seen, learnt, len(self.mean) / max(1, len(clients)))
