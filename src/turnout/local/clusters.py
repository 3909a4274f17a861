"""Clients that choose among several models.

Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from turnout.local.answers import Untrained
from turnout.local.optimisers import State
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


def best(task: Task, models: Tensor, data: ClientData) -> Tensor:
    """Find which of the models `[C, P]` has the least loss on the client's samples."""
    losses = [data.scan(partial(task.losses, model)).sum() for model in models.unbind()]
    return torch.stack(losses).argmin()


def pick(models: Tensor, cluster: Tensor) -> Tensor:
    """Pick `[P]` the model of a cluster."""
    return models.index_select(0, cluster.long().view(1))[0]


@dataclass(frozen=True)
class ClusterModel(Untrained):
    """Serve, without training, the model of the cluster that a client is known to be in, or after `prepare` the best
    one."""

    lr: float = 0.0
    steps: int | None = 0
    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0))  # [C, P]

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"cluster": ()}

    def prepare(self, task: Task, received: Tensor, state: Named, data: ClientData) -> Named:
        return {"cluster": best(task, self.models, data)}

    def serves(self, task: Task, received: Tensor, state: Named) -> Tensor:
        return pick(self.models, state["cluster"])


@dataclass(frozen=True)
class ClusterSGD(LocalSGD):
    """Train from the best of several models, which are sent instead of one; the client says which that was."""

    looks_after: ClassVar[Literal["kept", "shared", "none"]] = "shared"

    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0))  # [C, P]

    @property
    def passes(self) -> int:
        return super().passes + len(self.models)

    def download_numbers(self, task: Task) -> int:
        return self.models.numel()

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"delta": (task.size,), "cluster": ()}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        cluster = best(task, self.models, data)
        return pick(self.models, cluster), (cluster, self.start_momentum(received))

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        cluster, velocity = carry
        params, velocity = self.descend(params, self.gradient(task, params, carry, batch), velocity)
        return params, (cluster, velocity)

    def remembered(self, carry: Carry) -> State:
        return carry[1]

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        cluster, _ = carry
        return {"delta": params - pick(self.models, cluster), "cluster": cluster.to(params)}, {}
