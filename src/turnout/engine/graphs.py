"""Plain SGD on CUDA: the training of a cohort, captured once as graphs and replayed.

A graph has fixed shapes and addresses. So a cohort is trained in pieces: some steps of the first so many clients, whose
number is rounded up to one of few; clients that are done or that there are not count nothing. All graphs work in one
space, or where a message says. Which pieces there are follows from the cohort alone, never from what was captured
before: a resumed run replays the same kernels, and bits stay the same. Nothing is asked back from the device.
"""

from __future__ import annotations

import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core import trees
from turnout.core.errors import reason
from turnout.core.ragged import Picked, Ragged
from turnout.core.trees import Tree
from turnout.engine.batches import Extent, Jobs, Size, Vectors, draw, unpacked
from turnout.engine.chain import Aim, Chain
from turnout.engine.convolutions import HAS_TRITON
from turnout.engine.gradients import step_alone
from turnout.engine.paths import runs_on_streams
from turnout.engine.plain_sgd import Course, PlainSGD, State
from turnout.engine.plan import Plan
from turnout.local.sgd import Batch, LocalSGD
from turnout.task.task import Task

KEPT = 64  # graphs; they share one memory pool
LARGEST_INDEX = 1 << 30  # bytes of everybody's rows of the pool
LONGEST = 16  # steps of a piece
STREAMS = 16  # on which ordinary passes of clients run side by side


