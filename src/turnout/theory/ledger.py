"""What the edges write down of rounds that late survivors may still answer: counts by region, and no names."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from turnout.core.random import FloatArray, IntArray
from turnout.theory.slack import Counts

_ROWS = [part.name for part in fields(Counts) if part.name != "closed_by_quota"]


@dataclass
class Ledger:
    """R rounds whose windows are open."""

    versions: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [R]
    until: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [R] seconds
    counts: IntArray = field(default_factory=lambda: np.zeros((0, 0, 0), np.int64), init=False)  # [R, 4, M]
    closed_by_quota: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), init=False)  # [R]

    def open(self, version: int, until: float, counts: Counts) -> None:
        """A round has closed; its late survivors are counted until then."""
        rows = np.stack([getattr(counts, name) for name in _ROWS])[None]
        self.versions, self.until = np.append(self.versions, version), np.append(self.until, until)
        self.counts = np.concatenate([self.counts, rows]) if self.counts.size else rows
        self.closed_by_quota = np.append(self.closed_by_quota, counts.closed_by_quota)

    def ping(self, versions: IntArray, regions: IntArray, at: FloatArray) -> None:
        """Survivors of those rounds are done, too late to count for anything else."""
        self._add("survivors", 1, versions, regions, at)

    def withdraw(self, versions: IntArray, regions: IntArray) -> None:
        """Clients dropped the work of those rounds, for newer work: they are neither lost nor survivors."""
        self._add("selected", -1, versions, regions, np.full(len(versions), -np.inf))

    def _add(self, row: str, number: int, versions: IntArray, regions: IntArray, at: FloatArray) -> None:
        place = np.searchsorted(self.versions, versions)
        known = np.isin(versions, self.versions)
        known[known] = np.round(at[known] - self.until[place[known]], 6) <= 0
        if not known.any():
            return
        of_row = self.counts[:, _ROWS.index(row)]
        where = np.ravel_multi_index((place[known], regions[known]), of_row.shape)
        of_row += number * np.bincount(where, minlength=of_row.size).reshape(of_row.shape)

    def close(self, now: float) -> list[Counts]:
        """The rounds whose windows have passed, which are final and leave the ledger."""
        over = self.until <= now
        final = zip(self.counts[over], self.closed_by_quota[over].tolist(), strict=True)
        done = [Counts(**dict(zip(_ROWS, rows, strict=True)), closed_by_quota=full) for rows, full in final]
        self.versions, self.until = self.versions[~over], self.until[~over]
        self.counts, self.closed_by_quota = self.counts[~over], self.closed_by_quota[~over]
        return done
