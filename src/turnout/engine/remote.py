"""The engine over workers elsewhere: the data is placed once, jobs go out in blocks, and their vectors stay there.

A training call is cut into blocks by a rule of the jobs and the plan alone. Whoever is free takes the next one, and it
is always computed alike: neither how many workers there are nor which of them die changes a bit. What a worker takes
with it when it dies is computed again by the others.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from turnout.core.errors import UserError
from turnout.core.threads import threads
from turnout.core.trees import Tree
from turnout.engine.batches import Jobs
from turnout.engine.blocks import Answer, Block
from turnout.engine.engine import Engine, Results, train_jobs
from turnout.engine.plan import Plan
from turnout.engine.train import Cohort
from turnout.local.sgd import Named
from turnout.task.task import Task

IntArray = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
Change = tuple[Any, ...]  # a method of `Block` that makes a block of it, and its arguments

SMALL = 4096  # numbers of a row that comes home at once


class LostError(Exception):
    """A worker that has died, with what it knew."""


class Pool(Protocol):
    """Workers that can be asked; each answers in order."""

    workers: list[int]  # those alive

    def put(self, array: NDArray[Any]) -> Any:
        """Share an array among many calls, as an argument of `submit`."""

    def submit(self, worker: int, method: str, *arguments: Any) -> Any:
        """Ask a worker for a method of `Worker`; returns what can be waited for."""

    def first(self, asked: Iterable[Any]) -> Any:
        """Wait for the first of these to be answered."""

    def answer(self, asked: Any) -> Any:
        """Wait for an answer; `LostError` if the worker has died."""

    def end(self) -> None:
        """Let the workers go."""


def cut(jobs: Jobs, blocks: int) -> list[IntArray]:
    """Cut jobs into blocks of about equal cost, the costliest first: the rows of each. Jobs with as many steps are
    together; the cost of a job is its steps."""
    counts = jobs.samples.counts
    steps = np.maximum(1, jobs.work.bind(jobs.options).num_steps(counts))
    order = np.lexsort((np.arange(len(counts)), -counts, -steps))
    before = np.cumsum(steps[order]) - steps[order]
    block = before * min(blocks, len(order)) // steps.sum()
    parts = np.split(order, np.flatnonzero(np.diff(block)) + 1)
    return [np.sort(rows) for rows in sorted(parts, key=lambda rows: -int(steps[rows].sum()))]


# -- at a worker ------------------------------------------------------------------------------------------------


class Brought(NamedTuple):
    """What a worker says of a block."""

    kept: list[str]  # names of vectors that stay
    payload: Arrays  # those that do not
    state: Arrays
    local: Arrays


class Worker:
    """Hold the samples, and the vectors of blocks that it has trained."""

    def __init__(self, task: Task, inputs: Tree, targets: Tree, plan: Plan) -> None:
        inputs, targets = (pytree.tree_map(_tensor, pool) for pool in (inputs, targets))  # of arrays
        self.cohort = Cohort(task, inputs, targets, plan)
        self.blocks: dict[int, Block] = {}

    def train(
        self,
        number: int,
        jobs: Jobs,
        models: NDArray[Any],
        versions: Sequence[int],
        keep_params: bool,
        changes: Sequence[Change],
    ) -> Brought:
        """Carry out jobs, which lack their models, and hold their large vectors under a number."""
        place = self.cohort.place
        state = {name: place(values) for name, values in jobs.state.items()}
        jobs = replace(jobs, models=place(_tensor(models)), state=state)
        with threads(self.cohort.plan.threads), torch.no_grad():
            trained = train_jobs(self.cohort, jobs, versions, keep_params)
        kept = {name: values for name, values in trained.payload.items() if values[0].numel() > SMALL}
        if kept:
            self.blocks[number] = Block(kept)
        for change in changes:
            self.change(number, number, *change)
        home = {name: values for name, values in trained.payload.items() if name not in kept}
        return Brought(list(kept), *(_arrays(named) for named in (home, trained.state, trained.local)))

    def look(self, number: int, method: str, *arguments: Any) -> NDArray[Any]:
        with threads(self.cohort.plan.threads), torch.no_grad():
            return _array(getattr(self.blocks[number], method)(*arguments))

    def change(self, number: int, new: int, method: str, *arguments: Any) -> None:
        self.blocks[new] = getattr(self.blocks[number], method)(*arguments)

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.blocks.pop(number, None)


# -- here -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Held:
    """Vectors of one block at some worker, and how they are made again. It lives as long as somebody refers to them."""

    number: int
    jobs: Jobs
    versions: list[int]
    keep_params: bool
    changes: list[Change] = field(default_factory=list)
    worker: int | None = None  # who has them


class RemoteBlock(Block):
    """A block of which the large vectors are elsewhere."""

    def __init__(self, engine: RemoteEngine, held: _Held, names: Sequence[str], home: Block, rows: int) -> None:
        self._engine, self._held, self._names, self._home, self._rows = engine, held, names, home, rows

    @property
    def late(self) -> bool:
        return True

    def __getitem__(self, name: str) -> Tensor:
        return self.some(name, range(self._rows))

    def __iter__(self) -> Iterator[str]:
        return iter((*self._names, *self._home))

    def __len__(self) -> int:
        return len(self._names) + len(self._home)

    @property
    def rows(self) -> int:
        return self._rows

    def ask(self, method: str, *arguments: object) -> Answer:
        if arguments[0] in self._home:
            return self._home.ask(method, *arguments)
        return self._engine.ask(self._held, method, *arguments)

    def some(self, name: str, rows: Sequence[int]) -> Tensor:
        return self.ask("some", name, rows)()

    def weighted_sum(self, name: str, rows: Sequence[int], weights: NDArray[np.float64]) -> Tensor:
        return self.ask("weighted_sum", name, rows, weights)()

    def norms(self, name: str, rows: Sequence[int]) -> Tensor:
        return self.ask("norms", name, rows)()

    def finite(self, name: str, rows: Sequence[int]) -> Tensor:
        return self.ask("finite", name, rows)()

    def put(self, name: str, rows: Sequence[int], values: Tensor) -> Block:
        if name in self._home:
            self._home.put(name, rows, values)
        else:
            self._engine.change(self._held, self._held, "put", name, rows, values.cpu())
        return self

    def take(self, rows: Sequence[int]) -> Block:
        fewer = self._engine.hold(self._held.jobs, self._held.versions, self._held.keep_params, self._held.changes)
        self._engine.change(self._held, fewer, "take", rows)
        return RemoteBlock(self._engine, fewer, self._names, self._home.take(rows), len(rows))


class RemoteEngine(Engine):
    """Workers are started when the first jobs are carried out; evaluation is up to this machine."""

    def __init__(self, cohort: Cohort, blocks: int, start: Callable[[], Pool]) -> None:
        super().__init__(cohort)
        self._cut_into, self._start = blocks, start
        self._numbers = count()
        self._held: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._known: dict[int, set[int]] = {}  # numbers of blocks at each worker, forgotten or not
        self._pool: Pool | None = None
        self._end: Callable[[], object] = lambda: None

    def train(self, jobs: Jobs, versions: Sequence[int], keep_params: bool) -> list[Results]:
        parts = cut(jobs, self._cut_into)
        held = [self.hold(jobs.take(rows), [versions[row] for row in rows], keep_params) for rows in parts]
        trained = self._run(held)
        results = []
        for rows, each in zip(parts, held, strict=True):
            kept, payload, state, local = trained[each]
            home = Block(self._placed(payload))
            block = RemoteBlock(self, each, kept, home, len(rows)) if kept else home
            results.append(Results(rows.tolist(), block, Block(self._placed(state)), Block(self._placed(local))))
        return results

    def close(self) -> None:
        super().close()
        self._end()
        self._pool = None
        self._known = {}
        for each in self._held:
            each.worker = None

    @property
    def server_threads(self) -> int:
        return self.cohort.plan.threads

    def hold(self, jobs: Jobs, versions: list[int], keep_params: bool, changes: Sequence[Change] = ()) -> _Held:
        held = _Held(next(self._numbers), jobs, versions, keep_params, list(changes))
        self._held.add(held)
        return held

    def ask(self, held: _Held, method: str, *arguments: object) -> Answer:
        """Ask a block's worker; if it dies, ask another once that has trained the block again."""
        if held.worker is None:  # the workers were let go meanwhile
            self._run([held])
        pool, worker = self._running(), held.worker
        assert worker is not None
        asked = pool.submit(worker, "look", held.number, method, *arguments)

        def answer() -> Tensor:
            try:
                found: Tensor = self.cohort.place(torch.tensor(pool.answer(asked)))
                return found
            except LostError as why:
                if self._pool is pool:
                    self._run(self._lost(worker, why))
                return self.ask(held, method, *arguments)()

        return answer

    def change(self, held: _Held, new: _Held, *change: Any) -> None:
        """Make a block of another where that is; both can be the same one."""
        new.changes.append(change)
        new.worker = held.worker
        if self._pool is not None and new.worker is not None:
            self._known[new.worker].add(new.number)
            self._pool.submit(new.worker, "change", held.number, new.number, *change)

    def _placed(self, arrays: Arrays) -> Named:
        return {name: self.cohort.place(torch.tensor(values)) for name, values in arrays.items()}

    def _running(self) -> Pool:
        if self._pool is None:
            self._pool = self._start()
            self._known = {worker: set() for worker in self._pool.workers}
            self._end = weakref.finalize(self, self._pool.end)
        return self._pool

    def _run(self, orders: Sequence[_Held]) -> dict[_Held, Brought]:
        """Have blocks trained: whoever is free takes the next; blocks of a worker that dies are trained again."""
        pool = self._running()
        self._forget(pool)
        waiting, free = list(orders)[::-1], list(pool.workers)
        busy: dict[Any, tuple[_Held, int]] = {}
        models: dict[tuple[int, ...], Any] = {}
        trained: dict[_Held, Brought] = {}
        while waiting or busy:
            while waiting and free:
                each, worker = waiting.pop(), free.pop(0)
                each.worker = worker
                self._known[worker].add(each.number)
                sent = *self._sent(pool, each.jobs, models), each.versions, each.keep_params
                busy[pool.submit(worker, "train", each.number, *sent, each.changes)] = each, worker
            asked = pool.first(busy)
            each, worker = busy.pop(asked)
            try:
                trained[each] = pool.answer(asked)
            except LostError as why:
                waiting += self._lost(worker, why)
            else:
                free.append(worker)
                each.worker = worker if trained[each].kept else None
        return trained

    @staticmethod
    def _sent(pool: Pool, jobs: Jobs, models: dict[tuple[int, ...], Any]) -> tuple[Jobs, Any]:
        """Prepare jobs and the models that they need, which others may need too."""
        name = tuple(model.data_ptr() for model in jobs.models)
        if name not in models:
            models[name] = pool.put(_array(torch.stack([*jobs.models])))
        state = {key: values.cpu() for key, values in jobs.state.items()}
        return replace(jobs, models=[], state=state), models[name]

    def _forget(self, pool: Pool) -> None:
        """Free blocks that nobody refers to any more."""
        wanted = {each.number for each in self._held}
        for worker in pool.workers:
            if gone := self._known[worker] - wanted:
                self._known[worker] -= gone
                pool.submit(worker, "forget", gone)

    def _lost(self, worker: int, why: LostError) -> list[_Held]:
        """Strike a dead worker off, and list what it held; the others go on."""
        alive = self._running().workers
        if worker in alive:
            alive.remove(worker)
        if not alive:
            raise UserError(f"engine: every worker has died, the last of this: {why}") from why
        return [each for each in self._held if each.worker == worker]


def _tensor(array: NDArray[Any]) -> Tensor:
    """Share the memory of an array that nobody changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not writable
        return torch.from_numpy(array)


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _arrays(named: Named) -> Arrays:
    return {name: _array(values) for name, values in named.items()}
