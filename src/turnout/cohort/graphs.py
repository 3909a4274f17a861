"""Plain SGD on CUDA: the training of a cohort, captured once as graphs and replayed.

A graph has fixed shapes and addresses. So a cohort is trained in pieces: some steps of the first so many clients, whose
number is rounded up to one of few; clients that are done or that there are not count nothing. All graphs work in one
space. Which pieces there are follows from the cohort alone, never from what was captured before: a resumed run replays
the same kernels, and bits stay the same. Nothing is asked back from the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.cohort.batches import Extent, draw, unpacked
from turnout.cohort.chain import Aim
from turnout.cohort.convolutions import HAS_TRITON
from turnout.cohort.plain_sgd import Course, PlainSGD, State, take
from turnout.cohort.plan import Plan
from turnout.errors import UserError
from turnout.local.sgd import Batch, LocalSGD
from turnout.population.ragged import Picked, Ragged
from turnout.task import Task

KEPT = 64  # graphs; they share one memory pool
LARGEST_INDEX = 1 << 30  # bytes of everybody's rows of the pool
LONGEST = 16  # steps of a piece


def rounded(count: int) -> int:
    """Up to a number with five significant bits: at most a sixteenth more, and few different ones."""
    step = 1 << max(0, count.bit_length() - 5)
    return -(-count // step) * step


def pieces(steps: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """(first step, steps, clients) of each piece, for numbers of steps in descending order: a piece goes on as long as
    at least three quarters of its clients do."""
    first = 0
    while first < steps[0]:
        active = int(np.searchsorted(-steps, -first))
        count = min(LONGEST, int(steps[(3 * active + 3) // 4 - 1]) - first)
        yield first, count, rounded(active)
        first += count


class Call(NamedTuple):
    """A cohort of equal clients that has been trained before: all that changes from one time to the next."""

    work: LocalSGD  # here, so that no other takes its place
    message: NDArray[np.int64]  # what is written
    start: Tensor  # where the models received go
    shape: tuple[Any, ...]  # of the graph


class GraphedSGD(PlainSGD):
    def __init__(self, task: Task, inputs: Tensor, targets: Tensor, plan: Plan) -> None:
        super().__init__(task, inputs, targets, plan)
        self._space: dict[str, Tensor] = {}  # flat
        self._captured: OrderedDict[tuple[Any, ...], tuple[Callable[[], Any], Any]] = OrderedDict()
        self._known: dict[tuple[Any, ...], Call] = {}
        self._pool: Any = None
        self._indices: dict[int, tuple[NDArray[np.integer], Tensor]] = {}  # by identity: with it here and there
        self._read = torch.cuda.Event() if inputs.is_cuda else None  # type: ignore[no-untyped-call]

    def train(
        self,
        work: LocalSGD,
        models: Tensor,
        received: NDArray[np.int64],
        lr: float | NDArray[np.float64],
        keys: NDArray[np.int64],
        samples: Ragged,
        steps: NDArray[np.int64],
        even: bool = False,
    ) -> Tensor:
        shared = len(models) == 1
        begins = models if shared else self.received(models, received)
        name = (id(work), len(keys), int(samples.counts[0]), id(samples.pool), shared)
        known = self._known.get(name) if even and isinstance(samples, Picked) else None
        if known is not None:
            self._write(known.message, keys, samples.counts, steps, samples.begin, lr)
            known.start.copy_(begins)
            return self._moved_by(known.shape)
        extent = Extent(*map(rounded, Extent.of(work, samples.counts, steps)))
        pool, begin = self._resident(samples)
        message = self.new("message", torch.Size([5, len(keys)]), torch.int64, "cpu")
        self._write(message.numpy(), keys, samples.counts, steps, begin, lr)

        def drawn() -> tuple[Course, Tensor]:
            told = message.to(self.plan.device, non_blocking=True)
            jobs = unpacked(told[:4], pool, extent.samples)
            drawn = draw(work, jobs, extent, self.keyed)
            return Course.of(drawn, steps, self.plan.dtype), told[4].view(torch.float64).to(models)

        shape = (*message.shape, pool.data_ptr(), len(pool), *extent, work.batching, work.batch_size)
        clients, count = len(steps), int(steps[0])
        if steps[-1] < count or count > LONGEST or clients < rounded(clients):
            self._seize(shape, lambda: self._kept("course", *drawn()))
            course, rates = self._replay(shape)
            self._note_reading()
            return self.run(models, received, rates, course._replace(steps=steps))
        # all in one graph: that of nearly every synchronous round
        first = self.new("start", begins.shape).copy_(begins)
        start = first.expand(clients, -1)

        def whole() -> Tensor:
            course, rates = drawn()
            moved = self.new("moved", start.shape)
            if self._in_one_kernel(first, course, rates, moved):
                return moved
            state = self.begin(start, shared, extent.batch(work) * count)
            self._take_steps(state, rates, course)
            return self._moved(state, start, moved)

        shape = (*shape, shared)
        self._seize(shape, whole)
        if even and isinstance(samples, Picked) and id(samples.pool) in self._indices and len(self._known) < KEPT:
            self._known[name] = Call(work, message.numpy(), first, shape)
        return self._moved_by(shape)

    def _moved_by(self, shape: tuple[Any, ...]) -> Tensor:
        """A copy of what a graph of the whole training says."""
        moved: Tensor = self._replay(shape)
        self._note_reading()
        return moved.clone()

    def _in_one_kernel(self, start: Tensor, course: Course, rates: Tensor, moved: Tensor) -> bool:
        """All steps of a single layer that is small enough, with tf32; whether it is one."""
        labelled = self.targets.ndim == 1 and type(self.task) is Task
        labelled &= self.inputs.is_contiguous() and self.targets.is_contiguous()
        if self.chain is None or not self.chain.logistic or not labelled or not moved.is_cuda or not HAS_TRITON:
            return False
        from turnout.cohort import logistic

        classes, width, batch = self.chain.outputs, self.inputs[0].numel(), course.rows.shape[2]
        if self.plan.precision != "tf32" or not logistic.fits(width, classes, batch):
            return False
        logistic.train(start, self.inputs, self.targets, course, rates, classes, moved)
        return True

    def _resident(self, samples: Ragged) -> tuple[Tensor, NDArray[np.int64]]:
        """The pool of rows of these samples on the device, and where each begins: the whole population's once and for
        all, unless that is too large."""
        pool, begin = samples.pool, samples.begin
        if not isinstance(samples, Picked) or pool.nbytes > LARGEST_INDEX:
            own = torch.as_tensor(np.asarray(samples.values, np.int64))
            room = self.new("index", torch.Size([rounded(max(1, len(own)))]), torch.int64)
            room[: len(own)].copy_(own)
            return room, samples.offsets[:-1]
        if id(pool) not in self._indices:
            self._indices[id(pool)] = pool, torch.tensor(pool, device=self.plan.device)
        return self._indices[id(pool)][1], begin

    def _write(
        self,
        message: NDArray[np.int64],
        keys: NDArray[np.int64],
        counts: NDArray[np.int64],
        steps: NDArray[np.int64],
        begin: NDArray[np.int64],
        lr: float | NDArray[np.float64],
    ) -> None:
        """`[5, C]` what the device has to know of each job, where it finds it without asking; the last are bits."""
        if self._read is not None:
            self._read.synchronize()  # what was written there before
        message[0], message[1], message[2], message[3] = keys, counts, steps, begin
        message[4].view(np.float64)[:] = lr

    def _note_reading(self) -> None:
        """The device will have read the message when it gets here."""
        if self._read is not None:
            self._read.record()

    def run(self, models: Tensor, received: NDArray[np.int64], lr: float | Tensor, course: Course) -> Tensor:
        clients, parts = len(received), list(pieces(course.steps))
        most = max(clients, *(number for _, _, number in parts))
        rates = self.new("rates", torch.Size([most]))
        rates[:clients] = lr
        course = course.padded(most)
        start = self.received(models, np.pad(received, (0, most - clients)))
        samples = course.rows.shape[2] * parts[0][1] if len(parts) == 1 else None
        state = self.begin(start, len(models) == 1, samples, uneven=course.steps[-1] == 0)
        for first, count, number in parts:
            self._piece(state.first(number), rates[:number], course.piece(first, count, number))
        return self._moved(state, start, start.new_empty(start.shape))[:clients]

    def _moved(self, state: State, start: Tensor, moved: Tensor) -> Tensor:
        for layer in state.factored.values():
            layer.at = layer.inputs.shape[1]
        self.difference(state, start, moved)
        return moved

    def new(self, name: str, shape: torch.Size, dtype: torch.dtype | None = None, device: str | None = None) -> Tensor:
        """A place in the common space; it is the same every time it is asked for."""
        dtype, wanted, device = dtype or self.plan.dtype, shape.numel(), device or self.plan.device
        flat = self._space.get(name)
        if flat is None or len(flat) < wanted or flat.dtype != dtype:
            self._captured.clear()  # they work at the old addresses
            self._known.clear()
            self._pool = None
            pinned = device == "cpu" and self.inputs.is_cuda
            flat = self._space[name] = torch.zeros(wanted, dtype=dtype, device=device, pin_memory=pinned)
        return flat[:wanted].view(shape)

    def steady(self, name: str, tensor: Tensor) -> Tensor:
        return self.new(f"steady.{name}", tensor.shape, self.precision).copy_(tensor)

    def _kept(self, name: str, course: Course, rates: Tensor) -> tuple[Course, Tensor]:
        """A copy in the common space."""
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
            inputs, targets = (take(pool, rows) for pool in (self.inputs, self.targets))
            self.step(state, lr, Batch(inputs, targets, weights, rows, key, number))

    def _seen(self, course: Course, lr: Tensor) -> tuple[Tensor, Aim] | None:
        """The samples of all steps `[S, C, B, ...]`, and what they are compared with, where there is room for it."""
        if self.chain is None or type(self.task) is not Task or not self.at_once(course.rows):
            return None
        targets = take(self.targets, course.rows)
        inputs = take(self.inputs, course.rows.transpose(0, 1)).to(self.precision)
        return inputs, self.chain.aim(targets, course.weights, lr)

    def _seize(self, shape: tuple[Any, ...], body: Callable[[], Any]) -> None:
        """Capture what looks and leaves things in the common space only, unless that was done before; it is run once,
        for libraries to set themselves up."""
        if shape in self._captured:
            return
        body()
        self._captured[shape] = self._capture(body) if self.plan.graphs else (body, body())
        if len(self._captured) > KEPT:
            self._captured.popitem(last=False)
            self._known.clear()

    def _capture(self, body: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
        """What does it again, and where its results lie."""
        graph, self._pool = torch.cuda.CUDAGraph(), self._pool or torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                found = body()
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise UserError(f"engine.graphs: model or loss cannot be captured ({why}); set it to false") from error
        return graph.replay, found

    def _replay(self, shape: tuple[Any, ...]) -> Any:
        self._captured.move_to_end(shape)
        again, found = self._captured[shape]
        again()
        return found
