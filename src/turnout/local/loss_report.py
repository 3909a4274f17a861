"""No training: a client says how well the model it received fits its data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class LossReport(LocalSGD):
    """Answers with one number, the mean loss over the client's samples: `updates["loss"]`."""

    lr: float = 0.0
    steps: int | None = 0
    report: str = "loss"

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {}

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {}, {}


@dataclass(frozen=True)
class BatchLossReport(LocalSGD):
    """The same number of one mini-batch, drawn anew."""

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
