"""Boston Housing: the median value of homes in 506 districts from 13 features (Harrison and Rubinfeld 1978, public).

Files: `boston_housing.csv` with a header, here or in tabular/, or UCI's `housing.data`. The feature B encodes race:
fit to reproduce a paper, not to teach with.
"""

from __future__ import annotations

from pathlib import Path

from turnout.data.dataset import Dataset
from turnout.data.prepare import Scaling, table
from turnout.data.readers import Layout, locate, read_table

FEATURES = ("CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT")
CSV = Layout(("boston_housing.csv",), ("", "tabular"))
UCI = Layout(("housing.data",), ("", "tabular"))


def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: float = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """`[n, 13]` inputs and `[n, 1]` targets, scaled by the training rows (facts turn the targets back)."""
    layout, (path,) = locate("boston", folder, CSV, UCI)
    rows = read_table("boston", path, (*FEATURES, "MEDV") if layout is UCI else None, spaces=layout is UCI)
    return table(
        "boston",
        rows.numbers(*FEATURES),
        rows.numbers("MEDV"),
        num_classes=None,
        normalise=normalise,
        test_fraction=test_fraction,
        seed=seed,
    )
