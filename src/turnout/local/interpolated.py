"""APFL's client: a model of its own that is trained, and served, mixed with the shared one.

Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", 2020, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnout.local.own import KeptModelSGD
from turnout.local.sgd import Batch, Carry, ClientData, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class InterpolatedSGD(KeptModelSGD):
    """On every mini-batch, with g the gradient at `alpha v + (1 - alpha) w`:

        w <- w - lr grad(w),    v <- v - lr alpha g,    alpha <- alpha - lr <v - w, g>  cut to [0, 1], where `adaptive`

    The server is told of w, unless it is `frozen`.
    """

    alpha: float = 0.5
    adaptive: bool = False
    frozen: bool = False

    @property
    def gradients(self) -> int:
        return 1 if self.frozen else 2

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return super().state_shapes(task) | {"alpha": ()}

    def own_alpha(self, state: Named) -> Tensor:
        return torch.where(state["started"] > 0, state["alpha"], self.alpha)

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        own, velocity = super().start(task, received, state, data)
        return own, (self.own_alpha(state), velocity, received, velocity)

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        alpha, velocity, shared, shared_velocity = carry
        slope = self.gradient(task, torch.lerp(shared, params, alpha), carry, batch)
        own, velocity = self.descend(params, alpha * slope, velocity)
        if self.adaptive:
            alpha = (alpha - self.lr * (params - shared) @ slope).clamp(0, 1)
        if not self.frozen:
            gradient = self.gradient(task, shared, carry, batch)
            shared, shared_velocity = self.descend(shared, gradient, shared_velocity)
        return own, (alpha, velocity, shared, shared_velocity)

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        alpha, _, shared, _ = carry
        _, kept = super().finish(task, received, params, carry, state, data)
        return {"delta": shared - received}, kept | {"alpha": alpha}

    def predict(self, task: Task, received: Tensor, state: Named, inputs: Tensor) -> Tensor:
        return task.outputs(torch.lerp(received, self.own(received, state), self.own_alpha(state)), inputs)
