"""No training: a client says how well the model it received fits its data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.local.sgd import Carry, ClientData, LocalSGD, Named
from turnout.task import Task


@dataclass(frozen=True)
class LossReport(LocalSGD):
    """Answers with one number, the mean loss over the client's samples: `updates["loss"]`."""

    lr: float = 0.0
    steps: int | None = 0

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"loss": ()}

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {"loss": data.mean(data.scan(lambda inputs, targets: task.losses(received, inputs, targets)))}, {}
