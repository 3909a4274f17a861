"""What a local work sends, brings back and keeps, with its modifiers and reports: shapes by name, and numbers.

A work says what is its own (`payload_shapes`, `state_shapes`, `download_numbers`, `upload_numbers`); the rest follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from turnout.core.spelling import Spelt
from turnout.local import reports
from turnout.local.modifiers import Modifier, Shapes
from turnout.local.optimisers import SGD, Optimiser, State, Update
from turnout.local.transforms import Transform

if TYPE_CHECKING:
    from turnout.task.task import Task


NORMS = "norms", "norms.version"  # what a client keeps of normalisation layers; 1 + the version it trained from, or 0


def count_numbers(shapes: Shapes) -> int:
    """Count the numbers of all these shapes."""
    return sum(torch.Size(shape).numel() for shape in shapes.values())


class Exchange(Spelt):
    """Tell what a work exchanges with the server, and what its clients keep."""

    report: str
    modifiers: tuple[Modifier, ...]
    optimiser: Optimiser | Update | str
    optimiser_state: str

    @property
    def active(self) -> tuple[Modifier, ...]:
        """List the modifiers that act in training."""
        return tuple(modifier for modifier in self.modifiers if not modifier.keeps_fast_paths)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """List the modifiers that act on what is sent."""
        return tuple(modifier for modifier in self.modifiers if isinstance(modifier, Transform))

    def download_numbers(self, task: Task) -> int:
        """Count the numbers sent to a client: the model, and the tensors that this work carries."""
        return task.size + sum(value.numel() for value in vars(self).values() if isinstance(value, Tensor))

    def payload_shapes(self, task: Task) -> Shapes:
        """Name what comes back of the work itself: it decides the upload's size."""
        return {"delta": (task.size,)}

    def upload_numbers(self, task: Task) -> int:
        """Count the numbers of the payload that are sent: all, unless some are known to be zero."""
        return count_numbers(self.payload_shapes(task))

    def update_numbers(self, task: Task) -> int:
        """Count the numbers sent that are the update's."""
        others = {name: shape for name, shape in self.payload_shapes(task).items() if name != "delta"}
        return self.upload_numbers(task) - count_numbers(others)

    def sent_shapes(self, task: Task) -> Shapes:
        """Name the payload, and what modifiers add to it."""
        added = {name: shape for modifier in self.active for name, shape in modifier.payload_shapes(task).items()}
        return self.payload_shapes(task) | added

    def sends(self, task: Task) -> Shapes:
        """Name the same, and what is reported beside it."""
        return self.sent_shapes(task) | reports.shapes(self.report, task)

    def state_shapes(self, task: Task) -> Shapes:
        """Name what a client keeps between its jobs for the work itself; created as zeros."""
        return {}

    def start_momentum(self, params: Tensor) -> State:
        raise NotImplementedError

    def optimiser_shapes(self, task: Task) -> Shapes:
        """Name what a client keeps of its optimiser between its jobs: whether there was one, and every tensor."""
        if self.optimiser_state != "kept":
            return {}
        leaves = tree_leaves(self.start_momentum(torch.empty(task.size, device="meta")))
        return {"optimiser.begun": ()} | {
            f"optimiser.{number}": tuple(leaf.shape) for number, leaf in enumerate(leaves)
        }

    def optimiser_vectors(self, task: Task) -> int:
        """Count the vectors that an optimiser other than sgd remembers in a job."""
        leaves = tree_leaves(self.start_momentum(torch.empty(task.size, device="meta")))
        return sum(leaf.ndim for leaf in leaves if not isinstance(self.optimiser, SGD))

    def trained_shapes(self, task: Task) -> Shapes:
        """Name the same, and what its optimiser and the modifiers keep that act in training."""
        added = {name: shape for modifier in self.active for name, shape in modifier.state_shapes(task).items()}
        tail = task.tail
        norms = {} if tail is None or not tail.keeps else dict(zip(NORMS, ((task.size - tail.kept,), ()), strict=True))
        return self.state_shapes(task) | self.optimiser_shapes(task) | norms | added

    def stored_shapes(self, task: Task) -> Shapes:
        """Name the same, and what transforms keep."""
        if not self.transforms or "delta" not in self.payload_shapes(task):
            return self.trained_shapes(task)
        added = {name: shape for transform in self.transforms for name, shape in transform.state_shapes(task).items()}
        return self.trained_shapes(task) | added
