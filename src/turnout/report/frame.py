"""Runs as one tidy table: a row a run (or a round, a job, a client), a column for every option in which they differ."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from turnout.core.errors import UserError, unknown
from turnout.core.imports import optional
from turnout.core.spelling import spelt
from turnout.record.views import Columns
from turnout.report import read
from turnout.report.compare import Target, compare
from turnout.report.read import Recorded

Kind = Literal["runs", "rounds", "jobs", "clients"]


@spelt
def frame(folders: Path | str | Sequence[Path | str], table: Kind = "runs") -> Any:
    """A tidy pandas data frame of several runs, or of all runs in a folder.

    >>> turnout.frame("runs/digits-sweep").groupby("algorithm.name").test_accuracy.mean()
    """
    given = [folders] if isinstance(folders, Path | str) else folders
    runs = [read.recorded(folder, "frame") for folder in read.below(given)]
    return optional("frame", "pandas", "pandas").DataFrame(tidy(runs, table))


def tidy(runs: Sequence[Recorded], table: Kind = "runs", aim: Target | None = None) -> Columns:
    """The columns of that table; a number that a run does not have is NaN."""
    if table not in get_args(Kind):
        raise unknown("frame", table, get_args(Kind))
    if not runs:
        raise UserError("frame: no runs; name their folders")
    whose = _whose(runs)
    if table == "runs":
        rows = {id(run): one for row in compare(runs, aim) for run, one in _by_run(row)}
        names = list(dict.fromkeys(name for one in rows.values() for name in one))
        found = {name: np.array([_number(rows[id(run)].get(name)) for run in runs]) for name in names}
        stopped = np.array([run.summary.get("stopped", "unfinished") for run in runs], object)
        return {**whose, "stopped": stopped, **found}
    parts = [getattr(run, table)() for run in runs]
    lengths = [len(next(iter(part.values()), ())) for part in parts]
    columns = {name: np.repeat(values, lengths) for name, values in whose.items()}
    for name in dict.fromkeys(name for part in parts for name in part):
        missing = (np.full(length, np.nan) for length in lengths)
        columns[name] = np.concatenate([part.get(name, none) for part, none in zip(parts, missing, strict=True)])
    return columns


def _whose(runs: Sequence[Recorded]) -> Columns:
    """What tells one run from another: folder, setting, seed, and the options in which settings differ."""
    groups = read.settings(runs)
    labels = {id(run): label for label, group in zip(read.labels(groups), groups, strict=True) for run in group}
    number = {id(run): place for place, group in enumerate(groups) for run in group}
    found: Columns = {
        "run": np.array([str(run.folder) for run in runs], object),
        "setting": np.array([labels[id(run)] for run in runs], object),
    }
    for option, values in read.differences(groups).items():
        plain = [json.dumps(value) if isinstance(value, list | dict) else value for value in values]
        found[option] = np.array([plain[number[id(run)]] for run in runs], object)
    return {**found, "seed": np.array([run.seed for run in runs], object)}


def _by_run(row: Any) -> list[tuple[Recorded, dict[str, float | None]]]:
    return [
        (run, {name: quantity.values[place] for name, quantity in row.quantities.items()})
        for place, run in enumerate(row.runs)
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def as_csv(columns: Columns) -> str:
    """The table as text; what is not known is empty."""
    text = io.StringIO()
    file = csv.writer(text, lineterminator="\n")
    file.writerow(columns)
    for row in zip(*(values.tolist() for values in columns.values()), strict=True):
        file.writerow("" if value is None or value != value else value for value in row)
    return text.getvalue()
