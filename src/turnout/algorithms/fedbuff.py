"""FedBuff: aggregate when `buffer_size` updates are in.

Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022; waiting mode and unbiased
weights: Fraboni et al., JMLR 2023, and Fraboni's thesis, section 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.core.errors import UserError, check_positive, unknown
from turnout.core.random import FloatArray
from turnout.server.durations import Durations
from turnout.server.policy import Policy
from turnout.server.server import Server
from turnout.server.updates import Updates

MODES = ("wait", "restart")
DEFAULT_SIZE = 10


@dataclass
class FedBuff(AsyncFedAvg):
    """`mode`: a client whose update is buffered waits for the flush and gets the new model (`wait`), or restarts at
    once on the current one (`restart`, as first published; it can then be twice in one buffer).

    `buffer_size` is ten unless given, or as many as can wait where that is fewer. Naive weights are 1 / `divisor`,
    which is the buffer size unless given. Unbiased ones are p_i / f_i; in waiting mode
    f_i has no closed form and is counted in the policy's own schedule.
    """

    reads_updates: ClassVar[bool] = False

    buffer_size: int | None = None
    mode: str = "wait"
    divisor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise unknown("algorithm.mode", self.mode, MODES)
        for name in ("buffer_size", "divisor"):
            check_positive(f"algorithm.{name}", getattr(self, name))
        if self.concurrency is not None and self.mode == "restart":
            raise UserError("algorithm.concurrency: clients that restart by themselves leave no place; use mode wait")
        if self.concurrency is not None and (self.buffer_size or 0) > self.concurrency:
            raise UserError(
                f"algorithm.buffer_size: {self.buffer_size} waiting clients, but only {self.concurrency} work at once"
            )

    def size(self, clients: int) -> int:
        """The updates of a flush, with so many clients."""
        if self.buffer_size is None:
            return DEFAULT_SIZE if self.mode == "restart" else min(DEFAULT_SIZE, clients, self.concurrency or clients)
        if self.mode == "wait" and self.buffer_size > clients:
            raise UserError(f"algorithm.buffer_size: {self.buffer_size} waiting clients, but there are only {clients}")
        return self.buffer_size

    def policy(self, durations: Durations, version: int = 0) -> Policy:
        return Policy(count=self.size(durations.population.size), restart=self.mode == "restart")

    def naive(self, server: Server, updates: Updates) -> FloatArray:
        return np.full(len(updates), 1 / (self.divisor or self.size(server.population.size)))
