"""A client that keeps a model of its own, near the one it is sent.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.local.own import KeptModelSGD
from turnout.local.sgd import Batch, Carry, ClientData, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class PulledSGD(KeptModelSGD):
    """Minimise L_i(v) + mu/2 |v - received|^2, from the client's own v."""

    mu: float = 0.0

    @property
    def pull(self) -> float:
        return self.mu + super().pull

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        return self.own(received, state), (received, self.start_momentum(received))

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        received, velocity = carry
        gradient = self.gradient(task, params, carry, batch) + self.mu * (params - received)
        params, velocity = self.descend(params, gradient, velocity)
        return params, (received, velocity)


@dataclass(frozen=True)
class DittoSGD(PulledSGD):
    """The same beside FedAvg's steps, on the same mini-batches; the server is told where the latter lead."""

    @property
    def gradients(self) -> int:
        return 2

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        own, pulled = super().start(task, received, state, data)
        return own, (pulled, (received, self.start_momentum(received)))

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        pulled, (shared, velocity) = carry
        moved = self.descend(shared, self.gradient(task, shared, velocity, batch), velocity)
        params, pulled = super().step(task, params, pulled, batch)
        return params, (pulled, moved)

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        _, (shared, _) = carry
        _, kept = super().finish(task, received, params, carry, state, data)
        return {"delta": shared - received}, kept
