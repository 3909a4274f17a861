"""MNIST: 60,000 + 10,000 digits of 28 x 28 (LeCun et al. 1998, CC BY-SA 3.0); writers from QMNIST (BSD).

Files: `mnist.npz` (x_train, y_train, x_test, y_test, and writer_train if known), or the four idx files, plain or
.gz, in torchvision's MNIST/raw, in mnist, or in the folder that you name.
"""

from __future__ import annotations

from pathlib import Path

from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Pixels, images, numbered
from turnout.data.readers import Layout, locate, read_idx, read_numpy

ARCHIVE = Layout(("mnist.npz",))
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@spelt
def load(
    *,
    folder: str | Path | None = None,  # where the files are; none: the folder TURNOUT_DATA names
    normalise: Pixels = "standard",  # standard (mean 0, sd 1), unit (0 to 1), symmetric (-1 to 1) or raw (0 to 255)
) -> Dataset:
    """`[n, 1, 28, 28]`. A writer is a group (fact `clients`: QMNIST's ids); the test digits come from other writers."""
    layout, paths = locate("mnist", folder, ARCHIVE, idx_layout(folder, "MNIST/raw", "mnist"))
    groups = None
    facts: dict[str, object] = {}
    if layout is ARCHIVE:
        names = ("x_train", "y_train", "x_test", "y_test")
        arrays = read_numpy("mnist", paths[0], *names)
        parts = [arrays[name] for name in names]
        if "writer_train" in arrays:
            groups, facts["clients"] = numbered(arrays["writer_train"])
            if len(groups) != len(parts[0]):
                raise UserError(f"dataset mnist: {paths[0]} has {len(parts[0])} images but {len(groups)} writers")
    else:
        parts = [read_idx("mnist", path) for path in paths]
    x, y, test_x, test_y = parts
    return images("mnist", (x, y), (test_x, test_y), 10, normalise, (0.1307,), (0.3081,), groups, facts)


def idx_layout(folder: str | Path | None, *folders: str) -> Layout:
    """The idx files bear no dataset's name, so straight in a folder they count only if that folder was named."""
    return Layout(IDX, folders + (("",) if folder else ()))
