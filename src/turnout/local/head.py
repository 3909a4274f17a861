"""A client that shares the body of its model and keeps the head.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers", 2019 (FedPer); Collins,
Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized federated learning", ICML 2021
(FedRep).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from turnout.core.errors import UserError
from turnout.local.optimisers import State
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class HeadSGD(LocalSGD):
    """Train the head alone for `head_epochs` passes, then the usual ones: of head and body where `joint`, else of the
    body alone. `head` names the layers kept, with commas between; without, it is the last fully connected one.

    Only the body is sent, either way: what the global model has for a head is where clients begin.
    """

    head: str = ""
    head_epochs: int = 0
    joint: bool = True

    def private(self, task: Task) -> list[bool]:
        """Say which parameters of the task's layout belong to the head."""
        layers = dict(task.module.named_modules())
        names = [name.strip() for name in self.head.split(",") if name.strip()] or [_last_linear(task)]
        for name in names:
            if name not in layers:
                known = ", ".join(filter(None, layers))
                raise UserError(f"algorithm.head: the model has no layer {name!r}; its layers: {known}")
        return [any(f"{own}.".startswith(f"{name}." if name else "") for name in names) for own in task.layout.names]

    def sizes(self, task: Task) -> list[int]:
        """Count how many numbers each parameter of the head has."""
        return [size for size, own in zip(task.layout.sizes, self.private(task), strict=True) if own]

    def mask(self, task: Task, like: Tensor) -> Tensor:
        """Say `[P]` where the head is."""
        parts = zip(task.layout.sizes, self.private(task), strict=True)
        return torch.cat([like.new_full((size,), own, dtype=torch.bool) for size, own in parts])

    def head_of(self, task: Task, params: Tensor) -> Tensor:
        parts = zip(torch.split(params, task.layout.sizes), self.private(task), strict=True)
        return torch.cat([params[:0], *(part for part, own in parts if own)])

    def joined(self, task: Task, received: Tensor, state: Named) -> Tensor:
        """Join the body received and the client's own head, `[P]`."""
        head = torch.where(state["started"] > 0, state["head"], self.head_of(task, received))
        heads = iter(torch.split(head, self.sizes(task)))
        parts = zip(torch.split(received, task.layout.sizes), self.private(task), strict=True)
        return torch.cat([next(heads) if own else part for part, own in parts])

    def num_steps(self, counts: ArrayLike) -> NDArray[np.int64]:
        return super().num_steps(counts) + self.head_epochs * self.steps_a_pass(counts)

    def download_numbers(self, task: Task) -> int:
        return task.size - sum(self.sizes(task))

    def upload_numbers(self, task: Task) -> int:
        return self.download_numbers(task)

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"head": (sum(self.sizes(task)),), "started": ()}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        a_pass = torch.ones_like(data.count) if self.batching == "full" else (data.count / self.batch_size).ceil()
        return self.joined(task, received, state), (self.head_epochs * a_pass, self.start_momentum(received))

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        head_steps, velocity = carry
        head = self.mask(task, params)
        trained = torch.where(batch.number < head_steps, head, ~head | self.joint)
        gradient = torch.where(trained, self.gradient(task, params, carry, batch), 0.0)
        moved, moving = self.descend(params, gradient, velocity)
        velocity = tree_map(lambda new, old: torch.where(trained, new, old) if old.ndim else new, moving, velocity)
        return torch.where(trained, moved, params), (head_steps, velocity)

    def start_momentum(self, params: Tensor) -> State:
        """Make what the optimiser remembers, of every parameter by itself: a number of steps, too."""
        made = super().start_momentum(params)
        return made if isinstance(made, Tensor) else tree_map(lambda part: part.expand(params.shape).clone(), made)

    def remembered(self, carry: Carry) -> State:
        return carry[1]

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        delta = torch.where(self.mask(task, params), 0.0, params - received)
        return {"delta": delta}, {"head": self.head_of(task, params), "started": torch.ones_like(state["started"])}

    def serves(self, task: Task, received: Tensor, state: Named) -> Tensor:
        return self.joined(task, received, state)


def _last_linear(task: Task) -> str:
    """Name the last fully connected layer in the order of a pass, or of their definition before there was one."""
    layers = dict(task.module.named_modules())
    linear = [name for name in task.layer_shapes or layers if isinstance(layers[name], nn.Linear)]
    if not linear:
        known = ", ".join(filter(None, layers))
        raise UserError(f"algorithm.head: the model has no fully connected layer; name the head's layers, of {known}")
    return linear[-1]
