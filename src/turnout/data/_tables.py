"""Loaders of tables that differ only in names: how one is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling, table
from turnout.data.readers import Layout, locate, read_table, require

REGRESSION = "`[n, {}]` inputs and `[n, 1]` targets, scaled by the training rows (facts turn the targets back)."
CLASSES = "`[n, {}]` inputs scaled by the training rows; the test set holds the same share of every class."


def from_files(dataset: str, features: Sequence[str], target: str, csv: str, uci: str) -> Callable[..., Dataset]:
    """Make the loader of a regression table: a CSV file with a header, or UCI's without, words between spaces."""
    layouts = [Layout((file,), ("", "tabular")) for file in (csv, uci)]

    @spelt
    def load(
        *,
        folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
        normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1), none
        test_fraction: Held = 0.2,  # share of the samples that is the central test set
        seed: int = 0,  # of the choice of test samples
    ) -> Dataset:
        layout, (path,) = locate(dataset, folder, *layouts)
        spaces = layout is layouts[1]
        rows = read_table(dataset, path, (*features, target) if spaces else None, spaces)
        inputs, targets = rows.numbers(*features), rows.numbers(target)
        return table(dataset, inputs, targets, None, normalise, test_fraction, seed)

    return _of(dataset, load, REGRESSION.format(len(features)))


def bundled(dataset: str, features: int, num_classes: int | None, **options: Any) -> Callable[..., Dataset]:
    """Make the loader of a table that comes with scikit-learn, which reads it with these `options`."""

    @spelt
    def load(
        *,
        normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1), none
        test_fraction: Held = 0.2,  # share of the samples that is the central test set
        seed: int = 0,  # of the choice of test samples
    ) -> Dataset:
        read = getattr(require(dataset, "sklearn.datasets", "scikit-learn"), f"load_{dataset}")
        inputs, targets = (np.asarray(part, np.float64) for part in read(return_X_y=True, **options))
        targets = targets[:, None] if num_classes is None else targets.astype(np.int64)
        return table(dataset, inputs, targets, num_classes, normalise, test_fraction, seed)

    return _of(dataset, load, (REGRESSION if num_classes is None else CLASSES).format(features))


def _of(dataset: str, load: Callable[..., Dataset], doc: str) -> Callable[..., Dataset]:
    """The loader as the one that stands in the dataset's file."""
    load.__doc__, load.__module__ = doc, f"turnout.data.{dataset}"
    return load
