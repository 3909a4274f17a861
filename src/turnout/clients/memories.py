"""What a client that cannot store everything still has of the samples that have arrived: rules that are blind to
features and labels, as the theory of Marfoq's thesis, section 4.3, needs them.

A rule is a pure function of what has arrived by when: a memory is known at any time, without a history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from turnout.core.allowed import Count
from turnout.core.random import IntArray
from turnout.core.spelling import Spelt

Arrived = Callable[[IntArray], IntArray]  # samples of each client by the end of a period, [k] to [k]


@dataclass(frozen=True)
class Memory(Spelt):
    """Unlimited: nothing is ever lost."""

    section: ClassVar[str] = "memory"

    def interval(self, arrived: Arrived, period: IntArray) -> tuple[IntArray, IntArray]:
        """`[k]` first and one past the last of each client's samples that may be stored, in order of arrival."""
        return np.zeros_like(period), arrived(period)

    def counts(self, number: IntArray) -> IntArray:
        """`[k]` how many of so many are: those with the lowest of the tickets that samples draw on arrival."""
        return number


@dataclass(frozen=True)
class Latest(Memory):
    """What has arrived in this period; nothing, if nothing has."""

    def interval(self, arrived: Arrived, period: IntArray) -> tuple[IntArray, IntArray]:
        return arrived(period - 1), arrived(period)


@dataclass(frozen=True)
class Static(Memory):
    """What was there at the beginning: all that arrives later is ignored."""

    def interval(self, arrived: Arrived, period: IntArray) -> tuple[IntArray, IntArray]:
        return np.zeros_like(period), arrived(np.zeros_like(period))


@dataclass(frozen=True)
class FIFO(Memory):
    """The last `capacity` samples."""

    capacity: Count  # samples that a client keeps

    def interval(self, arrived: Arrived, period: IntArray) -> tuple[IntArray, IntArray]:
        end = arrived(period)
        return np.maximum(0, end - self.capacity), end


@dataclass(frozen=True)
class Reservoir(Memory):
    """`capacity` of all samples that have arrived, uniformly (as Vitter 1985, without a history)."""

    capacity: Count  # samples that a client keeps

    def counts(self, number: IntArray) -> IntArray:
        return np.minimum(number, self.capacity)


MEMORIES: dict[str, type[Memory]] = {
    "unlimited": Memory, "latest": Latest, "static": Static, "fifo": FIFO, "reservoir": Reservoir,
}  # fmt: skip
