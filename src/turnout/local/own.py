"""A client that keeps a model of its own between its jobs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.local.sgd import Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class KeptModelSGD(LocalSGD):
    """Local SGD from the client's own model (from the first model received, the first time). It serves that model, and
    the server is told where it is."""

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"model": (task.size,), "started": ()}

    def own(self, received: Tensor, state: Named) -> Tensor:
        return torch.where(state["started"] > 0, state["model"], received)

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        return self.own(received, state), self.start_momentum(received)

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {"delta": params - received}, {"model": params, "started": torch.ones_like(state["started"])}

    def predict(self, task: Task, received: Tensor, state: Named, inputs: Tensor) -> Tensor:
        return task.outputs(self.own(received, state), inputs)


@dataclass(frozen=True)
class OwnModelSGD(KeptModelSGD):
    """The same for a client that shares nothing."""

    def download_numbers(self, task: Task) -> int:
        return 0  # the first model follows from a seed

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {}

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {}, super().finish(task, received, params, carry, state, data)[1]
