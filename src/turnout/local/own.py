"""Clients that keep a model of their own between their jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.local.optimisers import SGD, State
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class KeptModelSGD(LocalSGD):
    """Train the client's own model (from the first model received, the first time). The client serves that
    model, and the server is told where it is."""

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"model": (task.size,), "started": ()}

    def own(self, received: Tensor, state: Named) -> Tensor:
        return torch.where(state["started"] > 0, state["model"], received)

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        return self.own(received, state), self.start_momentum(received)

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {"delta": params - received}, {"model": params, "started": torch.ones_like(state["started"])}

    def serves(self, task: Task, received: Tensor, state: Named) -> Tensor:
        return self.own(received, state)


@dataclass(frozen=True)
class OwnModelSGD(KeptModelSGD):
    """Train likewise, and share nothing."""

    def download_numbers(self, task: Task) -> int:
        return 0  # the first model follows from a seed

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {}

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {}, super().finish(task, received, params, carry, state, data)[1]


@dataclass(frozen=True)
class PulledSGD(KeptModelSGD):
    """Minimise L_i(v) + mu/2 |v - received|^2, from the client's own v.

    Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, algorithm 1.
    """

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

    def remembered(self, carry: Carry) -> State:
        return carry[1]


@dataclass(frozen=True)
class DittoSGD(PulledSGD):
    """Train likewise beside FedAvg's steps, on the same mini-batches; the server is told where the latter lead."""

    looks_after: ClassVar[Literal["kept", "shared", "none"]] = "none"
    one_optimiser: ClassVar[bool] = False

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


@dataclass(frozen=True)
class RelatedSGD(PulledSGD):
    """Minimise the *sum* of the losses of the client's n samples + mu/2 |w - received|^2, from its own w, where the
    models of related clients would have it at `received`. The pull is a proximal step, which no strength makes
    unstable: `w <- (w - lr grad + c received) / (1 + c)`, c = lr mu / n.

    Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NeurIPS 2017 (MOCHA).
    """

    looks_after: ClassVar[Literal["kept", "shared", "none"]] = "none"
    restates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.optimiser) is not SGD:
            raise UserError(
                f"local.optimiser: MOCHA's pull is a proximal step of gradient descent, and {self.optimiser} goes "
                "another way; leave it at sgd"
            )

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        own, (_, velocity) = super().start(task, received, state, data)
        return own, (received, velocity, data.count)

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        received, velocity, count = carry
        params, velocity = self.descend(params, self.gradient(task, params, carry, batch), velocity)
        pull = self.lr * self.mu / count
        return (params + pull * received) / (1 + pull), (received, velocity, count)


@dataclass(frozen=True)
class LooplessSGD(KeptModelSGD):
    """Train from `average + keep (own - average)`, where the average is what was received.

    Hanzely and Richtárik, "Federated learning of a mixture of global and local models", 2020, algorithms 1 and 2.
    """

    looks_after: ClassVar[Literal["kept", "shared", "none"]] = "none"
    restates: ClassVar[bool] = True

    keep: float = 1.0

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        own, velocity = super().start(task, received, state, data)
        return torch.lerp(received, own, self.keep), velocity


@dataclass(frozen=True)
class MoreauSGD(KeptModelSGD):
    """Take on every mini-batch `inner_steps` of `theta <- theta - lr (grad(theta) + mu (theta - w))`, which tend to

        theta(w) = argmin L_i(theta) + mu/2 |theta - w|^2,

    then `w <- w - outer_lr mu (w - theta)`. The server is told of w; the client keeps and serves theta.

    Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020 (pFedMe), algorithm 1.
    """

    looks_after: ClassVar[Literal["kept", "shared", "none"]] = "none"
    one_optimiser: ClassVar[bool] = False

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


@dataclass(frozen=True)
class InterpolatedSGD(KeptModelSGD):
    """Step on every mini-batch, with g the gradient at `alpha v + (1 - alpha) w`:

        w <- w - lr grad(w),    v <- v - lr alpha g,    alpha <- alpha - lr <v - w, g>  cut to [0, 1], where `adaptive`

    v is served mixed with w. The server is told of w, unless it is `frozen`.

    Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", 2020 (APFL), algorithm 1.
    """

    looks_after: ClassVar[Literal["kept", "shared", "none"]] = "none"
    one_optimiser: ClassVar[bool] = False

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

    def serves(self, task: Task, received: Tensor, state: Named) -> Tensor:
        return torch.lerp(received, self.own(received, state), self.own_alpha(state))
