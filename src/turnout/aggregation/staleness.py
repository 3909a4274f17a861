"""What an old update is worth: functions of its staleness s, and a limit beyond which it is not used.

Xie, Koyejo, Gupta, "Asynchronous federated optimization" (FedAsync), 2019, section 5.2.
"""

from __future__ import annotations

import numpy as np

from turnout.core.errors import UserError, unknown
from turnout.core.random import FloatArray, IntArray

DISCOUNTS = ("none", "polynomial", "hinge")


def discount(name: str, staleness: IntArray, rate: float, start: float) -> FloatArray:
    """Compute `[k]` factors in (0, 1]: polynomial (s + 1)^-rate; hinge 1 up to `start`, then 1 / (rate (s - start) +
    1)."""
    if name == "polynomial":
        return np.asarray((staleness + 1.0) ** -rate)
    if name == "hinge":
        return np.asarray(1 / (rate * np.maximum(staleness - start, 0.0) + 1))
    return np.ones(len(staleness))


def check_discount(name: str, rate: float, start: float) -> None:
    if name not in DISCOUNTS:
        raise unknown("algorithm.staleness_discount", name, DISCOUNTS)
    if not rate > 0 or not start >= 0:
        raise UserError(
            f"algorithm.discount_rate must be above 0 and algorithm.discount_from at least 0, not {rate} and {start}"
        )
