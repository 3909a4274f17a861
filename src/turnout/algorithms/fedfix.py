"""FedFix: aggregate every `window` seconds whatever has arrived.

Fraboni, Vidal, Kameni, Lorenzi, "A general theory for federated optimization with asynchronous and heterogeneous
clients updates", JMLR 2023, section 4.4: between synchronous (window at least the slowest client) and asynchronous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.core.errors import check_positive, check_seconds
from turnout.core.random import FloatArray
from turnout.server.durations import Durations
from turnout.server.policy import Policy
from turnout.server.server import Server
from turnout.server.updates import Updates

LONGEST = 1e9  # seconds


@dataclass
class FedFix(AsyncFedAvg):
    """Unbiased weights are d_i = E[ceil(T_i / window)] p_i; naive ones d_i = p_i.

    `window` is half of the slowest client's mean duration unless given. With `window_growth` each window is that much
    longer than the one before (the paper suggests longer ones near convergence), up to `window_limit` seconds; the
    weights follow. A window in which nobody answers leaves the model as it is.
    """

    reads_updates: ClassVar[bool] = False
    no_use_for: ClassVar[tuple[str, ...]] = ("retry",)

    window: float | None = None
    window_growth: float = 1.0
    window_limit: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("algorithm.window_growth", self.window_growth)
        for name in ("window", "window_limit"):
            check_seconds(f"algorithm.{name}", getattr(self, name))

    def policy(self, durations: Durations, version: int = 0) -> Policy:
        first, tick = self.window or float(durations.mean.max()) / 2, 1 / durations.population.ticks_per_second
        with np.errstate(over="ignore"):
            window = float(first * np.float64(self.window_growth) ** version)
        return Policy(window=min(max(window, tick), self.window_limit or LONGEST))

    def naive(self, server: Server, updates: Updates) -> FloatArray:
        return server.importance[updates.clients]
