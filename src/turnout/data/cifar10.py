"""CIFAR-10: 50,000 + 10,000 colour pictures of 32 x 32 (Krizhevsky 2009, no licence stated, free for research).

Files: the official binary batches (cifar-10-batches-bin), or lossless WebP sheets of tiles with `labels.npz`
(cifar10). The official Python batches are pickles, which can run any code, and are refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Pixels, images
from turnout.data.readers import Layout, locate, read_cifar, read_numpy, read_sheet

SHEETS = Layout((*(f"train_{i}.webp" for i in range(1, 6)), "test.webp", "labels.npz"), ("cifar10", ""))
BATCHES = Layout(
    (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"), ("cifar-10-batches-bin", "cifar10", "")
)
PICKLES = Layout(("data_batch_1",), ("cifar-10-batches-py", "cifar10", ""))


@spelt
def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    normalise: Pixels = "standard",  # standard (mean 0, sd 1), unit (0 to 1), symmetric (-1 to 1) or raw (0 to 255)
) -> Dataset:
    """`[n, 3, 32, 32]` in the official order."""
    layout, paths = locate("cifar10", folder, SHEETS, BATCHES, pickled=PICKLES)
    if layout is SHEETS:
        arrays = read_numpy("cifar10", paths[-1], "y_train", "y_test")
        x = [read_sheet("cifar10", path) for path in paths[:-1]]
        y, test_y = arrays["y_train"], arrays["y_test"]
    else:
        batches = [read_cifar("cifar10", path, labels=1) for path in paths]
        x = [pixels for pixels, _ in batches]
        y, test_y = np.concatenate([labels[:, 0] for _, labels in batches[:-1]]), batches[-1][1][:, 0]
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    return images("cifar10", (np.concatenate(x[:-1]), y), (x[-1], test_y), 10, normalise, mean, std)