def rounded(count: int) -> int:
    """Round up to a number with five significant bits: at most a sixteenth more, and few different ones."""
    step = 1 << max(0, count.bit_length() - 5)
    return -(-count // step) * step


def pieces(steps: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield (first step, steps, clients) of each piece, for numbers of steps in descending order: a piece goes on while
    at least three quarters of its clients do."""
    first = 0
    while first < steps[0]:
        active = int(np.searchsorted(-steps, -first))
        count = min(LONGEST, int(steps[(3 * active + 3) // 4 - 1]) - first)
        yield first, count, rounded(active)
        first += count


def _to_length(column: NDArray[Any], count: int) -> NDArray[Any]:
    """Repeat the last entry of a column until there are so many."""
    if len(column) == count:
        return column
    longer = np.empty(count, column.dtype)
    longer[: len(column)], longer[len(column) :] = column, column[-1]
    return longer


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Put garbage collection off: graphs and pinned memory of earlier runs may be among the garbage, and to free them
    while a stream is being captured ends the process."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Told(NamedTuple):
    """What the device has to know of a cohort, in pinned memory that graphs read without asking."""

    head: NDArray[np.int64]  # [3] the message's number, and where models received and results are, if it has to be said
    jobs: NDArray[np.int64]  # [4, C] of each its key, samples, steps, and where it begins in the index
    rates: NDArray[np.float64]  # [C]


class Call(NamedTuple):
    """The whole training of a cohort as one graph: that of nearly every synchronous round."""

    work: LocalSGD  # here, so that no other takes its place
    shape: tuple[Any, ...]
    told: Told
    start: Tensor | None  # where models received are wanted, and results are left; where the message says, if nowhere
    moved: Tensor | None


class GraphedSGD(PlainSGD):
    def __init__(self, task: Task, inputs: Tree, targets: Tree, plan: Plan, chain: Chain | None) -> None:
        super().__init__(task, inputs, targets, plan, chain)
        self._graphs = plan.graphs  # as long as everything can be captured
        self._space: dict[str, Tensor] = {}  # flat
        self._captured: OrderedDict[tuple[Any, ...], tuple[Callable[[], Any], Any]] = OrderedDict()
        self._known: dict[tuple[Any, ...], Call] = {}
        self._pool: Any = None
        self._indices: dict[int, tuple[NDArray[np.integer], Tensor]] = {}  # by identity: with it here and there
        self._messages = 0
        self._read = torch.zeros(1, dtype=torch.int64, pin_memory=self._on_cuda)  # the last message that was read
        self._last_read = self._read.numpy()
        self._alone: Task | None = None  # for ordinary passes, where clients cannot be mapped
        self._streams: list[torch.cuda.Stream] = []
        if chain is None and (task.alone or plan.engine == "sequential") and runs_on_streams(task, plan):
            self._alone = task.to()
            self._alone.vectorised = False
            self._streams = [torch.cuda.Stream(plan.device) for _ in range(STREAMS)]  # type: ignore[no-untyped-call]

    @property
    def _on_cuda(self) -> bool:
        return self.plan.device != "cpu"

    def train(self, jobs: Jobs, size: Size) -> Tensor:
        work, models, received, keys, samples = jobs.work, jobs.models, jobs.received, jobs.keys, jobs.samples
        lr, steps, even = jobs.lr, size.steps, size.even
        shared, here = len(models) == 1, len(keys)
        extent = Extent(*map(rounded, Extent.of(work, samples.counts, steps)))
        count = int(steps[0])
        at_once = steps[-1] == count and count <= LONGEST
        clients = rounded(here) if at_once else here  # the last, if there are more, stand still
        begins = models[0][None] if shared else self.received(models, _to_length(received, clients))
        name = (id(work), here, int(samples.counts[0]), id(samples.pool), shared)
        known = self._known.get(name) if even and isinstance(samples, Picked) else None
        if known is not None:
            told_before = (_to_length(column, clients) for column in (keys, samples.counts, steps, samples.begin))
            return self._run_graph(known, begins, (*told_before,), lr, here)
        pool, begin = self._resident(samples)
        columns = tuple(_to_length(column, clients) for column in (keys, samples.counts, steps, begin))
        message, told = self._message(clients)

        def drawn() -> tuple[Course, Tensor, Tensor]:
            placed = message.to(self.plan.device, non_blocking=True)
            self._read.copy_(placed[:1], non_blocking=True)
            head, rows = placed[:3], placed[3:].view(5, clients)
            drawn = draw(work, unpacked(rows[:4], pool, extent.samples), extent, self.keyed)
            return Course.of(drawn, columns[2], self.plan.dtype), rows[4].view(torch.float64).to(self.plan.dtype), head

        shape = (clients, pool.data_ptr(), len(pool), *extent, work.batching, work.batch_size)
        if not at_once:
            self._tell(told, columns, lr, here)
            if self._seize(shape, lambda: self._kept("course", *drawn()[:2])):
                self._tell(told, columns, lr, here)
            course, rates = self._replay(shape)
            return self.run(models, received, rates, course._replace(steps=steps))
        one_kernel = self._in_one_kernel(extent.batch(work))
        start = None if one_kernel else self.new("start", begins.shape)
        moved = None if one_kernel else self.new("moved", torch.Size([clients, begins.shape[1]]))

        def body() -> None:
            course, rates, head = drawn()
            if start is None or moved is None:
                self._take_all_steps(head, shared, rates, course)
                return
            first = start.expand(clients, -1)
            state = self.begin(first, shared, extent.batch(work) * count)
            self._take_steps(state, rates, course)
            self._moved(state, first, moved)

        call = Call(work, (*shape, shared), told, start, moved)
        found = self._run_graph(call, begins, columns, lr, here, body)
        if even and isinstance(samples, Picked) and id(samples.pool) in self._indices and len(self._known) < KEPT:
            self._known[name] = call
        return found

    def _run_graph(
        self,
        call: Call,
        begins: Tensor,
        jobs: tuple[NDArray[np.int64], ...],
        lr: float | NDArray[np.float64],
        here: int,
        body: Callable[[], None] | None = None,
    ) -> Tensor:
        """Replay a training and give what the parameters of the clients that are `here`, the first, move by; `body` is
        needed the first time."""
        start = (
            begins.to(self.plan.device, self.plan.dtype).contiguous()
            if call.start is None
            else call.start.copy_(begins)
        )
        moved = start.new_empty(len(jobs[0]), start.shape[1]) if call.moved is None else call.moved
        self._tell(call.told, jobs, lr, here, start.data_ptr(), moved.data_ptr())
        if body is not None and self._seize(call.shape, body):
            self._tell(call.told, jobs, lr, here, start.data_ptr(), moved.data_ptr())
        self._replay(call.shape)
        return moved[:here] if call.moved is None else moved[:here].clone()

    def _in_one_kernel(self, batch: int) -> bool:
        """Say whether one kernel takes all steps: those of a single layer that is small enough, with tf32."""
        if self.chain is None or not self.chain.logistic or type(self.task) is not Task:
            return False
        lies_well = self.targets.ndim == 1 and self.inputs.is_contiguous() and self.targets.is_contiguous()
        if not lies_well or self.targets.dtype == torch.bool or not self._on_cuda or not HAS_TRITON:
            return False
        from turnout.engine.kernels import logistic

        return self.plan.precision == "tf32" and logistic.fits(self.inputs[0].numel(), self.chain.outputs, batch)

    def _take_all_steps(self, head: Tensor, shared: bool, rates: Tensor, course: Course) -> None:
        from turnout.engine.kernels import logistic

        assert self.chain is not None
        logistic.train(head, shared, self.inputs, self.targets, course, rates, self.chain.outputs, self.task.size)

    def _message(self, clients: int) -> tuple[Tensor, Told]:
        """Find room for what is told of so many clients."""
        self._await_reading()
        message = self.new("message", torch.Size([3 + 5 * clients]), torch.int64, "cpu")
        flat = message.numpy()
        return message, Told(flat[:3], flat[3:].reshape(5, -1)[:4], flat[3 + 4 * clients :].view(np.float64))

    def _await_reading(self) -> None:
        """Wait until the device has read the message before; as a rule that was long ago."""
        if self._last_read[0] != self._messages and self._on_cuda:
            torch.cuda.current_stream(self.plan.device).synchronize()

    def _tell(
        self,
        told: Told,
        jobs: tuple[NDArray[np.int64], ...],
        lr: float | NDArray[np.float64],
        here: int,
        start: int = 0,
        moved: int = 0,
    ) -> None:
        self._await_reading()
        self._messages += 1
        told.head[:] = self._messages, start, moved
        for room, values in zip(told.jobs, jobs, strict=True):
            room[:] = values
        told.rates[:here], told.rates[here:] = lr, 0.0

    def _resident(self, samples: Ragged) -> tuple[Tensor, NDArray[np.int64]]:
        """Place the rows of these samples on the device, and say where each job's begin: the whole population's once
        and for all, unless that is too large."""
        pool, begin = samples.pool, samples.begin
        if not isinstance(samples, Picked) or pool.nbytes > LARGEST_INDEX:
            own = torch.as_tensor(np.asarray(samples.values, np.int64))
            room = self.new("index", torch.Size([rounded(max(1, len(own)))]), torch.int64)
            room[: len(own)].copy_(own)
            return room, samples.offsets[:-1]
        if id(pool) not in self._indices:
            self._indices[id(pool)] = pool, torch.tensor(pool, device=self.plan.device)
        return self._indices[id(pool)][1], begin

    def run(self, models: Vectors, received: NDArray[np.int64], lr: float | Tensor, course: Course) -> Tensor:
        clients, parts = len(received), list(pieces(course.steps))
        most = max(clients, *(number for _, _, number in parts))
        rates = self.new("rates", torch.Size([most]))
        rates[:clients] = lr
        course = course.padded(most)
        start = self.received(models, np.pad(received, (0, most - clients)))
        samples = course.rows.shape[2] * parts[0][1] if len(parts) == 1 else None
        state = self.begin(start, len(models) == 1, samples, uneven=course.steps[-1] == 0)
        for first, count, number in parts:
            self._piece(state.some(slice(number)), rates[:number], course.piece(first, count, number))
        return self._moved(state, start, start.new_empty(start.shape))[:clients]

    def _moved(self, state: State, start: Tensor, moved: Tensor) -> Tensor:
        for layer in state.factored.values():
            layer.at = layer.inputs.shape[1]
        self.difference(state, start, moved)
        return moved

    def new(self, name: str, shape: torch.Size, dtype: torch.dtype | None = None, device: str | None = None) -> Tensor:
        """Find a place in the common space; the same name has the same place every time."""
        dtype, wanted, device = dtype or self.plan.dtype, shape.numel(), device or self.plan.device
        flat = self._space.get(name)
        if flat is None or len(flat) < wanted or flat.dtype != dtype:
            self._captured.clear()  # they work at the old addresses
            self._known.clear()
            self._pool = None
            pinned = device == "cpu" and self._on_cuda
            flat = self._space[name] = torch.zeros(wanted, dtype=dtype, device=device, pin_memory=pinned)
        return flat[:wanted].view(shape)

    def steady(self, name: str, tensor: Tensor) -> Tensor:
        return self.new(f"steady.{name}", tensor.shape, self.precision).copy_(tensor)

    def _kept(self, name: str, course: Course, rates: Tensor) -> tuple[Course, Tensor]:
        """Copy a course into the common space."""
        parts = {"rows": course.rows, "weights": course.weights, "keys": course.keys, "rates": rates}
        rows, weights, keys, rates = (
            self.new(f"{name}.{field}", part.shape, part.dtype).copy_(part) for field, part in parts.items()
        )
        return Course(rows, weights, keys, course.steps), rates

    def _piece(self, state: State, lr: Tensor, course: Course) -> None:
        own, rates = self._kept("piece", course, lr)
        shape = (*own.weights.shape, *(layer.weight.shape for layer in state.factored.values()))
        if shape not in self._captured:
            own.weights.zero_()  # the capture takes steps of length zero
            self._seize(shape, lambda: self._take_steps(state, rates, own))
            own.weights.copy_(course.weights)
        self._replay(shape)

    def _take_steps(self, state: State, lr: Tensor, course: Course) -> None:
        for layer in state.factored.values():
            layer.at = 0
        seen = self._seen(course, lr)
        for number in range(course.keys.shape[1]):
            key = course.keys[:, number]
            if seen is not None and self.chain is not None:
                inputs, aim = seen
                self.chain.step(state.layers, state.factored, inputs[number % len(inputs)], aim.at(number), key)
                continue
            rows, weights = (part[:, number if part.shape[1] > 1 else 0] for part in (course.rows, course.weights))
            inputs, targets = self.samples(rows)
            self.step(state, lr, Batch(inputs, targets, weights, rows, key, number))

    def step(self, state: State, lr: float | Tensor, batch: Batch) -> None:
        if self._alone is None:
            super().step(state, lr, batch)
            return
        rates = lr if isinstance(lr, Tensor) else batch.weights.new_full((len(batch.weights),), lr)
        weights = batch.weights * rates.view(-1, *(1,) * (batch.weights.ndim - 1))
        now = torch.cuda.current_stream(self.plan.device)
        for stream in self._streams:
            stream.wait_stream(now)
        for client in range(len(weights)):
            with torch.cuda.stream(self._streams[client % STREAMS]):
                seen = (trees.at(part, client) for part in (batch.inputs, batch.targets, weights, batch.key))
                step_alone(self._alone, {name: layer[client] for name, layer in state.layers.items()}, *seen)
        for stream in self._streams:
            now.wait_stream(stream)

    def _seen(self, course: Course, lr: Tensor) -> tuple[Tensor, Aim] | None:
        """Gather the samples of all steps `[S, C, B, ...]`, and what they are compared with, where there is room."""
        if self.chain is None or type(self.task) is not Task or not self.at_once(course.rows):
            return None
        inputs, _ = trees.batch(self.inputs, (), course.rows.transpose(0, 1), self.task.initial)
        _, targets = trees.batch((), self.targets, course.rows, self.task.initial)
        return inputs.to(self.precision), self.chain.aim(targets, course.weights, lr)

    def _seize(self, shape: tuple[Any, ...], body: Callable[[], Any]) -> bool:
        """Capture a body that looks for and leaves things only in places that stay, unless that was done before. It
        runs once first, for libraries to set themselves up: then its message has been read and has to be told again."""
        if shape in self._captured:
            return False
        body()
        self._captured[shape] = self._capture(body) if self._graphs else (body, body())
        if len(self._captured) > KEPT:
            self._captured.popitem(last=False)
            self._known.clear()
        if self._on_cuda:
            torch.cuda.current_stream(self.plan.device).synchronize()
        return True

    def _capture(self, body: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
        """Capture a body as a graph: what replays it, and where its results lie."""
        graph, self._pool = torch.cuda.CUDAGraph(), self._pool or torch.cuda.graph_pool_handle()
        try:
            with _nothing_collected(), torch.cuda.graph(graph, pool=self._pool):
                found = body()
        except RuntimeError as error:
            self._graphs = False
            warnings.warn(
                f"engine.graphs: model or loss cannot be captured ({reason(error)}), and are called step by step",
                stacklevel=2,
            )
            return body, body()
        return graph.replay, found

    def _replay(self, shape: tuple[Any, ...]) -> Any:
        self._captured.move_to_end(shape)
        again, found = self._captured[shape]
        again()
        return found
