"""What a task holds in memory while it computes, measured: a gradient of one client's batch, a pass of some samples.

Outputs of layers do not say it: attention keeps a matrix that no layer returns, a loss keeps the probabilities of a
whole vocabulary. `Live` counts the bytes of every tensor that operations make, from its first to its last moment.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from turnout.core import trees
from turnout.core.trees import Tree
from turnout.task.task import Task

FEW, MORE = 4, 8  # samples of two passes, whose difference is what a sample takes


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of the tensors that operations have made and that are still there. What an operation takes and
    gives back inside itself is not seen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: int = 0
        self.peak: int = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = func(*args, **kwargs or {})
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._known and storage._cdata not in given:  # no view of another
                    self._add(storage)
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        self._known.add(place)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._drop, place, size).atexit = False

    def _drop(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.bytes -= size


def peak(function: Callable[[], object]) -> int:
    """Count the bytes that a function holds at most, beside what there was before."""
    with Live() as live:
        function()
    found: int = live.peak
    return found


class Footprint:
    """The bytes that a task holds on its samples, measured once for each size that is asked for."""

    def __init__(self, task: Task, inputs: Tree, targets: Tree) -> None:
        self.task, self.inputs, self.targets = copy.copy(task), inputs, targets
        if task.alone:  # its gradients are computed one by one
            self.task.vectorised = False
        self._known: dict[int, int] = {}
        self._passes: tuple[int, int] | None = None

    def training(self, batch: int) -> int:
        """Bound the bytes of one client's gradient on a batch of so many samples. Sizes are rounded up, to four binary
        digits: those that differ little are measured once, whatever was asked before."""
        if not self.task.has_gradients:
            return 0
        step = 1 << max(0, batch.bit_length() - 4)
        size = -(-batch // step) * step
        if size not in self._known:
            self._known[size] = peak(partial(self._gradient, *self._some(size)))
        return self._known[size]

    def scoring(self, samples: int) -> int:
        """Estimate the bytes of a pass of so many samples in evaluation, measures included."""
        fixed, each = self.passes
        return fixed + samples * each

    @property
    def passes(self) -> tuple[int, int]:
        """Measure what a pass in evaluation takes by itself, and for each sample."""
        if self._passes is None:
            few, more = (peak(partial(self._scored, *self._some(count))) for count in (FEW, MORE))
            each = max(0, more - few) // (MORE - FEW)
            self._passes = max(0, few - FEW * each), each
        return self._passes

    def _some(self, count: int) -> tuple[Tree, Tree]:
        """Take so many samples, the first ones over again where there are fewer."""
        rows = torch.arange(count, device=self.task.initial.device) % trees.rows(self.inputs)
        return trees.batch(self.inputs, self.targets, rows, self.task.initial)

    def _gradient(self, inputs: Tree, targets: Tree) -> Tensor:
        """Compute a gradient as clients do: one of several that are mapped, or by itself."""
        task, params = self.task, self.task.initial
        key = torch.ones((), dtype=torch.int64, device=params.device)

        def objective(params: Tensor, inputs: Tree, targets: Tree, key: Tensor) -> Tensor:
            return task.losses(params, inputs, targets, key).sum()

        if task.vectorised:
            x, y = (trees.at(part, None) for part in (inputs, targets))
            mapped: Tensor = vmap(grad(objective))(params[None], x, y, key[None])
            return mapped
        return task.gradient(lambda params: objective(params, inputs, targets, key), params)

    @torch.no_grad()
    def _scored(self, inputs: Tree, targets: Tree) -> dict[str, Tensor]:
        return self.task.measures(self.task.outputs(self.task.initial, inputs), targets)
