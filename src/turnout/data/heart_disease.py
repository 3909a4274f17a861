"""Heart disease at four hospitals, as FLamby's Fed-Heart-Disease (Detrano et al. 1989, UCI 45, CC BY 4.0).

Files: `heart_disease.csv` with a header and a column `centre`, here or in tabular/, or UCI's four
`processed.*.data`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from turnout.core.errors import unknown
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling, table
from turnout.data.readers import MISSING, Layout, Table, locate, read_table

CENTRES = ("cleveland", "hungarian", "switzerland", "va")
MEASURED = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
KEPT = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
HEADER = (*KEPT, "slope", "ca", "thal", "num")
CSV = Layout(("heart_disease.csv",), ("", "tabular"))
UCI = Layout(tuple(f"processed.{centre}.data" for centre in CENTRES), ("", "heart_disease_dataset"))


@spelt
def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: Held = 0.34,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """`[n, 13]` inputs, class 1 for any disease; a centre is a group: cleveland, hungarian, switzerland, va.

    FLamby's convention: `slope`, `ca` and `thal` are dropped, then every patient with a missing value, which leaves
    303, 261, 46 and 130; chest pain `cp` 2 to 4 and `restecg` 1 to 2 become indicators, after the eight measured
    columns, which are scaled by the training rows. A third of every centre is for testing, classes in proportion.
    """
    layout, paths = locate("heart_disease", folder, CSV, UCI)
    tables = [_complete(read_table("heart_disease", path, HEADER if layout is UCI else None)) for path in paths]
    if layout is CSV:
        names = tables[0].words("centre")
        for name in set(names).difference(CENTRES):
            raise unknown("dataset heart_disease: centre", name, CENTRES)
    else:
        names = [name for name, part in zip(CENTRES, tables, strict=True) for _ in part.rows]
    groups = np.array([CENTRES.index(name) for name in names])
    columns = np.concatenate([part.numbers(*MEASURED, "cp", "restecg", "num") for part in tables])
    cp, restecg, disease = columns[:, -3], columns[:, -2], (columns[:, -1] > 0).astype(np.int64)
    inputs = np.column_stack([columns[:, :-3], cp == 2, cp == 3, cp == 4, restecg == 1, restecg == 2])
    facts, strata = {"clients": list(CENTRES)}, 2 * groups + disease
    return table(
        "heart_disease", inputs, disease, 2, normalise, test_fraction, seed, groups, facts, strata=strata, indicators=5
    )


def _complete(rows: Table) -> Table:
    """The rows where no column that is kept is missing."""
    missing = np.array([[cell.lower() in MISSING for cell in rows.cells(column)] for column in KEPT]).any(axis=0)
    keep = np.flatnonzero(~missing)
    return Table(rows.dataset, rows.path, rows.header, [rows.rows[i] for i in keep], [rows.lines[i] for i in keep])
