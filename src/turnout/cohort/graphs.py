"""Plain SGD on CUDA: the training of a cohort, captured once as graphs and replayed.

A graph has fixed shapes and addresses. So a cohort is trained in pieces: some steps of the first so many clients, whose
number is rounded up to one of few; clients that are done or that there are not count nothing. All graphs work in one
space. Which pieces there are follows from the cohort alone, never from what was captured before: a resumed run replays
the same kernels, and bits stay the same. Nothing is asked back from the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.cohort.batches import Extent, draw, pack
from turnout.cohort.plain_sgd import Course, PlainSGD, State, take
from turnout.cohort.plan import Plan
from turnout.errors import UserError
from turnout.local.sgd import Batch, LocalSGD
from turnout.population.ragged import Ragged
from turnout.task import Task

KEPT = 64  # graphs; they share one memory pool
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


class GraphedSGD(PlainSGD):
    def __init__(self, task: Task, inputs: Tensor, targets: Tensor, plan: Plan) -> None:
        super().__init__(task, inputs, targets, plan)
        self._space: dict[str, Tensor] = {}  # flat
        self._captured: OrderedDict[tuple[Any, ...], tuple[Callable[[], Any], Any]] = OrderedDict()
        self._pool: Any = None
        self._outbox: Tensor | None = None
        self._posted: torch.cuda.Event | None = None

    def train(
        self,
        work: LocalSGD,
        models: Tensor,
        received: NDArray[np.int64],
        lr: float | Tensor,
        keys: NDArray[np.int64],
        samples: Ragged,
        steps: NDArray[np.int64],
    ) -> Tensor:
        extent = Extent(*map(rounded, Extent.of(work, samples.counts, steps)))
        jobs = self._sent(keys, samples, steps, extent.samples)

        def drawn() -> Course:
            return Course.of(draw(work, jobs, extent), steps, self.plan.dtype)

        shape = (*jobs.shape, *extent, work.batching, work.batch_size)
        clients, count = len(steps), int(steps[0])
        if steps[-1] < count or count > LONGEST or clients < rounded(clients):
            self._seize(shape, lambda: self._kept("course", drawn()))
            return self.run(models, received, lr, self._replay(shape)._replace(steps=steps))
        # all in one graph: that of nearly every synchronous round
        rates, shared = self._rates(lr, clients, clients), len(models) == 1
        begin = models if shared else self.received(models, received)
        start = self.new("start", begin.shape).copy_(begin).expand(clients, -1)

        def whole() -> Tensor:
            state = self.begin(start, shared, extent.batch(work) * count)
            self._take_steps(state, rates, drawn())
            return self._moved(state, start, self.new("moved", start.shape))

        shape = (*shape, shared)
        self._seize(shape, whole)
        moved: Tensor = self._replay(shape)
        return moved.clone()

    def _sent(self, keys: NDArray[np.int64], samples: Ragged, steps: NDArray[np.int64], width: int) -> Tensor:
        """Jobs `packed` in the common space, by way of memory that the device reads without asking."""
        size = len(keys) * (3 + width)
        if self._outbox is None or len(self._outbox) < size:
            self._outbox = torch.empty(size, dtype=torch.int64, pin_memory=self.inputs.is_cuda)
        elif self._posted is not None:
            self._posted.synchronize()  # it has been read
        outbox = self._outbox[:size].view(len(keys), -1)
        pack(keys, samples, steps, outbox.numpy())
        jobs = self.new("jobs", outbox.shape, torch.int64).copy_(outbox, non_blocking=True)
        if jobs.is_cuda:
            self._posted = torch.cuda.current_stream().record_event()
        return jobs

    def run(self, models: Tensor, received: NDArray[np.int64], lr: float | Tensor, course: Course) -> Tensor:
        clients, parts = len(received), list(pieces(course.steps))
        most = max(clients, *(number for _, _, number in parts))
        course, rates = course.padded(most), self._rates(lr, clients, most)
        start = self.received(models, np.pad(received, (0, most - clients)))
        samples = course.rows.shape[2] * parts[0][1] if len(parts) == 1 else None
        state = self.begin(start, len(models) == 1, samples, uneven=course.steps[-1] == 0)
        for first, count, number in parts:
            self._piece(state.first(number), rates[:number], course.piece(first, count, number))
        return self._moved(state, start, start.new_empty(start.shape))[:clients]

    def _rates(self, lr: float | Tensor, clients: int, most: int) -> Tensor:
        rates = self.new("rates", torch.Size([most]))
        if isinstance(lr, Tensor):
            rates[:clients] = lr
            return rates
        return rates.fill_(lr)

    def _moved(self, state: State, start: Tensor, moved: Tensor) -> Tensor:
        for layer in state.factored.values():
            layer.at = layer.inputs.shape[1]
        self.difference(state, start, moved)
        return moved

    def new(self, name: str, shape: torch.Size, dtype: torch.dtype | None = None) -> Tensor:
        """A place in the common space; it is the same every time it is asked for."""
        dtype, wanted = dtype or self.plan.dtype, shape.numel()
        flat = self._space.get(name)
        if flat is None or len(flat) < wanted or flat.dtype != dtype:
            self._captured.clear()  # they work at the old addresses
            self._pool = None
            flat = self._space[name] = torch.zeros(wanted, dtype=dtype, device=self.plan.device)
        return flat[:wanted].view(shape)

    def steady(self, name: str, tensor: Tensor) -> Tensor:
        return self.new(f"steady.{name}", tensor.shape, self.precision).copy_(tensor)

    def _kept(self, name: str, course: Course) -> Course:
        """A copy in the common space."""
        rows, weights, keys = (
            self.new(f"{name}.{field}", part.shape, part.dtype).copy_(part)
            for field, part in (("rows", course.rows), ("weights", course.weights), ("keys", course.keys))
        )
        return Course(rows, weights, keys, course.steps)

    def _piece(self, state: State, lr: Tensor, course: Course) -> None:
        own = self._kept("piece", course)
        shape = (*own.weights.shape, *(layer.weight.shape for layer in state.factored.values()))
        if shape not in self._captured:
            own.weights.zero_()  # the capture takes steps of length zero
            self._seize(shape, lambda: self._take_steps(state, lr, own))
            own.weights.copy_(course.weights)
        self._replay(shape)

    def _take_steps(self, state: State, lr: Tensor, course: Course) -> None:
        for layer in state.factored.values():
            layer.at = 0
        for number in range(course.keys.shape[1]):
            rows, weights = (part[:, number if part.shape[1] > 1 else 0] for part in (course.rows, course.weights))
            inputs, targets = (take(pool, rows) for pool in (self.inputs, self.targets))
            self.step(state, lr, Batch(inputs, targets, weights, rows, course.keys[:, number], number))

    def _seize(self, shape: tuple[Any, ...], body: Callable[[], Any]) -> None:
        """Capture what looks and leaves things in the common space only, unless that was done before; it is run once,
        for libraries to set themselves up."""
        if shape in self._captured:
            return
        body()
        self._captured[shape] = self._capture(body) if self.plan.graphs else (body, body())
        if len(self._captured) > KEPT:
            self._captured.popitem(last=False)

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
