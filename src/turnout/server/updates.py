"""Jobs and what comes back from them. Rows of `Updates` are jobs; their vectors are computed only when looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.cohort.blocks import Block, in_order
from turnout.errors import UserError
from turnout.local.sgd import LocalSGD

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

ARRIVED, CRASHED, OFFLINE, LEFT, CANCELLED = "arrived", "crashed", "offline", "left", "cancelled"
SILENCED = "silenced"  # by an adversary
REJECTED = "rejected"  # a real client's answer that is not what was asked for


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
    heard: bool = True  # whether the server learns of the end at all
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


class Updates:
    """What some jobs brought back, in order of arrival.

    Arrays over rows: `clients versions staleness sent_at arrived_at samples steps`. Vectors by name: `updates["delta"]`
    is `[k, P]` (also `updates.deltas`); `weighted_sum`, `norms` and `gram` avoid bringing the whole matrix together.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        train: Callable[[Sequence[Job]], None],
        version: int,
        ticks_per_second: int,
        model: Tensor,
        failed: Failures | None = None,
    ) -> None:
        self.jobs = list(jobs)
        self.failed = failed or Failures()
        self._train = train
        self._version = version
        self._ticks = ticks_per_second
        self._model = model  # [P] any one: what the vectors look like where there is none

    @classmethod
    def computed(cls, jobs: Sequence[Job], version: int, model: Tensor) -> Updates:
        """Of jobs whose vectors are all there already, such as those of a round's record."""
        return cls(jobs, lambda _: None, version, 1, model)

    def __len__(self) -> int:
        return len(self.jobs)

    def __add__(self, other: Updates) -> Updates:
        failed = Failures(self.failed.jobs + other.failed.jobs)
        return Updates(
            self.jobs + other.jobs, self._train, max(self._version, other._version), self._ticks, self._model, failed
        )

    def select(self, rows: ArrayLike) -> Updates:
        """Some of the rows: a boolean mask or positions."""
        rows = np.asarray(rows)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Updates([self.jobs[i] for i in rows], self._train, self._version, self._ticks, self._model)

    @property
    def _none(self) -> Tensor:
        """`[0, P]` the vectors of no job at all."""
        return self._model.new_zeros(0, len(self._model))

    @staticmethod
    def _column(values: list[int]) -> IntArray:
        return np.array(values, np.int64)

    @cached_property
    def clients(self) -> IntArray:
        return self._column([job.client for job in self.jobs])

    @cached_property
    def numbers(self) -> IntArray:
        return self._column([job.number for job in self.jobs])

    @cached_property
    def versions(self) -> IntArray:
        return self._column([job.version for job in self.jobs])

    @property
    def staleness(self) -> IntArray:
        return self._version - self.versions

    @cached_property
    def sent_at(self) -> FloatArray:
        return self._column([job.sent_at for job in self.jobs]) / self._ticks

    @cached_property
    def arrived_at(self) -> FloatArray:
        return self._column([job.ends_at for job in self.jobs]) / self._ticks

    @cached_property
    def samples(self) -> IntArray:
        return self._column([job.samples for job in self.jobs])

    @cached_property
    def steps(self) -> IntArray:
        return self._column([job.steps for job in self.jobs])

    def _blocks(self, held: bool = False) -> list[tuple[Block, list[int], list[int]]]:
        """The trained rows, `by_block`."""
        if not held and any(job.hold for job in self.jobs):
            raise UserError(
                "updates: some vectors are still held by their clients; server.fetch(clients) brings them home"
            )
        if any(job.result is None for job in self.jobs):
            self._train(self.jobs)
        results = [job.result for job in self.jobs]
        assert None not in results
        return by_block(cast(list[tuple[Block, int]], results))

    def __getitem__(self, name: str) -> Tensor:
        """`[k, ...]` the named vectors, row by row; not to be changed in place."""
        return self.gather(name)

    def gather(self, name: str, held: bool = False) -> Tensor:
        """The same; also of held updates, which only a simulation can know."""
        if not self.jobs:
            return self._none
        return self._each("some", name, held)

    def _each(self, method: str, name: str, held: bool = False) -> Tensor:
        """`[k, ...]` what blocks say of their rows, row by row."""
        blocks = self._blocks(held)
        parts = list(in_order(block.ask(method, name, there) for block, there, _ in blocks))
        values = parts[0] if len(parts) == 1 else torch.cat(parts)
        order = [row for _, _, rows in blocks for row in rows]
        if order == list(range(len(order))):
            return values
        return values[torch.as_tensor(np.argsort(order), device=values.device)]

    @property
    def deltas(self) -> Tensor:
        """`[k, P]` returned minus received."""
        return self["delta"]

    def received(self) -> Tensor:
        """`[k, P]` the model each job started from."""
        return torch.stack([job.received for job in self.jobs]) if self.jobs else self._none

    def returned(self) -> Tensor:
        """`[k, P]` the model each job ended with."""
        return self.received() + self.deltas

    def weighted_sum(self, weights: ArrayLike, name: str = "delta") -> Tensor:
        """`sum_i weights[i] * row_i`, block by block, each where it is."""
        weights = np.asarray(weights, np.float64)
        if len(self.jobs) == 1 and (result := self.jobs[0].result) is not None and not self.jobs[0].hold:
            return result[0].weighted_sum(name, [result[1]], weights)
        total: Tensor | None = None
        blocks = self._blocks()
        for part in in_order(block.ask("weighted_sum", name, there, weights[rows]) for block, there, rows in blocks):
            total = part if total is None else total + part
        assert total is not None, "a sum over no updates"
        return total

    def norms(self, name: str = "delta") -> Tensor:
        """`[k]` Euclidean norms: the one number that also comes with a held update."""
        return self._each("norms", name, held=True) if self.jobs else self._none[:, 0]

    def finite(self, name: str = "delta") -> Tensor:
        """`[k]` whether all numbers of a row are."""
        return self._each("finite", name)

    def gram(self, name: str = "delta", held: bool = False) -> Tensor:
        """`[k, k]` inner products; also of held updates, which only a simulation can know."""
        values = self.gather(name, held).flatten(1)
        return torch.mm(values, values.T)


def by_block(results: Sequence[tuple[Block, int]]) -> list[tuple[Block, list[int], list[int]]]:
    """Rows of several blocks, block by block: (block, rows of the block in order, their places in the list)."""
    rows = [row for _, row in results]
    if rows == list(range(len(rows))) and len({id(block) for block, _ in results}) == 1:
        return [(results[0][0], rows, rows)]
    places: dict[int, list[int]] = {}
    for here, (block, _) in enumerate(results):
        places.setdefault(id(block), []).append(here)
    for there in places.values():
        there.sort(key=rows.__getitem__)
    return [(results[there[0]][0], [rows[here] for here in there], there) for there in places.values()]
