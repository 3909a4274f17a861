"""Breast cancer Wisconsin (diagnostic): 569 tumours, 30 features, malignant 0 or benign 1 (UCI, CC BY 4.0).

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
    """`[n, 30]` inputs scaled by the training rows; the test set holds the same share of both classes."""
    bunch = require("breast_cancer", "sklearn.datasets", "scikit-learn").load_breast_cancer()
    return table(
        "breast_cancer",
        np.asarray(bunch.data, np.float64),
        bunch.target.astype(np.int64),
        num_classes=2,
        normalise=normalise,
        test_fraction=test_fraction,
        seed=seed,
    )
