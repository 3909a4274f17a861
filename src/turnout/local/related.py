"""MOCHA's client: near the point where the models of related clients would have its own.

Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from turnout.local.pulled import PulledSGD
from turnout.local.sgd import Batch, Carry, ClientData, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class RelatedSGD(PulledSGD):
    """Minimise the *sum* of the losses of the client's n samples + mu/2 |w - received|^2, from its own w. The pull is a
    proximal step, which no strength makes unstable: `w <- (w - lr grad + c received) / (1 + c)`, c = lr mu / n."""

    restates: ClassVar[bool] = True

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        own, (_, velocity) = super().start(task, received, state, data)
        return own, (received, self.lr * self.mu / data.count, velocity)

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        received, pull, velocity = carry
        params, velocity = self.descend(params, self.gradient(task, params, carry, batch), velocity)
        return (params + pull * received) / (1 + pull), (received, pull, velocity)
