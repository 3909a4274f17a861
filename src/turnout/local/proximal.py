"""FedProx's client: stay near the model received.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class ProximalSGD(LocalSGD):
    """Minimise L_i(theta) + mu/2 |theta - received|^2: every gradient gets the pull `mu * (theta - received)`."""

    mu: float = 0.0

    @property
    def pull(self) -> float:
        return self.mu + self.weight_decay

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        return received, (received, self.start_momentum(received))

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        received, velocity = carry
        gradient = self.gradient(task, params, carry, batch) + self.mu * (params - received)
        params, velocity = self.descend(params, gradient, velocity)
        return params, (received, velocity)
