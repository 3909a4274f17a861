"""Jobs: one by one, together as columns, or failed. Times are integer ticks, unless they are called seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from turnout.clients import fates
from turnout.core.random import FloatArray, IntArray
from turnout.engine.blocks import Block
from turnout.local.modifiers import Modifier
from turnout.local.sgd import LocalSGD

ARRIVED, CRASHED, OFFLINE, LEFT = fates.ARRIVED, fates.CRASHED, fates.OFFLINE, fates.LEFT
CANCELLED = "cancelled"
SILENCED = "silenced"  # by an adversary
REJECTED = "rejected"  # a real client's answer that is not what was asked for
REFUSED = "refused"  # by a real client, whose policy is against it
NOT_KNOWN = -1  # the end of a job of which nothing is known


@dataclass(slots=True, eq=False)
class Job:
    """One client working on one received version. Times are integer ticks."""

    client: int
    number: int  # the client's how-many-eth job: with the client it names the job
    version: int  # the version it started from
    received: Tensor  # [P] the model it started from
    work: LocalSGD
    options: dict[str, float]  # this client's own numbers for the work
    batches: int  # the job number that keys its mini-batches: an interrupted job that goes on keeps it
    sent_at: int
    starts_at: int  # samples are those the client has then
    ends_at: int  # when the server hears, or when it would if it could
    outcome: str  # what will have happened by then
    samples: int
    steps: int
    seconds: tuple[float, float, float]  # download, compute, upload: spent by the end, pro rata if cut short
    bytes: tuple[int, int]  # down, up
    done: float = 0.0  # share of the local work done before this job began
    progress: float = 1.0  # share of the local work done at the end
    learnt: bool = True  # whether the server learns of the end at all
    hold: bool = False  # the vectors stay with the client until fetched
    again: bool = False  # a standing invitation
    sent: bool = True  # a model was sent for it; False: the client went on from what it had
    has_model: bool = True  # whether the client had received its model by the end
    used: bool = False  # in a step
    logged: bool = False  # in the history
    result: tuple[Block, int] | None = None  # a block of trained rows, and which row is this job's
    state: tuple[Block, int] | None = None  # new client state, until it is committed
    local: tuple[Block, int] | None = None  # final local parameters, for clients that go on from them

    @property
    def name(self) -> tuple[int, int]:
        return self.client, self.number


class Costs(NamedTuple):
    """What a job takes, by client, where nothing can go wrong."""

    ticks: IntArray  # [N]
    samples: IntArray
    steps: IntArray
    seconds: FloatArray  # [N, 3]
    bytes: tuple[int, int]
    rows: list[tuple[int, int, int, tuple[float, float, float]]]  # the same, to look up one by one


@dataclass(eq=False, repr=False)
class Crew(Sequence[Job]):
    """Jobs of one invitation of which all is known beforehand, kept as columns; in order of arrival once they have
    arrived. Whoever looks at one of them makes objects of them all, and from then on those are what counts."""

    work: LocalSGD
    received: Tensor  # [P] the model all started from
    version: int
    sent_at: int
    costs: Costs
    client: IntArray  # [k]
    number: IntArray  # [k]
    ends_at: IntArray  # [k]
    together: bool = True  # nobody has looked
    block: Block | None = None  # what they brought, row by row
    used: bool = False
    logged: bool = False
    _jobs: list[Job] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.client)

    def __getitem__(self, row: Any) -> Any:
        return self.jobs[row]

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    @property
    def samples(self) -> IntArray:
        return self.costs.samples[self.client]

    @property
    def steps(self) -> IntArray:
        return self.costs.steps[self.client]

    @property
    def seconds(self) -> FloatArray:
        """Look up download, compute and upload, `[k, 3]`."""
        return self.costs.seconds[self.client]

    @property
    def bytes(self) -> tuple[int, int]:
        return self.costs.bytes

    def sort(self) -> None:
        """Put them in order of (arrival, client)."""
        order = np.lexsort((self.client, self.ends_at))
        self.client, self.number, self.ends_at = self.client[order], self.number[order], self.ends_at[order]

    @property
    def jobs(self) -> list[Job]:
        """Make objects of them, the first time."""
        if self.together:
            work, received, version, begin, size = self.work, self.received, self.version, self.sent_at, self.bytes
            own = (self.client, self.number, self.ends_at, self.samples, self.steps, self.seconds)
            rows = zip(*(column.tolist() for column in own), strict=True)
            self._jobs = [
                Job(i, n, version, received, work, {}, n, begin, begin, end, ARRIVED, samples, steps, tuple(took), size)
                for i, n, end, samples, steps, took in rows
            ]
            for row, job in enumerate(self._jobs):
                job.used, job.logged = self.used, self.logged
                job.result = None if self.block is None else (self.block, row)
            self.together, self.block = False, None
        return self._jobs


def together(jobs: Sequence[Job]) -> Crew | None:
    """Find the crew that jobs are, if nobody has looked into it."""
    return jobs if type(jobs) is Crew and jobs.together else None  # `isinstance` is slow of an abstract class


def mark_logged(jobs: Sequence[Job]) -> None:
    """Note that jobs are in the history."""
    if (crew := together(jobs)) is not None:
        crew.logged = True
        return
    for job in jobs:
        job.logged = True


@dataclass(frozen=True)
class Failures:
    """Jobs that ended without an update, as far as the server has learnt of them."""

    jobs: list[Job] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def clients(self) -> IntArray:
        return np.array([job.client for job in self.jobs], np.int64)

    @property
    def versions(self) -> IntArray:
        return np.array([job.version for job in self.jobs], np.int64)

    @property
    def reasons(self) -> list[str]:
        return [job.outcome for job in self.jobs]

    @property
    def standing(self) -> NDArray[np.bool_]:
        """Tell whose standing invitation goes on: they start again by themselves."""
        return np.array([job.again for job in self.jobs], bool)


def by_work(jobs: list[Job]) -> list[list[Job]]:
    """Group jobs that share their local work."""
    works = {id(job.work): job.work for job in jobs}
    if len(works) == 1 and not any(job.options for job in jobs):
        return [jobs]
    first: dict[Any, int] = {}  # of the works that compute the same thing
    kinds = {name: first.setdefault(signature(work), name) for name, work in works.items()}
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        groups.setdefault((kinds[id(job.work)], *job.options), []).append(job)
    return list(groups.values())


def signature(work: LocalSGD | Modifier) -> tuple[Any, ...]:
    """Sign a work: equal for those that compute the same thing; numbers by value, tensors by identity."""
    return type(work), *(_simple(getattr(work, part.name)) for part in fields(work))


def _simple(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_simple, value))
    if isinstance(value, Modifier):
        return signature(value)
    if isinstance(value, Tensor):
        return id(value)
    return repr(value) if isinstance(value, list | dict) else value
