"""Handwritten digits by writer, generated: bundled digits, each writer's in a hand of its own."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import affine_transform

from turnout.core.allowed import Count, NotNegative
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, key, normal, permutation
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, table
from turnout.data.readers import require

SIDE = 16  # pixels


@spelt
def load(
    *,
    writers: Count = 40,  # who share the 1,797 digits
    style: NotNegative = 1.0,  # how far hands differ; 0: not at all
    test_fraction: Held = 0.2,  # share of a writer's digits that is for testing
    seed: int = 0,  # of hands, and of who has which digits
) -> Dataset:
    """`[n, 1, 16, 16]` pixels from 0 to 1. A writer's digits are slanted, narrow or wide, thin or thick alike.

    The digits are those of `digits`, dealt evenly. Facts: `clients`, the writers' names.
    """
    bunch = require("handwriting", "sklearn.datasets", "scikit-learn").load_digits()
    count = len(bunch.target)
    if writers > count:
        raise UserError(f"dataset handwriting: option writers={writers} must be at most the {count} digits")
    order = permutation(key(seed, "handwriting"), count)
    writer = np.sort(np.arange(count) % writers)
    hands = style * normal(key(seed, "handwriting hands", np.arange(writers)), 3)
    pixels = np.concatenate(
        [_written(bunch.images[order[writer == number]] / 16, *hand) for number, hand in enumerate(hands)]
    )
    labels = bunch.target[order].astype(np.int64)
    facts = {"clients": [f"writer {number + 1}" for number in range(writers)]}
    return table("handwriting", pixels[:, None], labels, 10, "none", test_fraction, seed, writer, facts)


def _written(images: FloatArray, slant: float, width: float, ink: float) -> FloatArray:
    """`[n, 16, 16]` images of 8 x 8 in one hand; three standard normal numbers say which."""
    middle, step = (np.array(images.shape[1:]) - 1) / 2, images.shape[1] / SIDE
    across = step * np.clip(np.exp(0.15 * width), 0.5, 2)
    matrix = np.array([[step, 0.0], [0.25 * slant * step, across]])  # from a place written to the place read
    offset = middle - matrix @ np.full(2, (SIDE - 1) / 2)
    drawn = np.stack([affine_transform(image, matrix, offset, (SIDE, SIDE), order=1) for image in images])
    darker: FloatArray = np.clip(drawn, 0, 1) ** np.clip(np.exp(0.4 * ink), 0.2, 5)
    return darker
