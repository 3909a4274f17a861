"""Images for the studies: whole, shrunk, or a stratified subset small enough to carry to another machine.

python -m turnout_studies.images FOLDER OUT      # writes OUT/cifar10_subset.npz from the full data in FOLDER
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from turnout.core.errors import UserError
from turnout.data import cifar10, digits, mnist
from turnout.data.dataset import Dataset
from turnout.data.prepare import hold_out, images
from turnout.data.readers import VARIABLE, path_of, read_numpy

SUBSET = "cifar10_subset.npz"
SHARE = 0.2  # of every class: 10,000 training and 2,000 test images
PARTS = ("x_train", "y_train", "x_test", "y_test")
Bytes = NDArray[np.uint8]


def small_digits() -> Dataset:
    """Bundled 8 x 8 digits, for trying a study out."""
    return _flat(digits.load())


def mnist_flat(data: Path | None) -> Dataset:
    """`[60000, 784]`."""
    return _flat(mnist.load(folder=data))


def cifar10_shrunk(data: Path | None) -> Dataset:
    """`[50000, 768]`: the mean of every 2 x 2 pixels."""
    whole = cifar10.load(folder=data)
    return _trained(whole, F.avg_pool2d(whole.inputs, 2).flatten(1))


def cifar10_subset(data: Path | None) -> Dataset:
    """`[10000, 3, 32, 32]`, a thousand a class: from `cifar10_subset.npz` if the folder has it, else from all."""
    root = data or os.environ.get(VARIABLE)
    ready = path_of(root) / SUBSET if root else None
    parts = read_numpy("cifar10", ready, *PARTS) if ready and ready.is_file() else subset_arrays(data)
    x, y, test_x, test_y = (parts[name] for name in PARTS)
    dataset = images(
        "cifar10",
        (x, y),
        (test_x, test_y),
        num_classes=10,
        normalise="standard",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    )
    return _trained(dataset, dataset.inputs)


def subset_arrays(data: Path | None) -> dict[str, Bytes]:
    """A fifth of every class of CIFAR-10, as bytes."""
    whole = cifar10.load(folder=data, normalise="raw")
    assert whole.test_inputs is not None
    assert whole.test_targets is not None
    arrays: dict[str, Bytes] = {}
    for part, pixels, labels in (
        ("train", whole.inputs, whole.targets),
        ("test", whole.test_inputs, whole.test_targets),
    ):
        _, chosen = hold_out(labels.numpy(), SHARE, seed=0)
        arrays |= {f"x_{part}": _bytes(pixels[chosen]), f"y_{part}": _bytes(labels[chosen])}
    return arrays


def _bytes(values: Tensor) -> Bytes:
    array: Bytes = values.numpy().astype(np.uint8)
    return array


def _flat(dataset: Dataset) -> Dataset:
    return _trained(dataset, dataset.inputs.flatten(1))


def _trained(dataset: Dataset, inputs: Tensor) -> Dataset:
    """With these inputs, and without the test set."""
    return replace(dataset, inputs=inputs, test_inputs=None, test_targets=None)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("give two folders: the one with the full data, and the one to write to", file=sys.stderr)
        return 2
    try:
        arrays = subset_arrays(Path(arguments[0]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    target = Path(arguments[1])
    target.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target / SUBSET, allow_pickle=False, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
