"""A few local steps that look around: how far a client moves, and how steep its loss is on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class Probe(LocalSGD):
    """Three numbers a client: `distance` it has moved by, the largest `slope` |gradient| of a mini-batch, and the mean
    `loss` of its samples before."""

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
        loss = data.mean(data.scan(lambda inputs, targets: task.losses(received, inputs, targets)))
        return {"distance": (params - received).norm(), "slope": carry[1], "loss": loss}, {}
