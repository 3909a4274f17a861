"""Step sizes of mirror descent on the simplex, and the floor under its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError


def check_floor(floor: float, sources: int) -> None:
    if not 0 <= floor * sources < 1:
        raise UserError(
            f"online.weight_floor: {floor} must be at least 0 and below 1 / {sources}, one over the sources"
        )


class Schedule(Protocol):
    """Step sizes eta."""

    def __call__(self, step: int, sources: int) -> float:
        """Of the step numbered from 1."""


@dataclass(frozen=True)
class Anytime:
    """scale * sqrt(log m / t): no horizon needed."""

    scale: float = 0.1

    def __post_init__(self) -> None:
        POSITIVE.check("online.scale", self.scale)

    def __call__(self, step: int, sources: int) -> float:
        return self.scale * math.sqrt(math.log(sources) / step)


@dataclass(frozen=True)
class Horizon:
    """sqrt(log m / T) / G for T steps and gradients bounded by G: the step of the regret bound."""

    steps: int
    bound: float = 1.0

    def __post_init__(self) -> None:
        POSITIVE.check("online.steps", self.steps)
        POSITIVE.check("online.bound", self.bound)

    def __call__(self, step: int, sources: int) -> float:
        return math.sqrt(math.log(sources) / self.steps) / self.bound


@dataclass(frozen=True)
class Constant:
    """The same at every step."""

    lr: float

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf:
            raise UserError(f"online.omd_lr: {self.lr} must be at least 0 and finite")

    def __call__(self, step: int, sources: int) -> float:
        return self.lr
