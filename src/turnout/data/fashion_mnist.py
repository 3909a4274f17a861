"""Fashion-MNIST: 60,000 + 10,000 pictures of clothes, 28 x 28, 10 classes (Zalando, MIT).

Files: the four idx files, plain or .gz, in torchvision's FashionMNIST/raw, in fashion_mnist, in fashion-mnist
(Debian's dataset-fashion-mnist, with folder=/usr/share/datasets), or in the folder that you name.
"""

from __future__ import annotations

from pathlib import Path

from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.mnist import idx_layout
from turnout.data.prepare import Pixels, images
from turnout.data.readers import locate, read_idx


@spelt
def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    normalise: Pixels = "standard",  # standard (mean 0, sd 1), unit (0 to 1), symmetric (-1 to 1) or raw (0 to 255)
) -> Dataset:
    """`[n, 1, 28, 28]`."""
    layout = idx_layout(folder, "FashionMNIST/raw", "fashion_mnist", "fashion-mnist")
    _, paths = locate("fashion_mnist", folder, layout)
    x, y, test_x, test_y = (read_idx("fashion_mnist", path) for path in paths)
    return images("fashion_mnist", (x, y), (test_x, test_y), 10, normalise, mean=(0.2860,), std=(0.3530,))
