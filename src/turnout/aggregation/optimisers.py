"""Server optimisers: what is done with the aggregated difference.

Reddi et al., "Adaptive federated optimization", ICLR 2021 (Adagrad, Adam, Yogi without bias correction, as printed);
Hsu, Qi and Brown, 2019 (server momentum). `Step` with rate 1 is plain FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from turnout.core.allowed import Positive, Range, Share
from turnout.core.memory import room_like
from turnout.core.spelling import Spelt

Beta = Annotated[float, Range(least=0, below=1)]  # share of a speed that is kept
Tau = Annotated[float, Range(above=0, most=1e18)]


@dataclass
class Step(Spelt):
    """Take a step: `model <- model + lr * change`."""

    section: ClassVar[str] = "optimiser"

    lr: Positive = 1.0  # how far the server goes along the aggregated difference

    def step(self, model: Tensor, change: Tensor) -> Tensor:
        return torch.add(model, change, alpha=self.lr, out=room_like(model))


@dataclass
class Projected(Step):
    """Take a step, then go back to the ball of that radius around 0."""

    radius: Positive = field(kw_only=True)  # of the ball around 0 that the model stays in

    def step(self, model: Tensor, change: Tensor) -> Tensor:
        moved = super().step(model, change)
        inside: Tensor = moved * (self.radius / moved.norm()).clamp(max=1)
        return inside


@dataclass
class Momentum(Step):
    """Keep a speed: `v <- beta v + change; model <- model + lr v`."""

    beta: Beta = 0.9  # share of its speed that the model keeps
    velocity: Tensor | None = field(default=None, init=False)

    def step(self, model: Tensor, change: Tensor) -> Tensor:
        self.velocity = change if self.velocity is None else self.velocity.mul(self.beta).add(change)
        return super().step(model, self.velocity)


@dataclass
class Adaptive(Step):
    """`m <- beta1 m + (1 - beta1) change; model <- model + lr m / (sqrt(v) + tau)`; a subclass says how v grows."""

    lr: Positive = 0.01  # how far the server goes
    beta1: Share = 0.9  # share that the mean of the changes keeps
    tau: Tau = 1e-3  # what keeps the denominator from 0
    mean: Tensor | None = field(default=None, init=False)
    variance: Tensor | None = field(default=None, init=False)

    def grown(self, v: Tensor, square: Tensor) -> Tensor:
        """Compute `[P]` v after a change of these squares."""
        raise NotImplementedError

    def step(self, model: Tensor, change: Tensor) -> Tensor:
        mean = torch.zeros_like(model) if self.mean is None else self.mean
        v = torch.full_like(model, self.tau**2) if self.variance is None else self.variance
        self.mean = mean.mul(self.beta1).add(change, alpha=1 - self.beta1)
        self.variance = self.grown(v, change.square())
        return super().step(model, self.mean / (self.variance.sqrt() + self.tau))


@dataclass
class Adam(Adaptive):
    """`v <- beta2 v + (1 - beta2) change^2`, without bias correction, as printed."""

    beta2: Share = 0.99  # share that the mean of the squared changes keeps

    def grown(self, v: Tensor, square: Tensor) -> Tensor:
        return v.mul(self.beta2).add(square, alpha=1 - self.beta2)


@dataclass
class Yogi(Adaptive):
    """`v <- v - (1 - beta2) change^2 sign(v - change^2)`."""

    beta2: Share = 0.99  # share that the mean of the squared changes keeps

    def grown(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass
class Adagrad(Adaptive):
    """`v <- v + change^2`: no first moment unless `beta1` is given, and nothing is forgotten."""

    beta1: Share = 0.0  # share that the mean of the changes keeps

    def grown(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


OPTIMISERS: dict[str, type[Step]] = {
    "step": Step,
    "projected": Projected,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}
