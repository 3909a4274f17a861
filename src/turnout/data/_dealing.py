"""Parts of a partition: sizes that add up, one shuffle of all samples, ranks inside classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turnout.core import random
from turnout.core.ragged import Ragged
from turnout.core.random import IntArray


def even(samples: int, clients: int) -> IntArray:
    return np.diff(np.arange(clients + 1) * samples // clients)


def shuffle(samples: int, seed: int) -> IntArray:
    """Random keys whose order is the shuffle of the samples."""
    return random.bits(random.key(seed, "partition shuffle"), samples)


def deal(sizes: IntArray, seed: int) -> Ragged:
    """Rows of the given sizes from one shuffle of all samples."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Ragged(offsets, np.argsort(shuffle(int(offsets[-1]), seed), kind="stable"))


def apportion(weights: NDArray[np.number], total: int) -> IntArray:
    """Integers of at least 1, proportional to `weights`, summing exactly to `total` (largest remainders)."""
    above = np.maximum(weights / weights.sum() * total - 1, 0)  # what lies beyond the 1 that everybody gets
    exact = above * ((total - len(weights)) / max(above.sum(), 1e-300))
    share: IntArray = np.floor(exact).astype(np.int64)
    missing = total - len(weights) - int(share.sum())
    share[np.argsort(share - exact, kind="stable")[:missing]] += 1
    return share + 1


def by_class(labels: IntArray, classes: int, keys: IntArray) -> tuple[IntArray, IntArray]:
    """Positions ordered by class and, inside a class, by key; and the rank of each inside its class."""
    counts = np.bincount(labels, minlength=classes)
    return np.lexsort((keys, labels)), np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)


def times_before(values: IntArray, count: int) -> IntArray:
    """How often each value (below `count`) has occurred before."""
    order, rank = by_class(values, count, np.arange(len(values)))
    times = np.empty(len(values), np.int64)
    times[order] = rank
    return times


def filtered(rows: Ragged, owner: IntArray, keep: NDArray[np.bool_]) -> Ragged:
    counts = np.bincount(owner[keep], minlength=len(rows))
    return Ragged(np.concatenate([[0], np.cumsum(counts)]), rows.values[keep])
