"""Your own table: a CSV file with a header, plain or .gz."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling, numbered, table
from turnout.data.readers import Table, is_number, path_of, read_table

MOST_WORDS = 1000


@spelt
def load(
    *,
    path: str | Path,  # of the CSV file
    target: str,  # column that is predicted
    client: str | None = None,  # column that says whose a row is; none: nobody's
    task: Literal["classification", "regression"] = "classification",  # whether the target is a class or a number
    drop: Sequence[str] = (),  # columns that are left out
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: Held = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """One column is the target, one may be the client; the others, less those in `drop`, are the features.

    Columns of numbers are scaled by the training rows; columns of words follow as one indicator a word. The test
    set takes its share of every client, or else of every class. Facts: `features`, and `classes` and `clients` by
    number.
    """
    rows = read_table("csv_table", path_of(path))
    return made("csv_table", rows, target, client, task, drop, normalise, test_fraction, seed)


def made(
    dataset: str,
    rows: Table,
    target: str,
    client: str | None,
    task: Literal["classification", "regression"],
    drop: Sequence[str],
    normalise: Scaling,
    test_fraction: float,
    seed: int,
) -> Dataset:
    """Make a dataset of the rows of a table; the options are those of `load`."""
    for column in drop:
        rows.cells(column)
    features, inputs, indicators = _features(rows, {target, *([client] if client else []), *drop})
    facts: dict[str, object] = {"features": features}
    targets: NDArray[Any]
    if task == "classification":
        targets, facts["classes"] = _numbered(rows, target)
    else:
        targets = rows.numbers(target)
    groups = None
    if client is not None:
        groups, facts["clients"] = _numbered(rows, client)
    classes = int(targets.max()) + 1 if task == "classification" else None
    return table(
        dataset, inputs, targets, classes, normalise, test_fraction, seed, groups, facts, indicators=indicators
    )


def _numbered(rows: Table, column: str) -> tuple[NDArray[np.int64], list[Any]]:
    """A column's distinct values by number, in numeric order if they are numbers."""
    words = rows.words(column)
    if not all(map(is_number, words)):
        return numbered(words)
    ranks, values = numbered(rows.numbers(column)[:, 0])
    return ranks, [int(value) if value.is_integer() else value for value in values]


def _features(rows: Table, others: set[str]) -> tuple[list[str], NDArray[np.float64], int]:
    columns = [column for column in rows.header if column not in others]
    wordy = [column for column in columns if not all(map(is_number, rows.words(column)))]
    numeric = [column for column in columns if column not in wordy]
    names, parts = list(numeric), [rows.numbers(*numeric)] if numeric else []
    for column in wordy:
        ranks, words = numbered(rows.words(column))
        if len(words) > MOST_WORDS:
            advice = "make it numeric, or leave it out with drop"
            raise UserError(f"dataset {rows.dataset}: column {column} has {len(words)} different words; {advice}")
        names += [f"{column}={word}" for word in words]
        parts.append(np.eye(len(words))[ranks])
    if not names:
        raise UserError(f"dataset {rows.dataset}: {rows.path} has no column left to be a feature")
    return names, np.concatenate(parts, axis=1), len(names) - len(numeric)
