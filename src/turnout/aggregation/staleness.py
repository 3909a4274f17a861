"""What an old update is worth: functions of its staleness s, and a limit beyond which it is not used.

Xie, Koyejo, Gupta, "Asynchronous federated optimization" (FedAsync), 2019, section 5.2.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnout.core.allowed import OneOf, Range
from turnout.core.random import FloatArray, IntArray

DISCOUNTS = ("none", "polynomial", "hinge")
Discount = Annotated[str, OneOf(DISCOUNTS)]
Rate = Annotated[float, Range(above=0)]


def discount(name: str, staleness: IntArray, rate: float, start: float) -> FloatArray:
    """Compute `[k]` factors in (0, 1]: polynomial (s + 1)^-rate; hinge 1 up to `start`, then 1 / (rate (s - start) +
    1)."""
    if name == "polynomial":
        return np.asarray((staleness + 1.0) ** -rate)
    if name == "hinge":
        return np.asarray(1 / (rate * np.maximum(staleness - start, 0.0) + 1))
    return np.ones(len(staleness))
