"""L2SGD's client: drawn towards the average, then on its own.

Hanzely and Richtárik, "Federated learning of a mixture of global and local models", 2020, algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.local.own import KeptModelSGD
from turnout.local.sgd import Carry, ClientData, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class LooplessSGD(KeptModelSGD):
    """Local SGD from `average + keep (own - average)`, where the average is what was received."""

    restates: ClassVar[bool] = True

    keep: float = 1.0

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        own, velocity = super().start(task, received, state, data)
        return torch.lerp(received, own, self.keep), velocity
