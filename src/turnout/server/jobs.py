"""Jobs: one by one, together as columns, or failed. Times are integer ticks, unless they are called seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import repeat
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

    @property
    def places(self) -> Sequence[int]:
        """Tell which row of the block each has brought."""
        return range(len(self))

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


class Columns(NamedTuple):
    """What is known of k jobs from their beginning, as in `Job`."""

    client: IntArray  # [k]
    number: IntArray
    version: Sequence[int] | IntArray
    batches: IntArray
    sent_at: IntArray
    starts_at: IntArray
    ends_at: IntArray
    outcome: NDArray[Any]  # [k] words
    samples: IntArray
    steps: IntArray
    down_seconds: FloatArray
    compute_seconds: FloatArray
    up_seconds: FloatArray
    bytes_down: IntArray
    bytes_up: IntArray
    done: FloatArray
    progress: FloatArray
    learnt: NDArray[np.bool_]
    has_model: NDArray[np.bool_]

    def take(self, rows: NDArray[Any]) -> Columns:
        """Take some of them: a mask or positions."""
        return Columns(*(np.asarray(column)[rows] for column in self))


class Wave(Sequence[Job]):
    """Jobs of large invitations that share their local work, kept as columns; other than those of a crew they may have
    begun at different times, and anything may happen to them. Whoever looks at one of them makes objects of them all,
    and from then on those are what counts."""

    def __init__(self, work: LocalSGD, received: NDArray[Any], columns: Columns) -> None:
        self.work, self.received, self.columns = work, received, columns  # received: [k] models `[P]`
        self.used, self.logged = np.zeros((2, len(columns.client)), bool)  # [k] each
        self.block: Block | None = None  # what those who arrived have brought: its first row, all of them
        self._jobs: list[Job] | None = None

    @classmethod
    def joined(cls, waves: Sequence[Wave]) -> Wave | None:
        """Make one of several; None where somebody has looked, or their works differ."""
        first = waves[0]
        if not all(wave.together and wave.work is first.work for wave in waves):
            return None
        if len(waves) == 1:
            return first
        columns = Columns(*map(np.concatenate, zip(*(wave.columns for wave in waves), strict=True)))
        return cls(first.work, np.concatenate([wave.received for wave in waves]), columns)

    def __len__(self) -> int:
        return len(self.columns.client)

    def __getitem__(self, row: Any) -> Any:
        return self.jobs[row]

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    @property
    def together(self) -> bool:
        """Tell whether nobody has looked."""
        return self._jobs is None

    @property
    def jobs(self) -> list[Job]:
        """Make objects of them, the first time."""
        if self._jobs is None:
            self._jobs = as_jobs(self.work, self.received.tolist(), self.columns)
            for job, used, logged in zip(self._jobs, self.used.tolist(), self.logged.tolist(), strict=True):
                job.used, job.logged = used, logged
                job.result = None if self.block is None or job.outcome != ARRIVED else (self.block, 0)
            self.block = None
        return self._jobs

    def take(self, rows: NDArray[Any]) -> Wave:
        """Make a wave of some that are in flight, which takes their place in it."""
        return Wave(self.work, self.received[rows], self.columns.take(rows))


def as_jobs(
    work: LocalSGD,
    received: Sequence[Tensor],
    columns: Columns,
    options: Iterable[dict[str, float]] | None = None,
    hold: bool = False,
    again: bool = False,
    sent: bool = True,
) -> list[Job]:
    """Make objects of columns."""
    rows = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns)
    client, number, version, batches, sent_at, starts_at, ends_at, outcome, samples, steps, *rest = rows
    down, compute, up, got, given, done, progress, learnt, has_model = rest
    own = ({} for _ in client) if options is None else options
    begun = client, number, version, received, repeat(work), own, batches, sent_at, starts_at, ends_at, outcome
    spent = samples, steps, zip(down, compute, up, strict=True), zip(got, given, strict=True), done, progress
    return list(map(Job, *begun, *spent, learnt, repeat(hold), repeat(again), repeat(sent), has_model))


def _of_wave(name: str) -> property:
    return property(lambda some: getattr(some.wave.columns, name)[some.rows], doc=f"Look up `{name}`, `[k]`.")


@dataclass(eq=False, repr=False)
class Some(Sequence[Job]):
    """Some jobs of a wave."""

    wave: Wave
    rows: IntArray  # [k]

    client, number, version, samples, steps = map(_of_wave, ("client", "number", "version", "samples", "steps"))
    sent_at, ends_at, outcome = map(_of_wave, ("sent_at", "ends_at", "outcome"))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: Any) -> Any:
        return self.jobs[row]

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    @cached_property
    def jobs(self) -> list[Job]:
        """Give objects, made of the whole wave the first time."""
        every = self.wave.jobs
        return [every[row] for row in self.rows.tolist()]

    @property
    def together(self) -> bool:
        """Tell whether nobody has looked into the wave."""
        return self.wave.together

    @property
    def block(self) -> Block | None:
        return self.wave.block

    @property
    def places(self) -> Sequence[int]:
        """Tell which row of the block each has brought."""
        return [0] * len(self)

    @property
    def used(self) -> bool:
        """Tell whether some of them have counted in a step."""
        return bool(self.wave.used[self.rows].any())

    @used.setter
    def used(self, used: bool) -> None:
        self.wave.used[self.rows] = used


def together(jobs: Sequence[Job]) -> Crew | None:
    """Find the crew that jobs are, if nobody has looked into it."""
    return jobs if type(jobs) is Crew and jobs.together else None  # `isinstance` is slow of an abstract class


def columns_of(jobs: Sequence[Job]) -> Some | None:
    """Find the part of a wave that jobs are, if nobody has looked into it."""
    return jobs if type(jobs) is Some and jobs.together else None


def mark_logged(jobs: Sequence[Job]) -> None:
    """Note that jobs are in the history."""
    if (crew := together(jobs)) is not None:
        crew.logged = True
        return
    if (some := columns_of(jobs)) is not None:
        some.wave.logged[some.rows] = True
        return
    for job in jobs:
        job.logged = True


@dataclass(frozen=True)
class Failures:
    """Jobs that ended without an update, as far as the server has learnt of them."""

    jobs: Sequence[Job] = ()

    def __len__(self) -> int:
        return len(self.jobs)

    def _each(self, name: str) -> Any:
        some = columns_of(self.jobs)
        return [getattr(job, name) for job in self.jobs] if some is None else getattr(some, name)

    @property
    def clients(self) -> IntArray:
        return np.array(self._each("client"), np.int64)

    @property
    def versions(self) -> IntArray:
        return np.array(self._each("version"), np.int64)

    @property
    def reasons(self) -> list[str]:
        return list(self._each("outcome"))

    @property
    def standing(self) -> NDArray[np.bool_]:
        """Tell whose standing invitation goes on: they start again by themselves."""
        if columns_of(self.jobs) is not None:
            return np.zeros(len(self.jobs), bool)
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
