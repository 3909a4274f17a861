"""Handwritten digits, 1,797 images of 8 x 8 (UCI Optical Recognition of Handwritten Digits, CC BY 4.0).

Bundled with scikit-learn: nothing to download.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, table
from turnout.data.readers import require


@spelt
def load(
    *,
    shape: Literal["flat", "image"] = "flat",  # of a sample: 64 numbers, or an image of 1 x 8 x 8
    test_fraction: Held = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """Pixels from 0 to 1, `[n, 64]` or `[n, 1, 8, 8]`; the test set holds the same share of every digit."""
    bunch = require("digits", "sklearn.datasets", "scikit-learn").load_digits()
    pixels = (bunch.data if shape == "flat" else bunch.data.reshape(-1, 1, 8, 8)) / 16
    labels = bunch.target.astype(np.int64)
    return table("digits", pixels, labels, 10, "none", test_fraction, seed)
