"""Works that answer a question: a client reports without training, or takes a few steps that only look around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.local import reports
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class Untrained(LocalSGD):
    """Train nothing and send no update: a client is asked for reports, or serves. The other settings are those of the
    training beside it."""

    trains: ClassVar[bool] = False

    def num_steps(self, counts: ArrayLike) -> NDArray[np.int64]:
        return np.zeros_like(np.asarray(counts, np.int64))

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {}

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {}, state


@dataclass(frozen=True)
class Served(Untrained):
    """Serve the model received, by the normalisation layers that the client has of its own."""


@dataclass(frozen=True)
class LossReport(Untrained):
    """Answer with one number, the mean loss over the client's samples: `updates["loss"]`."""

    lr: float = 0.0
    steps: int | None = 0
    report: str = "loss"


@dataclass(frozen=True)
class BatchLossReport(LocalSGD):
    """Answer with the same number of one mini-batch, drawn anew."""

    trains: ClassVar[bool] = False

    lr: float = 0.0
    steps: int | None = 1
    batching: str = "draws"

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"loss": ()}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        return received, received.new_zeros(())

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        losses = task.losses(params, batch.inputs, batch.targets)
        return params, (losses * batch.weights).sum()

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {"loss": carry}, {}


@dataclass(frozen=True)
class ProfileReport(Untrained):
    """Answer with its report alone (`report` profile:LAYER), in the time of one pass over the client's samples; the
    other settings are those of the training that pass is compared with."""

    def busy(self, counts: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
        a_pass = self.steps_a_pass(counts)
        return a_pass, np.asarray(counts) * a_pass / np.maximum(1, LocalSGD.num_steps(self, counts))


@dataclass(frozen=True)
class Probe(LocalSGD):
    """Answer with three numbers: the `distance` moved by, the largest `slope` |gradient| of a mini-batch, and the mean
    `loss` of the client's samples before."""

    trains: ClassVar[bool] = False

    @property
    def passes(self) -> int:
        return super().passes + 1

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"distance": (), "slope": (), "loss": ()}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        return received, (self.start_momentum(received), received.new_zeros(()))

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        velocity, steepest = carry
        gradient = self.gradient(task, params, velocity, batch)
        params, velocity = self.descend(params, gradient, velocity)
        return params, (velocity, torch.maximum(steepest, gradient.norm()))

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        moved = {"distance": (params - received).norm(), "slope": carry[1]}
        return moved | reports.values("loss", task, received, data), {}
