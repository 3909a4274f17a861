"""Schedules: how the learning rate changes in the course of a job, or from one version of the model to the next.

A schedule is a factor of `local.lr`; those of several are multiplied. Numbers count from 0, as in torch.optim: step k
of a job of K, or the version that a job begins from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from turnout.core.allowed import Count, Fraction, Range, Share
from turnout.core.errors import UserError
from turnout.core.spelling import Spelt

Length = Annotated[
    float | int, Range(above=0, below=math.inf)
]  # a share of a job's steps (a float), or how many (an int)


@dataclass(frozen=True)
class Schedule(Spelt):
    """Change nothing: the base class."""

    in_job: ClassVar[bool] = True  # whether it goes by the steps of a job; else by the version that a job begins from

    def factor(self, number: Tensor, steps: Tensor) -> Tensor:
        """Compute what the learning rate is multiplied by, in step `number` of a job of so many steps, or in jobs that
        begin from version `number`; above 0, elementwise."""
        return torch.ones_like(number)


@dataclass(frozen=True)
class Warmup(Schedule):
    """Rise in a job: step k of its first w has `(k + 1) / w` of the learning rate."""

    section: ClassVar[str] = "local.warmup"

    length: Length = 0.1  # of the rise: a share of the job's steps, or a number of steps

    def __post_init__(self) -> None:
        if isinstance(self.length, float) and self.length > 1:
            raise UserError(
                f"local.warmup.length: {self.length} must be a share of a job's steps, at most 1.0, or a whole number "
                "of steps"
            )

    def factor(self, number: Tensor, steps: Tensor) -> Tensor:
        rise = self.length if isinstance(self.length, int) else self.length * steps
        return ((number + 1) / rise).clamp(max=1)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Fall in a job along half a cosine: step k of K has `floor + (1 - floor) (1 + cos(pi k / K)) / 2` of the rate.

    Loshchilov, Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """

    section: ClassVar[str] = "local.cosine"

    floor: Share = 0.0  # share of the learning rate that it tends to

    def factor(self, number: Tensor, steps: Tensor) -> Tensor:
        return _cosine(number / steps, self.floor)


@dataclass(frozen=True)
class RoundWarmup(Schedule):
    """Rise over the first versions: jobs that begin from version t have `(t + 1) / rounds` of the learning rate."""

    section: ClassVar[str] = "local.round_warmup"
    in_job: ClassVar[bool] = False

    rounds: Count  # versions of the rise

    def factor(self, number: Tensor, steps: Tensor) -> Tensor:
        return ((number + 1) / self.rounds).clamp(max=1)


@dataclass(frozen=True)
class RoundCosine(Schedule):
    """Fall over versions along half a cosine: `floor + (1 - floor) (1 + cos(pi t / rounds)) / 2`; then it stays at what
    it is in the last of them."""

    section: ClassVar[str] = "local.round_cosine"
    in_job: ClassVar[bool] = False

    rounds: Count  # versions of the fall
    floor: Share = 0.0  # share of the learning rate that it tends to

    def factor(self, number: Tensor, steps: Tensor) -> Tensor:
        return _cosine(number.clamp(max=self.rounds - 1) / self.rounds, self.floor)


@dataclass(frozen=True)
class RoundStep(Schedule):
    """Fall in stairs: by `drop` after `every` so many versions."""

    section: ClassVar[str] = "local.round_step"
    in_job: ClassVar[bool] = False

    every: Count  # versions of a stair
    drop: Fraction = 0.1  # what the learning rate is multiplied by from one to the next

    def factor(self, number: Tensor, steps: Tensor) -> Tensor:
        return self.drop ** torch.floor(number / self.every)


@dataclass(frozen=True)
class RoundExponential(Schedule):
    """Fall by the same factor from each version to the next: `decay^t`, as `local.lr_decay` says shorter."""

    section: ClassVar[str] = "local.round_exponential"
    in_job: ClassVar[bool] = False

    decay: Fraction = 0.95  # what the learning rate is multiplied by from one version to the next

    def factor(self, number: Tensor, steps: Tensor) -> Tensor:
        return self.decay**number


def _cosine(gone: Tensor, floor: float) -> Tensor:
    return floor + (1 - floor) * (1 + torch.cos(math.pi * gone)) / 2


def product(schedules: Iterable[Schedule], number: Tensor, steps: Tensor) -> Tensor:
    """Multiply the factors of these schedules."""
    factor = torch.ones_like(number)
    for schedule in schedules:
        factor = factor * schedule.factor(number, steps)
    return factor


def listed(given: Any) -> tuple[Schedule, ...]:
    """`given` as a tuple; raise unless it is a list of schedules."""
    if isinstance(given, str | bytes | Mapping | type | Schedule) or not isinstance(given, Iterable):
        shown = given.__name__ if isinstance(given, type) else repr(given)[:60]
        raise UserError(f"local.schedules: {shown} is not a list of schedules; write for example [Cosine()]")
    schedules = tuple(given)
    for schedule in schedules:
        if not isinstance(schedule, Schedule):
            shown = schedule.__name__ if isinstance(schedule, type) else repr(schedule)[:60]
            raise UserError(f"local.schedules: {shown} is no schedule; write for example Cosine(floor=0.1)")
    return schedules


SCHEDULES: dict[str, type[Schedule]] = {
    "warmup": Warmup,
    "cosine": Cosine,
    "round_warmup": RoundWarmup,
    "round_cosine": RoundCosine,
    "round_step": RoundStep,
    "round_exponential": RoundExponential,
}
