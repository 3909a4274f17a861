"""Modifiers: what is added to local work, whatever that work is.

A modifier is pure functions for *one* client, each optional. For a job the engine calls, beside the work's own,

    kept           = start(task, received, state, data)
    gradient       = gradient(slope, params, kept, batch)        # of every gradient that the work takes
    params, kept   = step(params, kept, batch)                   # after each step of the work
    payload, state = finish(task, received, params, kept, payload, state, data)

`slope(params)` is the gradient of the mini-batch as it is without the modifier: that of the work and of the modifiers
before it. Several are folded left to right. Fields that hold a number may be given per client, as those of the work;
tensor fields are the same for all, sent with the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from turnout.core.allowed import Finite
from turnout.core.errors import UserError
from turnout.core.spelling import Spelt
from turnout.local.optimisers import SGD

if TYPE_CHECKING:
    from turnout.local.sgd import Batch, ClientData, LocalSGD
    from turnout.task.task import Task

Kept = Any  # whatever a modifier carries through a job: tensors in tuples, lists or dicts
Named = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
Slope = Callable[[Tensor], Tensor]  # [P] parameters -> [P] gradient


@dataclass(frozen=True)
class Modifier(Spelt):
    """Change nothing: the base class."""

    keeps_fast_paths: ClassVar[bool] = False  # whether training is the same without it: it acts on what is sent alone
    gradients: ClassVar[int] = 1  # how many gradients it asks for where the work asks for one
    passes: ClassVar[int] = 0  # over the client's samples, besides the steps
    held: ClassVar[tuple[str, ...]] = ()  # fields that the server holds; each grows by what clients send so named

    @property
    def pull(self) -> float:
        """Tell how strongly each step is pulled towards a fixed point."""
        return 0.0

    def check(self, work: LocalSGD) -> None:
        """Raise where that work cannot have the modifier."""

    def state_shapes(self, task: Task) -> Shapes:
        """Name what a client keeps between its jobs; created as zeros."""
        return {}

    def payload_shapes(self, task: Task) -> Shapes:
        """Name what is sent beside the work's."""
        return {}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> Kept:
        """Make what is carried through the job."""
        return ()

    def gradient(self, slope: Slope, params: Tensor, kept: Kept, batch: Batch) -> Tensor:
        """Compute the gradient `[P]` in the place of `slope(params)`."""
        return slope(params)

    def step(self, params: Tensor, kept: Kept, batch: Batch) -> tuple[Tensor, Kept]:
        """Change the parameters after a step of the work, and what is carried on."""
        return params, kept

    def finish(
        self, task: Task, received: Tensor, params: Tensor, kept: Kept, payload: Named, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        """Change what is sent and what the client keeps."""
        return payload, state

    def bind(self, options: Mapping[str, Any]) -> Self:
        """Make the same modifier with some numbers replaced: by arrays over clients, or by one client's scalars."""
        bound = copy.copy(self)
        for name, value in options.items():
            object.__setattr__(bound, name, value)
        return bound

    @property
    def tensors(self) -> Named:
        """Name the tensor fields."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Proximal(Modifier):
    """Stay near the model received: every gradient gets the pull `mu * (theta - received)`, which is that of
    L_i(theta) + mu/2 |theta - received|^2.

    Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.
    """

    section: ClassVar[str] = "local.proximal"

    mu: Finite = 0.1  # strength of the proximal term

    @property
    def pull(self) -> float:
        return self.mu

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> Kept:
        return received

    def gradient(self, slope: Slope, params: Tensor, kept: Kept, batch: Batch) -> Tensor:
        received: Tensor = kept
        return slope(params) + self.mu * (params - received)


@dataclass(frozen=True)
class SharpnessAware(Modifier):
    """Take the gradient at the steepest point within `rho`: g(theta + rho g(theta) / |g(theta)|).

    Foret, Kleiner, Mobahi, Neyshabur, "Sharpness-aware minimization for efficiently improving generalization", ICLR
    2021.
    """

    section: ClassVar[str] = "local.sharpness_aware"
    gradients: ClassVar[int] = 2

    rho: Finite = 0.05  # how far up the gradient is taken

    def gradient(self, slope: Slope, params: Tensor, kept: Kept, batch: Batch) -> Tensor:
        uphill = slope(params)
        return slope(params + self.rho * uphill / uphill.norm().clamp(min=1e-12))


@dataclass(frozen=True, eq=False)
class ControlVariates(Modifier):
    """Correct every gradient by `c - c_i`; afterwards `c_i <- c_i - c + (received - theta) / (K lr)`.

    The server holds c = sum_i p_i c_i in any method, unless a constant is given.

    Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, option II.
    """

    held: ClassVar[tuple[str, ...]] = ("control",)

    control: Tensor | None = None  # [P] c

    def check(self, work: LocalSGD) -> None:
        if np.any(work.momentum):
            raise UserError("local.momentum: SCAFFOLD estimates gradients from plain steps; set it to 0")
        if type(work.optimiser) is not SGD:
            raise UserError("local.optimiser: SCAFFOLD estimates gradients from plain steps; leave it at sgd")
        if work.paces:
            name = type(work.paces[0]).__name__
            raise UserError(f"local.schedules: SCAFFOLD estimates gradients from steps of one length; leave {name} out")

    def payload_shapes(self, task: Task) -> Shapes:
        return {"control": (task.size,)}

    def state_shapes(self, task: Task) -> Shapes:
        return {"control": (task.size,)}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> Kept:
        nothing = received.new_zeros(())
        assert self.control is not None
        return self.control - state["control"], nothing, nothing.clone()

    def gradient(self, slope: Slope, params: Tensor, kept: Kept, batch: Batch) -> Tensor:
        correction: Tensor = kept[0]
        return slope(params) + correction

    def step(self, params: Tensor, kept: Kept, batch: Batch) -> tuple[Tensor, Kept]:
        correction, steps, _ = kept
        return params, (correction, steps + 1, torch.zeros_like(steps) + batch.lr)

    def finish(
        self, task: Task, received: Tensor, params: Tensor, kept: Kept, payload: Named, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        _, steps, lr = kept
        assert self.control is not None
        delta = params - received
        change = torch.where(steps > 0, -self.control - delta / (steps * lr).clamp(min=1e-30), torch.zeros_like(delta))
        return payload | {"control": change}, state | {"control": state["control"] + change}
