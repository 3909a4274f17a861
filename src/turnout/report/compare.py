"""Recorded runs beside each other: where each ended, what it cost, and when it reached a target.

Runs that differ in nothing but their seed are one row: mean and half width of its 95 % Student interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.core.errors import UserError, unknown
from turnout.core.statistics import OVER_CLIENTS, interval, lower_is_better
from turnout.record.views import Columns
from turnout.report.read import Recorded, labels, settings

_SPLITS = ("train_", "validation_", "test_", "central_", "unseen_")  # how the name of a measure begins


@dataclass(frozen=True)
class Target:
    """A loss or an error is to be at most this, anything else at least this."""

    measure: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        measure, _, value = (part.strip() for part in text.partition("="))
        try:
            return cls(measure, float(value))
        except ValueError as error:
            raise UserError(f"--target: {text!r} is not MEASURE=VALUE; write test_accuracy=0.9") from error

    def __str__(self) -> str:
        return f"{self.measure.replace('_', ' ')} {self.value:g}"

    def check(self, measured: Iterable[str]) -> None:
        """Raise unless a task that measures these can measure it."""
        allowed = [f"{split}{name}{part}" for split in _SPLITS for name in measured for part in OVER_CLIENTS]
        if self.measure.removeprefix("unseen_") not in allowed:
            raise unknown("--target", self.measure, allowed)

    def first_round(self, rounds: Columns) -> int | None:
        """The row in which it is reached."""
        values = rounds.get(self.measure)
        if values is None:
            return None
        reached = np.flatnonzero(values <= self.value if lower_is_better(self.measure) else values >= self.value)
        return int(reached[0]) if len(reached) else None


@dataclass(frozen=True)
class Quantity:
    """A number of every run of a setting; None for one that has none."""

    values: list[float | None]

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float:
        """Over all runs: of those who have reached a target alone it would say too little."""
        return interval(self.known)[0] if len(self.known) == len(self.values) else math.nan

    @property
    def half_width(self) -> float:
        return interval(self.known)[1]

    def as_dict(self) -> dict[str, Any]:
        return {"values": self.values, "mean": self.mean, "half_width": self.half_width}


@dataclass(frozen=True)
class Row:
    """One setting."""

    label: str
    runs: list[Recorded]
    quantities: dict[str, Quantity]

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def sound(self) -> bool:
        """Whether no run of it diverged."""
        return not any(str(run.summary.get("stopped", "")).startswith("diverged") for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "algorithm": self.runs[0].algorithm,
            "runs": [str(run.folder) for run in self.runs],
            "seeds": [run.seed for run in self.runs],
            "finished": self.finished,
            "quantities": {name: quantity.as_dict() for name, quantity in self.quantities.items()},
        }


def best(rows: Sequence[Row], column: str) -> set[int]:
    """The rows of the best mean; none where there is nothing to compare."""
    means = [row.quantities[column].mean if column in row.quantities and row.sound else math.nan for row in rows]
    known = [mean for mean in means if not math.isnan(mean)]
    if len(known) < 2:
        return set()
    top = min(known) if lower_is_better(column) else max(known)
    return {place for place, mean in enumerate(means) if mean == top}


def compare(runs: Sequence[Recorded], target: Target | None = None) -> list[Row]:
    """A row a setting, in the order given."""
    measured = dict.fromkeys(name for run in runs for name in _measures(run))
    if target is not None and runs and target.measure not in measured:
        raise unknown("--target", target.measure, measured)
    groups = settings(runs)
    found = []
    for label, group in zip(labels(groups), groups, strict=True):
        each = [_quantities(run, target) for run in group]
        names = dict.fromkeys(name for one in each for name in one)
        found.append(Row(label, group, {name: Quantity([one.get(name) for one in each]) for name in names}))
    return found


def _quantities(run: Recorded, target: Target | None) -> dict[str, float | None]:
    """What is known of one run, finished or not; without rounds there is nothing."""
    rounds = run.rounds()
    if not rounds:
        return {}
    found: dict[str, float | None] = {
        "rounds": float(rounds["round"][-1]),
        "virtual_seconds": float(rounds["time"][-1]),
    }
    found |= _measures(run)
    if target is not None:
        row = target.first_round(rounds)
        found["rounds_to_target"] = None if row is None else float(rounds["round"][row])
        found["seconds_to_target"] = None if row is None else float(rounds["time"][row])
    found["bytes"] = run.total("bytes_down", "bytes_up")
    found |= {name: run.total(name) for name in ("energy_wh", "wasted_wh") if name in rounds}
    if run.finished:
        found["never_heard"] = float(run.summary["audit"]["never_heard"])
    return found


def _measures(run: Recorded) -> dict[str, float]:
    """The last evaluation."""
    if run.finished:
        return {name: math.nan if value is None else value for name, value in run.summary["measures"].items()}
    values = {name: run.last(name) for name in run.rounds() if name.startswith(_SPLITS)}
    return {name: value for name, value in values.items() if value is not None}
