"""Samples that arrive while training goes on, at clients that remember some of them.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, section 4.3.

    >>> people = people.streaming(arriving.constant(5), memories.FIFO(100), fresh=0.5)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from turnout.clients.columns import check_members
from turnout.clients.memories import Latest, Memory
from turnout.core import random, trees
from turnout.core.allowed import Seconds
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt
from turnout.core.trees import Tree


@dataclass(frozen=True)
class Stream(Spelt):
    """Sample `j` of the pool arrives at the beginning of period `period[j]`, at a client whose row of the population
    has its samples in order of arrival. Only `fresh` clients are so: the historical ones have all they will ever have
    from the beginning, and keep it. A period lasts `seconds`."""

    section: ClassVar[str] = "stream"

    period: IntArray  # [pool]
    fresh: NDArray[np.bool_]  # [N]
    memory: Memory = field(default_factory=Latest)
    seconds: Seconds = 1.0


@dataclass(frozen=True)
class Stored:
    """What the clients of a population have of their streams, at any time."""

    stream: Stream
    train: Ragged
    seed: int

    def __post_init__(self) -> None:
        if len(self.stream.fresh) != len(self.train):
            raise UserError(f"population.stream: {len(self.stream.fresh)} clients of {len(self.train)}")
        if (np.diff(self._order) < 0).any():
            raise UserError("population.stream: a client's samples are not in the order in which they arrive")

    @cached_property
    def _periods(self) -> int:
        return int(self.stream.period.max(initial=0)) + 1

    @cached_property
    def _order(self) -> IntArray:
        """`[total]` client, then period, in one number: sorted."""
        owner = np.repeat(np.arange(len(self.train)), self.train.counts)
        return owner * self._periods + np.asarray(self.stream.period[self.train.values], np.int64)

    def _kept(self, ids: IntArray, at: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
        """`[k]` first and one past the last of the samples a client may have, and how many of these it has."""

        def arrived(period: IntArray) -> IntArray:
            last = ids * self._periods + np.clip(period, -1, self._periods - 1)
            return np.searchsorted(self._order, last, side="right") - self.train.offsets[ids]

        now = np.floor(np.minimum(np.asarray(at) / self.stream.seconds + 1e-9, self._periods)).astype(np.int64)
        begin, end = self.stream.memory.interval(arrived, now)
        fresh, every = self.stream.fresh[ids], self.train.counts[ids]
        return (
            np.where(fresh, begin, 0),
            np.where(fresh, end, every),
            np.where(fresh, self.stream.memory.counts(end - begin), every),
        )

    def counts(self, ids: IntArray, at: FloatArray) -> IntArray:
        """`[k]` samples each client has at its time."""
        return self._kept(ids, at)[2]

    def rows(self, ids: IntArray, at: FloatArray) -> Ragged:
        """Which ones, in the pool."""
        begin, end, counts = self._kept(ids, at)
        places = Ragged.ranges(self.train.offsets[ids] + begin, self.train.offsets[ids] + end)
        rows = Ragged(places.offsets, self.train.values[places.values])
        if (counts == rows.counts).all():
            return rows
        owner = np.repeat(np.arange(len(rows)), rows.counts)
        order = np.lexsort((random.key(self.seed, "tickets", rows.values), owner))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        stored = rank - rows.offsets[owner] < counts[owner]
        return Ragged(np.append(0, np.cumsum(counts)), rows.values[stored])


def in_order(rows: Ragged, targets: Tree, drift: float, seed: int) -> Ragged:
    """The rows in the order in which their samples arrive: at random for a `drift` of 0, by target for 1 (class after
    class), and ever more so between."""
    if len(np.unique(rows.values)) < len(rows.values):
        raise UserError("stream: a sample that several clients hold cannot arrive; choose another partition")
    targets = trees.one_tensor("stream.drift: it", targets) if drift else torch.zeros(trees.rows(targets))
    _, rank = np.unique(targets.reshape(len(targets), -1)[:, 0].numpy(), return_inverse=True)
    owner = np.repeat(np.arange(len(rows)), rows.counts)
    tickets = random.uniform(random.key(seed, "stream", rows.values), 1)[:, 0]
    order = np.lexsort((drift * rank[rows.values] / max(1, rank.max()) + (1 - drift) * tickets, owner))
    return Ragged(rows.offsets, rows.values[order])


def chosen(fresh: float | Sequence[int], clients: int, seed: int) -> NDArray[np.bool_]:
    """`[N]` who is fresh: a share of the clients, at random, or those ids."""
    who = np.zeros(clients, bool)
    if not isinstance(fresh, int | float):
        who[check_members("stream.fresh", fresh, clients)] = True
    elif 0 <= fresh <= 1:
        who[random.subset(random.key(seed, "fresh"), math.floor(fresh * clients + 0.5), clients)] = True
    else:
        raise UserError(f"stream.fresh: {fresh} must be from 0 to 1, or the ids of clients")
    return who
