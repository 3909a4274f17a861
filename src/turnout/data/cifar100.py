"""CIFAR-100: colour pictures of 32 x 32 in 100 classes and 20 superclasses (Krizhevsky 2009, as CIFAR-10).

Files: the official binary train.bin and test.bin (cifar-100-binary, 50,000 + 10,000), or two lossless WebP sheets
of tiles with `labels.npz` (cifar100_subset, 10,000 + 2,500). The official Python version is pickled and refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Pixels, images
from turnout.data.readers import Layout, locate, read_cifar, read_numpy, read_sheet

SHEETS = Layout(("train.webp", "test.webp", "labels.npz"), ("cifar100_subset", "cifar100", ""))
BATCHES = Layout(("train.bin", "test.bin"), ("cifar-100-binary", "cifar100", ""))
PICKLES = Layout(("train",), ("cifar-100-python", "cifar100", ""))


@spelt
def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    labels: Literal["fine", "coarse"] = "fine",  # 100 fine classes, or 20 coarse ones
    normalise: Pixels = "standard",  # standard (mean 0, sd 1), unit (0 to 1), symmetric (-1 to 1) or raw (0 to 255)
) -> Dataset:
    """`[n, 3, 32, 32]` with 100 fine or 20 coarse classes; the fact `coarse_of_fine` [100] is the superclass."""
    layout, paths = locate("cifar100", folder, SHEETS, BATCHES, pickled=PICKLES)
    if layout is SHEETS:
        arrays = read_numpy("cifar100", paths[-1], "y_train", "y_test", "coarse_of_fine")
        coarse_of_fine, fine = arrays["coarse_of_fine"], [arrays["y_train"], arrays["y_test"]]
        if coarse_of_fine.shape != (100,) or not all(map(_below_100, (coarse_of_fine, *fine))):
            raise UserError(f"dataset cifar100: {paths[-1]} should give 100 classes and the superclass of each")
        x = [read_sheet("cifar100", path) for path in paths[:-1]]
        coarse = [coarse_of_fine[part] for part in fine]
    else:
        batches = [read_cifar("cifar100", path, labels=2) for path in paths]
        x = [pixels for pixels, _ in batches]
        coarse, fine = ([part[:, column] for _, part in batches] for column in (0, 1))
        coarse_of_fine = np.full(256, -1)  # a byte may be damaged
        coarse_of_fine[np.concatenate(fine)] = np.concatenate(coarse)
    y, classes = (fine, 100) if labels == "fine" else (coarse, 20)
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    facts: dict[str, object] = {"coarse_of_fine": coarse_of_fine[:100].astype(np.int64)}
    return images("cifar100", (x[0], y[0]), (x[1], y[1]), classes, normalise, mean, std, facts=facts)


def _below_100(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "iu" and bool(np.all((labels >= 0) & (labels < 100)))
