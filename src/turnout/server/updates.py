"""What comes back from jobs. Rows of `Updates` are jobs: to look at a vector, or to add vectors up, is what has them
trained (`_blocks`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.engine.blocks import Block, in_order
from turnout.server.jobs import Crew, Failures, Job, Some


class _column(cached_property[IntArray]):  # noqa: N801
    """Collect a number of each job, `[k]`, when it is first asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda updates: updates._each_job(name))


class Updates:
    """What some jobs brought back, in order of arrival.

    Arrays over rows: `clients versions staleness sent_at arrived_at samples steps`. Vectors by name: `updates["delta"]`
    is `[k, P]` (also `updates.deltas`); `weighted_sum`, `norms` and `gram` avoid bringing the whole matrix together.

    With `[privacy]` they are sealed: no vector can be looked at, only the noised sum of `server.step` comes out.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        train: Callable[[Sequence[Job]], None],
        version: int,
        ticks_per_second: int,
        model: Tensor,
        failed: Failures | None = None,
    ) -> None:
        self._crew: Crew | Some | None = jobs if type(jobs) is Crew or type(jobs) is Some else None
        self._jobs = [] if self._crew is not None else list(jobs)
        self._sealed = False
        self.failed = failed or Failures()
        self._ensure_trained = train
        self._version = version
        self._ticks = ticks_per_second
        self._model = model  # [P] any one: what the vectors look like where there is none

    @classmethod
    def computed(cls, jobs: Sequence[Job], version: int, model: Tensor) -> Updates:
        """Wrap jobs whose vectors are all there already, such as those of a round's record."""
        return cls(jobs, lambda _: None, version, 1, model)

    def sealed(self, seal: bool = True) -> Updates:
        """Copy them with vectors that cannot be looked at, or can again."""
        if self._sealed == seal:
            return self
        same = copy.copy(self)
        same._sealed = seal
        return same

    def _check_open(self) -> None:
        if self._sealed:
            raise UserError(
                "privacy.noise: updates are sealed, and only the noised sum of a step comes out; this algorithm or "
                "sampler looks at single ones"
            )

    @property
    def jobs(self) -> list[Job]:
        self._check_open()
        return self._rows

    @property
    def crew(self) -> Crew | Some | None:
        self._check_open()
        return self._crew

    @property
    def _rows(self) -> list[Job]:
        return self._jobs if self._crew is None else self._crew.jobs

    @property
    def columns(self) -> Crew | Some | None:
        """Give jobs that are `together` as columns."""
        return self._crew if self._crew is not None and self._crew.together else None

    @property
    def used(self) -> bool:
        """Tell whether some of them have counted in a step, or come twice."""
        if (crew := self.columns) is not None:
            return crew.used
        return len(set(self._rows)) < len(self) or any(job.used for job in self._rows)

    def mark_used(self) -> None:
        """Note that they have counted in a step."""
        if (crew := self.columns) is not None:
            crew.used = True
            return
        for job in self._rows:
            job.used = True

    def __len__(self) -> int:
        return len(self._jobs) if self._crew is None else len(self._crew)

    def __add__(self, other: Updates) -> Updates:
        failed = Failures([*self.failed.jobs, *other.failed.jobs])
        version, both = max(self._version, other._version), self._rows + other._rows
        joined = Updates(both, self._ensure_trained, version, self._ticks, self._model, failed)
        return joined.sealed(self._sealed or other._sealed)

    def select(self, rows: ArrayLike) -> Updates:
        """Take some of the rows: a boolean mask or positions."""
        rows = np.asarray(rows)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        some = Updates([self._rows[i] for i in rows], self._ensure_trained, self._version, self._ticks, self._model)
        return some.sealed(self._sealed)

    @property
    def _none(self) -> Tensor:
        """Give the vectors `[0, P]` of no job at all."""
        return self._model.new_zeros(0, len(self._model))

    def _each_job(self, name: str) -> IntArray:
        """Collect a number of each job, `[k]`."""
        if (crew := self.columns) is None:
            return np.array([getattr(job, name) for job in self._rows], np.int64)
        return np.full(len(self), getattr(crew, name))  # the caller's own

    clients, numbers, versions = _column("client"), _column("number"), _column("version")
    samples, steps = _column("samples"), _column("steps")

    @property
    def released(self) -> IntArray:
        """Clients that do not start again by themselves, by a standing invitation."""
        if self.columns is not None:
            return self.clients
        return np.array([job.client for job in self._rows if not job.again], np.int64)

    @property
    def staleness(self) -> IntArray:
        return self._version - self.versions

    @cached_property
    def sent_at(self) -> FloatArray:
        return self._each_job("sent_at") / self._ticks

    @cached_property
    def arrived_at(self) -> FloatArray:
        return self._each_job("ends_at") / self._ticks

    def _blocks(self, held: bool = False) -> list[Part]:
        """Have the jobs trained, unless that was done, and give their rows `by_block`."""
        self._check_open()
        if (crew := self.columns) is not None:
            if crew.block is None:
                self._ensure_trained(crew)
            if crew.block is not None:
                there, here = crew.places, range(len(self))
                return [(crew.block, there, there if there == here else here)]
        if not held and any(job.hold for job in self._rows):
            raise UserError(
                "updates: some vectors are still held by their clients; server.fetch(clients) brings them home"
            )
        if any(job.result is None for job in self._rows):
            self._ensure_trained(self._rows)
        results = [job.result for job in self._rows]
        assert None not in results
        return by_block(cast(list[tuple[Block, int]], results))

    def __getitem__(self, name: str) -> Tensor:
        """Give the named vectors `[k, ...]`, row by row; not to be changed in place."""
        return self.gather(name)

    def gather(self, name: str, held: bool = False) -> Tensor:
        """Give the same; also of held updates, which only a simulation can know."""
        if not len(self):
            return self._none
        return self._each("some", name, held)

    def _each(self, method: str, name: str, held: bool = False) -> Tensor:
        """Collect what blocks say of their rows, `[k, ...]`, row by row."""
        blocks = self._blocks(held)
        parts = list(in_order(block.ask(method, name, there) for block, there, _ in blocks))
        values = parts[0] if len(parts) == 1 else torch.cat(parts)
        order = [row for _, _, rows in blocks for row in rows]
        if order == list(range(len(order))):
            return values
        return values[torch.as_tensor(np.argsort(order), device=values.device)]

    @property
    def deltas(self) -> Tensor:
        """Give returned minus received, `[k, P]`."""
        return self["delta"]

    def received(self) -> Tensor:
        """Give the model each job started from, `[k, P]`."""
        return torch.stack([job.received for job in self._rows]) if self._rows else self._none

    def returned(self) -> Tensor:
        """Give the model each job ended with, `[k, P]`."""
        return self.received() + self.deltas

    def weighted_sum(self, weights: ArrayLike, name: str = "delta") -> Tensor:
        """Compute `sum_i weights[i] * row_i`, block by block, each where it is."""
        self._check_open()
        weights = np.asarray(weights, np.float64)
        if len(self._jobs) == 1 and (result := self._jobs[0].result) is not None and not self._jobs[0].hold:
            return result[0].weighted_sum(name, [result[1]], weights)
        return add_up(self._blocks(), weights, name)

    def norms(self, name: str = "delta") -> Tensor:
        """Compute Euclidean norms `[k]`: the one number that also comes with a held update."""
        return self._each("norms", name, held=True) if len(self) else self._none[:, 0]

    def finite(self, name: str = "delta") -> Tensor:
        """Tell of each row whether all numbers are finite, `[k]`."""
        return self._each("finite", name)

    def gram(self, name: str = "delta", held: bool = False) -> Tensor:
        """Compute inner products `[k, k]`; also of held updates, which only a simulation can know."""
        values = self.gather(name, held).flatten(1)
        return torch.mm(values, values.T)


Part = tuple[Block, Sequence[int], Sequence[int]]  # a block, some of its rows in order, and whose they are


def by_block(results: Sequence[tuple[Block, int]]) -> list[Part]:
    """Group rows by their blocks, with their places in the list."""
    rows = [row for _, row in results]
    everybody = range(len(rows))
    if rows == list(everybody) and len({id(block) for block, _ in results}) == 1:
        return [(results[0][0], everybody, everybody)]
    places: dict[int, list[int]] = {}
    for here, (block, _) in enumerate(results):
        places.setdefault(id(block), []).append(here)
    for there in places.values():
        there.sort(key=rows.__getitem__)
    return [(results[there[0]][0], [rows[here] for here in there], there) for there in places.values()]


def add_up(parts: Sequence[Part], weights: FloatArray, name: str = "delta") -> Tensor:
    """Compute `sum_i weights[i] * row_i`, part by part, each where it is."""
    if len(parts) == 1:
        block, there, rows = parts[0]
        return block.weighted_sum(name, there, weights if there is rows else weights[rows])
    total: Tensor | None = None
    for part in in_order(block.ask("weighted_sum", name, there, weights[rows]) for block, there, rows in parts):
        total = part if total is None else total + part
    assert total is not None, "a sum over no updates"
    return total
