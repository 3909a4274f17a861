"""FedBuff: aggregate when `buffer_size` updates are in.

Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022; waiting mode and unbiased
weights: Fraboni et al., JMLR 2023, and Fraboni's thesis, section 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.core.allowed import Count, Positive
from turnout.server.closing import Buffer, Mode


@dataclass
class FedBuff(AsyncFedAvg):
    """`mode`: a client whose update is buffered waits for the flush and gets the new model (`wait`), or restarts at
    once on the current one (`restart`, as first published; it can then be twice in one buffer).

    `buffer_size` is ten unless given, or as many as can wait where that is fewer. Naive weights are 1 / `divisor`,
    which is the buffer size unless given. Unbiased ones are p_i / f_i; in waiting mode
    f_i has no closed form and is counted in the policy's own schedule.
    """

    reads_updates = False
    of_part = AsyncFedAvg.of_part | {"wait": ("buffer_size", "mode", "divisor")}
    given_as = {"wait.size": "algorithm.buffer_size", "wait.": "algorithm."}

    buffer_size: Count | None = None  # updates of a flush; none: ten, or as many as can wait
    mode: Mode = "wait"  # wait: clients wait for the flush; restart: they begin again at once
    divisor: Positive | None = None  # of naive weights; none: the buffer size

    def own_wait(self) -> Buffer:
        return Buffer(self.buffer_size, self.mode, self.divisor)
