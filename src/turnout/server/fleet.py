"""Jobs in flight as columns, all clients' at once: of clients that never fail and all of which are at work between two
rounds, who arrives when follows from the waiting policy alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.random import IntArray
from turnout.engine.blocks import Block
from turnout.local.sgd import LocalSGD
from turnout.server.jobs import ARRIVED, Costs, Job
from turnout.server.policy import Policy

Result = tuple[Block, int]  # what a job has brought: a block, and which of its rows


class Arrivals(NamedTuple):
    """Updates of rounds to come, in order of (arrival, client)."""

    client: IntArray  # [k]
    round: IntArray  # [k] which of the rounds uses it, from 0
    closes_at: IntArray  # [n] ticks at which the rounds close

    def first(self, rounds: int) -> Arrivals:
        """Take those of so many rounds."""
        count = int(np.searchsorted(self.round, rounds))
        return Arrivals(self.client[:count], self.round[:count], self.closes_at[:rounds])


@dataclass(eq=False)
class Fleet:
    """Jobs in flight, the job of client i in row i. All have the same work."""

    work: LocalSGD
    costs: Costs
    number: IntArray  # [N] the client's how-many-eth job
    version: IntArray  # [N] it started from
    begun_at: IntArray  # [N] ticks
    ends_at: IntArray  # [N] ticks
    received: list[Tensor]  # N models `[P]`
    results: list[Result | None]  # N; None: not trained yet
    trained: NDArray[np.bool_] = field(init=False)  # [N]

    def __post_init__(self) -> None:
        self.trained = np.array([result is not None for result in self.results], bool)

    @classmethod
    def of(cls, jobs: Sequence[Job], work: LocalSGD, costs: Costs) -> Fleet | None:
        """Line up the jobs in flight of all N clients; None where one of them is not what `costs` say."""
        if len(jobs) != len(costs.ticks) or not all(_as_costs_say(job, costs) for job in jobs):
            return None
        rows = sorted(jobs, key=lambda job: job.client)
        number, version, begun_at, ends_at = (
            np.array([getattr(job, name) for job in rows], np.int64)
            for name in ("number", "version", "sent_at", "ends_at")
        )
        received, results = [job.received for job in rows], [job.result for job in rows]
        return cls(work, costs, number, version, begun_at, ends_at, received, results)

    def __len__(self) -> int:
        return len(self.number)

    def jobs(self) -> list[Job]:
        """Make objects of them, in the order in which they began."""
        columns = (self.number, self.version, self.begun_at, self.ends_at)
        rows = list(zip(*(column.tolist() for column in columns), self.received, self.results, strict=True))
        jobs = []
        for client in np.argsort(self.begun_at, kind="stable").tolist():
            number, version, begun, ends, received, result = rows[client]
            _, samples, steps, seconds = self.costs.rows[client]
            begin = client, number, version, received, self.work, dict[str, float](), number, begun, begun
            jobs.append(Job(*begin, ends, ARRIVED, samples, steps, seconds, self.costs.bytes, result=result))
        return jobs

    # -- what comes -------------------------------------------------------------------------------------------

    def arrivals(self, policy: Policy, clock: int, window: int) -> Arrivals:
        """Find the rounds to come that use nothing but jobs in flight now; `window` is the policy's, in ticks. They end
        before a round in which nothing would arrive."""
        clients = np.argsort(self.ends_at, kind="stable")
        ends = self.ends_at[clients]
        if policy.window is None:
            count = len(self) if policy.count is None else policy.count
            closes_at = ends[count - 1 :: count]
            number = np.arange(len(closes_at) * count) // count
        else:
            number = -(-(ends - clock) // window) - 1
            gaps = np.flatnonzero(np.diff(number, prepend=-1) > 1)
            number = number[: gaps[0]] if len(gaps) else number
            closes_at = clock + window * np.arange(1, number[-1] + 2) if len(number) else ends[:0]
        found = Arrivals(clients[: len(number)], number, closes_at)
        if len(closes_at) < 2:
            return found
        back = closes_at[number] + self.costs.ticks[found.client]  # when those who begin again would arrive again
        first = np.flatnonzero(np.diff(number, prepend=-1))
        late = np.flatnonzero(np.minimum.accumulate(np.minimum.reduceat(back, first))[:-1] <= closes_at[1:])
        return found.first(int(late[0]) + 1) if len(late) else found

    def there(self, arrivals: Arrivals) -> Arrivals:
        """Take the first of these rounds, all of whose updates are trained."""
        missing = np.flatnonzero(~self.trained[arrivals.client])
        return arrivals.first(int(arrivals.round[missing[0]])) if len(missing) else arrivals

    # -- what is trained --------------------------------------------------------------------------------------

    def to_train(self, needed: IntArray, room: Callable[[int, int], int]) -> tuple[IntArray, bool]:
        """List the clients to be trained together, as a server does that goes event by event: those `needed` now, and
        of the others in flight the first to arrive. Of so many that are missing and so many results that wait, `room`
        tells how many that may be. With whether some are not needed yet."""
        missing, others = needed[~self.trained[needed]], np.ones(len(self), bool)
        others[needed] = False
        ahead = np.flatnonzero(others & ~self.trained)
        waiting = len(self) - len(needed) - len(ahead)
        ahead = ahead[np.argsort(self.ends_at[ahead], kind="stable")][: max(0, room(len(missing), waiting))]
        return np.concatenate([missing, ahead]), len(ahead) > 0

    def bring(self, client: int, result: Result) -> None:
        """Note what a client's training has given."""
        self.results[client], self.trained[client] = result, True

    def begin_again(self, arrivals: Arrivals, numbers: IntArray, version: int, models: Sequence[Tensor]) -> None:
        """Start the clients of these rounds again as their rounds close: on `models`, one a round, the first of which
        is `version`."""
        clients, number = arrivals.client, arrivals.round
        self.begun_at[clients] = arrivals.closes_at[number]
        self.ends_at[clients] = arrivals.closes_at[number] + self.costs.ticks[clients]
        self.number[clients], self.version[clients] = numbers, version + number
        self.trained[clients] = False
        for client, row in zip(clients.tolist(), number.tolist(), strict=True):
            self.received[client], self.results[client] = models[row], None

    def compact(self) -> None:
        """Let go of blocks of which most rows have been used."""
        results = [result for result in self.results if result is not None]
        left = Counter([id(block) for block, _ in results])
        for block in {id(block): block for block, _ in results if 2 * left[id(block)] < block.rows}.values():
            clients = [i for i, result in enumerate(self.results) if result is not None and result[0] is block]
            rows = {row: i for i in clients if (found := self.results[i]) is not None for row in [found[1]]}
            fewer = block.take(sorted(rows))
            for row, before in enumerate(sorted(rows)):
                self.results[rows[before]] = fewer, row


def _as_costs_say(job: Job, costs: Costs) -> bool:
    ticks, samples, steps, seconds = costs.rows[job.client]
    ordinary = job.outcome == ARRIVED and job.learnt and job.sent and not (job.options or job.hold or job.again)
    begun = job.sent_at == job.starts_at and job.batches == job.number and not job.done
    known = (job.ends_at - job.sent_at, job.samples, job.steps, job.bytes) == (ticks, samples, steps, costs.bytes)
    return ordinary and begun and known and job.seconds == seconds
