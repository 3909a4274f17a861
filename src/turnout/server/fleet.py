"""Jobs in flight as columns, all clients' at once: of clients that never fail and all of which are at work between two
rounds, who arrives when follows from the waiting policy alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from turnout.clients.fates import FOREVER
from turnout.core.random import IntArray
from turnout.engine.blocks import Block
from turnout.local.sgd import LocalSGD
from turnout.server.jobs import ARRIVED, Costs, Job
from turnout.server.policy import Policy
from turnout.server.updates import by_block

NONE = -1


class Arrivals(NamedTuple):
    """Updates of rounds to come, in order of (arrival, client)."""

    client: IntArray  # [k]
    round: IntArray  # [k] which of the rounds uses it, from 0
    closes_at: IntArray  # [n] ticks at which the rounds close

    def first(self, rounds: int) -> Arrivals:
        """Take those of so many rounds."""
        count = int(np.searchsorted(self.round, rounds))
        return Arrivals(self.client[:count], self.round[:count], self.closes_at[:rounds])

    def after(self, rounds: int) -> Arrivals:
        """Take those after so many rounds."""
        count = int(np.searchsorted(self.round, rounds))
        return Arrivals(self.client[count:], self.round[count:] - rounds, self.closes_at[rounds:])


_NOTHING = Arrivals(*(np.zeros(0, np.int64) for _ in Arrivals._fields))


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
    block: IntArray  # [N] of `blocks`, where the job is trained; NONE: it is not
    row: IntArray  # [N] of that block
    blocks: list[Block] = field(default_factory=list)
    coming: Arrivals = _NOTHING  # rounds that have been found and not passed

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
        none, received = np.full(len(rows), NONE), [job.received for job in rows]
        fleet = cls(work, costs, number, version, begun_at, ends_at, received, none, none.copy())
        trained = [job for job in rows if job.result is not None]
        for block, there, places in by_block([job.result for job in trained if job.result is not None]):
            fleet.bring(np.array([trained[place].client for place in places]), block, there)
        return fleet

    def __len__(self) -> int:
        return len(self.number)

    def jobs(self) -> list[Job]:
        """Make objects of them, in the order in which they began."""
        columns = (self.number, self.version, self.begun_at, self.ends_at)
        results = [None if block is None else (block, row) for block, row in self.results(np.arange(len(self)))]
        rows = list(zip(*(column.tolist() for column in columns), self.received, results, strict=True))
        jobs = []
        for client in np.argsort(self.begun_at, kind="stable").tolist():
            number, version, begun, ends, received, result = rows[client]
            _, samples, steps, seconds = self.costs.rows[client]
            begin = client, number, version, received, self.work, dict[str, float](), number, begun, begun
            jobs.append(Job(*begin, ends, ARRIVED, samples, steps, seconds, self.costs.bytes, result=result))
        return jobs

    # -- what comes -------------------------------------------------------------------------------------------

    def arrivals(self, policy: Policy, clock: int, window: int) -> Arrivals:
        """Find rounds to come that use nothing but jobs in flight now; `window` is the policy's, in ticks. They end
        before a round in which nothing would arrive."""
        if not len(self.coming.closes_at):
            self.coming = self._found(policy, clock, window)
        return self.coming

    def _found(self, policy: Policy, clock: int, window: int) -> Arrivals:
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
        last = closes_at
        if policy.window is None and int(back.max()) < FOREVER // len(self):  # of two at the same tick the lower client
            back, last = back * len(self) + found.client, closes_at * len(self) + found.client[count - 1 :: count]
        first = np.flatnonzero(np.diff(number, prepend=-1))
        late = np.flatnonzero(np.minimum.accumulate(np.minimum.reduceat(back, first))[:-1] <= last[1:])
        return found.first(int(late[0]) + 1) if len(late) else found

    def there(self, arrivals: Arrivals) -> Arrivals:
        """Take the first of these rounds, all of whose updates are trained."""
        missing = np.flatnonzero(self.block[arrivals.client] == NONE)
        return arrivals.first(int(arrivals.round[missing[0]])) if len(missing) else arrivals

    # -- what is trained --------------------------------------------------------------------------------------

    def to_train(self, needed: IntArray, room: Callable[[int, int], int]) -> tuple[IntArray, bool]:
        """List the clients to be trained together, as a server does that goes event by event: those `needed` now, and
        of the others in flight the first to arrive. Of so many that are missing and so many results that wait, `room`
        tells how many that may be. With whether some are not needed yet."""
        missing, others = needed[self.block[needed] == NONE], self.block == NONE
        others[needed] = False
        ahead = np.flatnonzero(others)
        waiting = len(self) - len(needed) - len(ahead)
        ahead = ahead[np.argsort(self.ends_at[ahead], kind="stable")][: max(0, room(len(missing), waiting))]
        return np.concatenate([missing, ahead]), len(ahead) > 0

    def bring(self, clients: IntArray, block: Block, rows: Sequence[int]) -> None:
        """Note what the training of clients has given: rows of a block."""
        self.block[clients], self.row[clients] = len(self.blocks), rows
        self.blocks.append(block)

    def results(self, clients: IntArray) -> Iterator[tuple[Block | None, int]]:
        """Give what clients have brought: a block, None if they are not trained, and which of its rows."""
        for number, row in zip(self.block[clients].tolist(), self.row[clients].tolist(), strict=True):
            yield None if number == NONE else self.blocks[number], row

    def begin_again(self, arrivals: Arrivals, numbers: IntArray, version: int, models: Sequence[Tensor]) -> None:
        """Start the clients of these rounds again as their rounds close: on `models`, one a round, the first of which
        is `version`."""
        clients, number = arrivals.client, arrivals.round
        self.begun_at[clients] = arrivals.closes_at[number]
        self.ends_at[clients] = arrivals.closes_at[number] + self.costs.ticks[clients]
        self.number[clients], self.version[clients] = numbers, version + number
        self.block[clients] = NONE
        for client, row in zip(clients.tolist(), number.tolist(), strict=True):
            self.received[client] = models[row]
        self.coming = self.coming.after(len(arrivals.closes_at))

    def compact(self, room: int) -> None:
        """Let go of blocks that have been used, and of rows that have, where they are more than those waited for and
        more than there is `room` for."""
        left = np.bincount(self.block[self.block != NONE], minlength=len(self.blocks))
        numbers, kept = np.flatnonzero(left), self.blocks
        places = np.full(len(kept) + 1, NONE)  # the last is that of NONE
        places[numbers] = np.arange(len(numbers))
        self.block, self.blocks = places[self.block], [kept[number] for number in numbers.tolist()]
        if sum(block.rows for block in self.blocks) <= max(2 * int(left.sum()), min(2 * len(self), room)):
            return
        for number, block in enumerate(self.blocks):
            clients = np.flatnonzero(self.block == number)
            if 2 * len(clients) < block.rows:
                clients = clients[np.argsort(self.row[clients])]
                self.blocks[number] = block.take(self.row[clients].tolist())
                self.row[clients] = np.arange(len(clients))


def _as_costs_say(job: Job, costs: Costs) -> bool:
    ticks, samples, steps, seconds = costs.rows[job.client]
    ordinary = job.outcome == ARRIVED and job.learnt and job.sent and not (job.options or job.hold or job.again)
    begun = job.sent_at == job.starts_at and job.batches == job.number and not job.done
    known = (job.ends_at - job.sent_at, job.samples, job.steps, job.bytes) == (ticks, samples, steps, costs.bytes)
    return ordinary and begun and known and job.seconds == seconds
