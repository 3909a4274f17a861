"""FedFix: aggregate every `window` seconds whatever has arrived.

Fraboni, Vidal, Kameni, Lorenzi, "A general theory for federated optimization with asynchronous and heterogeneous
clients updates", JMLR 2023, section 4.4: between synchronous (window at least the slowest client) and asynchronous.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.core.allowed import Positive, Seconds
from turnout.server.closing import Window


@dataclass
class FedFix(AsyncFedAvg):
    """Unbiased weights are d_i = E[ceil(T_i / window)] p_i; naive ones d_i = p_i.

    `window` is half of the slowest client's mean duration unless given. With `window_growth` each window is that much
    longer than the one before (the paper suggests longer ones near convergence), up to `window_limit` seconds; the
    weights follow. A window in which nobody answers leaves the model as it is.
    """

    reads_updates = False
    of_part = AsyncFedAvg.of_part | {"wait": ("window", "window_growth", "window_limit")}
    given_as = {"wait.seconds": "algorithm.window", "wait.": "algorithm.window_"}

    window: Seconds | None = None  # seconds; none: half of the slowest client's mean duration
    window_growth: Positive = 1.0  # how many times as long each window is as the one before
    window_limit: Seconds | None = None  # seconds that a window lasts at most; none: no limit

    def own_wait(self) -> Window:
        return Window(self.window, self.window_growth, self.window_limit)
