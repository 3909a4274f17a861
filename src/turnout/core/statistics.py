"""What several runs say together, and several clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from turnout.core.random import FloatArray

CONFIDENCE = 0.95
EXACT_DECIMALS = 12  # of numbers about as large as 1; what is beyond comes from rounding

WORST_PERCENTILE = "worst 10th percentile"
# How a measure is spread over clients: how the names of columns end, and what people read.
OVER_CLIENTS = {"": "weighted", "_mean": "mean", "_std": "std", "_worst_decile": WORST_PERCENTILE}


def lower_is_better(measure: str) -> bool:
    """Say by its name whether less of a measure is better: a loss, an error; of anything else more is."""
    return "loss" in measure


def without_round_off(value: float) -> float:
    """A number about as large as 1, for people: what rounding has left of a 0 is 0."""
    return round(value, EXACT_DECIMALS) + 0.0


def interval(values: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Mean over seeds and the half width of its Student interval; infinite where the values cannot tell."""
    numbers = np.asarray(values, np.float64)
    if len(numbers) < 2 or not np.isfinite(numbers).all():
        return float(numbers.mean()) if len(numbers) else math.nan, math.inf
    quantile = float(stdtrit(len(numbers) - 1, (1 + CONFIDENCE) / 2))
    return float(numbers.mean()), quantile * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
