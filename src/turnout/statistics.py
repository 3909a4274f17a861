"""What several runs say together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from turnout.random import FloatArray

CONFIDENCE = 0.95


def interval(values: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Mean over seeds and the half width of its Student interval; infinite where the values cannot tell."""
    numbers = np.asarray(values, np.float64)
    if len(numbers) < 2 or not np.isfinite(numbers).all():
        return float(numbers.mean()) if len(numbers) else math.nan, math.inf
    quantile = float(stdtrit(len(numbers) - 1, (1 + CONFIDENCE) / 2))
    return float(numbers.mean()), quantile * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
