"""Rows of unequal length as two arrays, so that a million clients cost columns and not objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Ragged:
    """Row `i` is `values[offsets[i]:offsets[i + 1]]`."""

    offsets: NDArray[np.int64]  # [N + 1]
    values: NDArray[np.integer]  # [total]

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | NDArray[np.integer]]) -> Ragged:
        parts = [np.asarray(row, np.int64) for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return cls(offsets, np.concatenate(parts) if parts else np.zeros(0, np.int64))

    @classmethod
    def from_owner(cls, owner: ArrayLike, rows: int) -> Ragged:
        """`owner[j]` is the row of item `j` (negative: nobody's); items keep their order inside a row."""
        owner = np.asarray(owner, np.int64)
        order = np.argsort(owner, kind="stable")
        order = order[np.searchsorted(owner[order], 0) :]
        counts = np.bincount(owner[order], minlength=rows)
        return cls(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), order)

    @classmethod
    def ranges(cls, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Ragged:
        """Row `i` is range(begin[i], end[i])."""
        counts = end - begin
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(offsets, np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], counts))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def row(self, i: int) -> NDArray[np.integer]:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    @cached_property
    def begin(self) -> NDArray[np.int64]:
        """Where each row begins in `pool`."""
        return self.offsets[:-1]

    @property
    def pool(self) -> NDArray[np.integer]:
        """What the rows are cut out of."""
        return self.values

    def pick(self, ids: NDArray[np.integer]) -> Ragged:
        """`rows`, brought together only where somebody looks at them."""
        return Picked(self, ids)

    def rows(self, ids: NDArray[np.integer]) -> Ragged:
        """The given rows, in the given order; all of them are not copied."""
        if len(ids) == len(self) and np.array_equal(ids, np.arange(len(self))):
            return self
        begin = self.offsets[ids]
        counts = self.offsets[ids + 1] - begin
        if len(ids) and counts.min() == counts.max():  # of one length: a matrix
            width = int(counts[0])
            values = self.values[(begin[:, None] + np.arange(width)).ravel()]
            return Ragged(np.arange(len(ids) + 1) * width, values)
        places = Ragged.ranges(begin, begin + counts)
        return Ragged(places.offsets, self.values[places.values])

    def padded(self, width: int) -> NDArray[np.integer]:
        """`[len(self), width]` values; what lies beyond a row's length repeats its first value (or 0)."""
        counts = self.counts
        if len(self.values) == len(self) * width and counts.min(initial=width) == width:
            return self.values.reshape(len(self), width)
        column = np.minimum(np.arange(width), np.maximum(counts, 1)[:, None] - 1)
        column = np.where(np.arange(width) < counts[:, None], column, 0)
        position = np.minimum(self.offsets[:-1, None] + column, max(len(self.values) - 1, 0))
        if not len(self.values):
            return np.zeros((len(self), width), np.int64)
        return np.where(counts[:, None] > 0, self.values[position], 0)


class Picked(Ragged):
    """Some rows of another, which stay where they are until they are looked at."""

    def __init__(self, source: Ragged, ids: NDArray[np.integer]) -> None:
        begin = source.offsets[ids]
        vars(self).update(source=source, ids=ids, begin=begin, counts=source.offsets[ids + 1] - begin)

    source: Ragged
    ids: NDArray[np.integer]
    begin: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __reduce__(self) -> Any:
        return Ragged, (self.offsets, self.values)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _rows(self) -> Ragged:
        return self.source.rows(self.ids)

    @property
    def offsets(self) -> NDArray[np.int64]:
        return self._rows.offsets

    @property
    def values(self) -> NDArray[np.integer]:
        return self._rows.values

    @property
    def pool(self) -> NDArray[np.integer]:
        return self.source.values

    def rows(self, ids: NDArray[np.integer]) -> Ragged:
        return Picked(self.source, self.ids[ids])
