"""SCAFFOLD's client: local steps corrected by control variates.

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, option II.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class ControlledSGD(LocalSGD):
    """Every gradient is corrected by `c - c_i`; afterwards `c_i <- c_i - c + (received - theta) / (K lr)`."""

    control: Tensor | None = None  # [P] the server's c, sent with the model

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.any(self.momentum):
            raise UserError("local.momentum: SCAFFOLD estimates gradients from plain steps; set it to 0")

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"delta": (task.size,), "control": (task.size,)}

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"control": (task.size,)}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        assert self.control is not None
        return received, (self.control - state["control"], received.new_zeros(()), self.start_momentum(received))

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        correction, steps, velocity = carry
        gradient = self.gradient(task, params, carry, batch) + correction
        params, velocity = self.descend(params, gradient, velocity)
        return params, (correction, steps + 1, velocity)

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        _, steps, _ = carry
        delta = params - received
        assert self.control is not None
        change = torch.where(
            steps > 0, -self.control - delta / (steps * self.lr).clamp(min=1e-30), torch.zeros_like(delta)
        )
        return {"delta": delta, "control": change}, {"control": state["control"] + change}
