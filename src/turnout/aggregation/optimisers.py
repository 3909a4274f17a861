"""Server optimisers: what is done with the aggregated difference.

Reddi et al., "Adaptive federated optimization", ICLR 2021 (Adagrad, Adam, Yogi without bias correction, as printed);
Hsu, Qi and Brown, 2019 (server momentum). `Gradient` with rate 1 is plain FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.memory import room_like


@dataclass
class Gradient:
    """`model <- model + lr * change`."""

    lr: float = 1.0

    def step(self, model: Tensor, change: Tensor) -> Tensor:
        return torch.add(model, change, alpha=self.lr, out=room_like(model))


@dataclass
class Projected(Gradient):
    """The same, then back to the ball of that radius around 0."""

    radius: float = float("inf")

    def step(self, model: Tensor, change: Tensor) -> Tensor:
        moved = super().step(model, change)
        inside: Tensor = moved * (self.radius / moved.norm()).clamp(max=1)
        return inside


@dataclass
class Momentum(Gradient):
    """`v <- beta v + change; model <- model + lr v`."""

    beta: float = 0.9
    velocity: Tensor | None = field(default=None, init=False)

    def step(self, model: Tensor, change: Tensor) -> Tensor:
        self.velocity = change if self.velocity is None else self.velocity.mul(self.beta).add(change)
        return super().step(model, self.velocity)


@dataclass
class Adaptive(Gradient):
    """`m <- beta1 m + (1 - beta1) change; model <- model + lr m / (sqrt(v) + tau)`; `second` says how v grows."""

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    second: str = "adam"
    mean: Tensor | None = field(default=None, init=False)
    variance: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"algorithm.{name}: {getattr(self, name)} must be from 0 to 1")
        if not 0 < self.tau <= 1e18:
            raise UserError(f"algorithm.tau: {self.tau} must be above 0 and at most 1e18")

    def step(self, model: Tensor, change: Tensor) -> Tensor:
        mean = torch.zeros_like(model) if self.mean is None else self.mean
        v = torch.full_like(model, self.tau**2) if self.variance is None else self.variance
        square = change.square()
        self.mean = mean.mul(self.beta1).add(change, alpha=1 - self.beta1)
        if self.second == "adagrad":
            v = v + square
        elif self.second == "adam":
            v = v.mul(self.beta2).add(square, alpha=1 - self.beta2)
        else:  # yogi
            v = v - (1 - self.beta2) * square * torch.sign(v - square)
        self.variance = v
        return super().step(model, self.mean / (v.sqrt() + self.tau))
