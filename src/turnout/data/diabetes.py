"""Diabetes progression after a year from 10 measurements of 442 patients (Efron et al. 2004, public).

Bundled with scikit-learn: nothing to download.
"""

from __future__ import annotations

import numpy as np

from turnout.data.dataset import Dataset
from turnout.data.prepare import Scaling, table
from turnout.data.readers import require


def load(
    *,
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: float = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """`[n, 10]` inputs and `[n, 1]` targets, scaled by the training rows (facts turn the targets back)."""
    bunch = require("diabetes", "sklearn.datasets", "scikit-learn").load_diabetes(scaled=False)
    return table(
        "diabetes",
        np.asarray(bunch.data, np.float64),
        np.asarray(bunch.target, np.float64)[:, None],
        num_classes=None,
        normalise=normalise,
        test_fraction=test_fraction,
        seed=seed,
    )
