"""FEM-OMD's client in a round of a server: it explains what it has, and foretells what it will receive.

Marfoq's thesis (2023), section 4.4, algorithm 17.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from turnout.core.errors import check_positive
from turnout.local.mixture import MixtureSGD
from turnout.local.mixture_task import MixtureTask, responsibilities
from turnout.local.sgd import Carry, ClientData, Named
from turnout.task.task import Task
from turnout.theory.mirror import floored, mirror_step


@dataclass(frozen=True)
class OnlineMixtureSGD(MixtureSGD):
    """The samples are explained from equal weights, `weight_steps` times, and every component trained on its share. The
    weights pi that it plays next are a mirror step from those it played, with the gradient at its samples and the rate
    `scale` sqrt(log M / t) of its t-th time; none falls below `min_weight`.

    The gradient is by the components received: the next ones do not exist before everybody has answered.
    """

    plain_for: ClassVar[type[Task]] = MixtureTask

    scale: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("algorithm.scale", self.scale)

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {**super().state_shapes(task), "times": ()}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        assert data.scores is not None
        explained = received.new_full((self.components,), 1 / self.components)
        for _ in range(self.weight_steps):
            shares = responsibilities(data.scores, explained) * data.weights[:, None]
            explained = data.mean(shares)
        played = self.weights(state)
        gradient = -data.mean(responsibilities(data.scores, played) * data.weights[:, None]) / played
        lr = self.scale * math.sqrt(math.log(max(self.components, 2))) / torch.sqrt(state["times"] + 1)
        weights = floored(mirror_step(played, gradient, lr), self.min_weight)
        return received, (shares, weights, self.start_momentum(received))

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        payload, kept = super().finish(task, received, params, carry, state, data)
        return payload, {**kept, "times": state["times"] + 1}
