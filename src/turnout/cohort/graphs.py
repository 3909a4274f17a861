"""A step of a whole cohort, captured once as a CUDA graph and replayed: no Python and no launches between its kernels.

A graph has fixed shapes and addresses, so it owns the parameters it moves and the batch it reads. Whether a step is
replayed or run eagerly follows from the cohort alone, never from what was captured before: a resumed run takes the
same path, and bits stay the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turnout.local.sgd import Batch, Named

KEPT = 32  # shapes; they share one memory pool
WORTH_STEPS = 4  # capturing costs about as much as three eager steps
READ = ("inputs", "targets", "weights", "key")  # parts of a batch
Step = Callable[[Named, Tensor, Batch], None]  # moves the layers [C, ...] in place, by learning rates [C]


class CapturedStep:
    """`step` for cohorts of one shape; `layers` are the parameters it moves."""

    def __init__(self, step: Step, layers: Named, batch: Batch, pool: Any) -> None:
        self.layers = {name: layer.clone() for name, layer in layers.items()}
        self.lr = batch.weights.new_zeros(len(batch.weights))
        self._batch = batch._replace(**{name: getattr(batch, name).clone() for name in READ})
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up outside the capture
            step(self.layers, self.lr, self._batch)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self._graph, pool=pool):
            step(self.layers, self.lr, self._batch)

    def begin(self, layers: Named, lr: float | Tensor) -> None:
        """From these parameters, with this learning rate or these `[C]`."""
        for mine, given in zip(self.layers.values(), layers.values(), strict=True):
            mine.copy_(given)
        self.lr.copy_(torch.as_tensor(lr, dtype=self.lr.dtype))

    def replay(self, batch: Batch) -> None:
        """One step on this batch."""
        for name in READ:
            getattr(self._batch, name).copy_(getattr(batch, name))
        self._graph.replay()


class Graphs:
    """The captured steps of a cohort engine, by shape."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: OrderedDict[tuple[torch.Size, ...], CapturedStep] = OrderedDict()

    def step_for(self, layers: Named, lr: float | Tensor, batch: Batch) -> CapturedStep:
        """The captured step for cohorts shaped like this one, set to start from `layers`."""
        shape = tuple(getattr(batch, name).shape for name in READ)
        captured = self._captured.pop(shape, None) or CapturedStep(self._step, layers, batch, self._pool)
        self._captured[shape] = captured
        if len(self._captured) > KEPT:
            self._captured.popitem(last=False)
        captured.begin(layers, lr)
        return captured
