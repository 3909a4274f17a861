"""What partitions share: labels, shuffles, sizes that sum up, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.core.random import IntArray
from turnout.data.dataset import Dataset

Data = Dataset | Sequence[int] | NDArray[np.integer]
Part = Literal["train", "test"]


def labels_of(data: Data, partition: str, part: Part = "train") -> tuple[IntArray, int]:
    """Labels of the part as integers, and the number of classes."""
    if not isinstance(data, Dataset):
        if part == "test":
            raise UserError(f"partition {partition}: the test part needs a Dataset, not bare labels")
        labels = np.asarray(data, np.int64)
        classes = int(labels.max(initial=-1)) + 1
    elif data.num_classes is None:
        raise UserError(f"partition {partition}: dataset {data.name} has no class labels; use iid or gaussian_sizes")
    elif part == "test" and data.test_targets is None:
        raise UserError(f"partition {partition}: dataset {data.name} has no central test set; use split instead")
    else:
        labels = np.asarray(data.targets if part == "train" else data.test_targets, np.int64)
        classes = data.num_classes
    if labels.ndim != 1 or labels.min(initial=0) < 0 or labels.max(initial=-1) >= classes:
        raise UserError(f"partition {partition}: labels must be one integer of 0 to {classes - 1} a sample")
    return labels, classes


def superclasses_of(data: Data, classes: int, given: ArrayLike | None) -> IntArray:
    """`[C]` the superclass of every class."""
    known = data.facts.get("coarse_of_fine") if isinstance(data, Dataset) else None
    if given is None and known is None:
        raise UserError("partition pachinko: superclasses are not known; give that of every class, or use dirichlet")
    parent = np.asarray(known if given is None else given, np.float64)
    most = max(classes, 1000)
    if parent.shape != (classes,) or not ((parent >= 0) & (parent < most)).all():
        raise UserError(f"partition pachinko: superclasses must be {classes} numbers from 0 to {most - 1}, one a class")
    return parent.astype(np.int64)


def times_before(values: IntArray, count: int) -> IntArray:
    """How often each value (below `count`) has occurred before."""
    order, rank = by_class(values, count, np.arange(len(values)))
    times = np.empty(len(values), np.int64)
    times[order] = rank
    return times


def check_enough(samples: int, clients: int) -> None:
    if not 1 <= clients <= samples:
        raise UserError(f"partition: {clients} clients for {samples} samples; allowed: 1 to {samples}")


def check_alpha(partition: str, alpha: float, name: str = "alpha") -> None:
    if not 0 < alpha < np.inf:
        raise UserError(f"partition {partition}: {name} is {alpha}; it must be positive and finite")


def refuse(bad: NDArray[np.bool_], partition: str, complaint: str) -> None:
    """Name the first offending clients."""
    if bad.any():
        names = ", ".join(map(str, np.flatnonzero(bad)[:5]))
        more = f" and {bad.sum() - 5} more" if bad.sum() > 5 else ""
        raise UserError(f"partition {partition}: clients {names}{more} {complaint}")


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


def filtered(rows: Ragged, owner: IntArray, keep: NDArray[np.bool_]) -> Ragged:
    counts = np.bincount(owner[keep], minlength=len(rows))
    return Ragged(np.concatenate([[0], np.cumsum(counts)]), rows.values[keep])
