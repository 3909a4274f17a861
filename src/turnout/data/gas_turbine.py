"""Gas turbine emissions: 36,733 hours of one power plant, 2011 to 2015 (Kaya et al. 2019, UCI 551, CC BY 4.0).

Files: `gas_turbine.csv` with a column `year`, plain or .gz, here or in tabular/, or UCI's gt_2011.csv to gt_2015.csv.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from turnout.core.errors import UserError, unknown
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling, numbered, table
from turnout.data.readers import Layout, locate, read_table

FEATURES = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP")
YEARS = range(2011, 2016)
CSV = Layout(("gas_turbine.csv",), ("", "tabular"))
UCI = Layout(tuple(f"gt_{year}.csv" for year in YEARS), ("", "tabular"))


@spelt
def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    targets: Sequence[str] = ("CO", "NOX"),  # columns that are predicted
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: Held = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """`[n, 9]` inputs (less those taken as targets) and `[n, targets]`, scaled by the training rows (facts turn the
    targets back); a year is a group."""
    for target in set(targets).difference(FEATURES, ("CO", "NOX")):
        raise unknown("dataset gas_turbine: option targets", target, (*FEATURES, "CO", "NOX"))
    if not targets:
        raise UserError("dataset gas_turbine: option targets names no column, for instance CO")
    layout, paths = locate("gas_turbine", folder, CSV, UCI)
    tables = [read_table("gas_turbine", path) for path in paths]
    counts = [len(part.rows) for part in tables]
    years = tables[0].numbers("year")[:, 0] if layout is CSV else np.repeat(YEARS, counts)
    groups, clients = numbered(years.astype(np.int64))
    features = [feature for feature in FEATURES if feature not in targets]
    x, y = (np.concatenate([part.numbers(*columns) for part in tables]) for columns in (features, targets))
    return table("gas_turbine", x, y, None, normalise, test_fraction, seed, groups, {"clients": clients})
