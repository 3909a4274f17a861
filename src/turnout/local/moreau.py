"""pFedMe's client: steps along the gradient of its Moreau envelope.

Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from turnout.local.own import KeptModelSGD
from turnout.local.sgd import Batch, Carry, ClientData, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class MoreauSGD(KeptModelSGD):
    """On every mini-batch `inner_steps` of `theta <- theta - lr (grad(theta) + mu (theta - w))`, which tend to

        theta(w) = argmin L_i(theta) + mu/2 |theta - w|^2,

    then `w <- w - outer_lr mu (w - theta)`. The server is told of w; the client keeps and serves theta.
    """

    mu: float = 1.0
    outer_lr: float = 0.1
    inner_steps: int = 5

    @property
    def gradients(self) -> int:
        return self.inner_steps

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        return received, received

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        own, velocity = carry, self.start_momentum(params)
        for _ in range(self.inner_steps):
            gradient = self.gradient(task, own, carry, batch) + self.mu * (own - params)
            own, velocity = self.descend(own, gradient, velocity)
        return params - self.outer_lr * self.mu * (params - own), own

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        _, kept = super().finish(task, received, params, carry, state, data)
        return {"delta": params - received}, kept | {"model": carry}
