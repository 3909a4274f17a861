"""Your own table: a CSV file with a header, plain or .gz."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turnout.core.spelling import spelt
from turnout.data._columns import Decimal, of_cells
from turnout.data._of_table import Aim, Asked, Dates, Ids, Missing, made
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling
from turnout.data.readers import path_of, read_table


@spelt
def load(
    *,
    path: str | Path,  # of the CSV file
    target: str,  # column that is predicted
    client: str | None = None,  # column that says whose a row is; none: nobody's
    task: Aim = "auto",  # classification, regression, or auto: what the target looks like
    drop: Sequence[str] = (),  # columns that are left out
    missing: Missing = "refuse",  # cells that say nothing: refuse drop mean median zero flag; or a way for each column
    missing_words: Sequence[str] = (),  # cells that say nothing, beside empty ones, ?, NA, null
    dates: Dates = "days",  # days: since the first one; parts: year, month, day, weekday; words: as any others
    identifiers: Ids = "drop",  # columns that number or name the rows: drop, aloud, or keep
    separator: str = ",",  # between cells
    decimal: Decimal = ".",  # sign before the decimals
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: Held = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """One column is the target, one may be the client; the others, less those in `drop`, are the features.

    Columns of numbers, and dates as days, are scaled by the training rows; columns of words follow as one indicator a
    word, and with `missing` flag an indicator `age=?` of what was missing, where the mean stands. The test set takes
    its share of every client, or else of every class. Facts: `features`, `classes` and `clients` by number, and
    `preprocess`: what was fitted, on whose rows, and what was guessed or left out.
    """
    rows = read_table("csv_table", path_of(path), separator=separator)
    read = {"separator": separator, "decimal": decimal, "missing_words": [*missing_words]}
    asked = Asked(
        [target], target, client, task, drop, missing, dates, identifiers, normalise, test_fraction, seed, read
    )
    return made("csv_table", of_cells(rows, decimal, missing_words), asked)
