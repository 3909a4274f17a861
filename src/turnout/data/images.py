"""Folders of images: `class/a.png`, `client/class/a.png`, or `client/a.png` with the labels in a CSV file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.allowed import Count
from turnout.core.errors import UserError
from turnout.core.imports import extra, optional
from turnout.core.random import IntArray
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset, as_tensor
from turnout.data.prepare import Held, hold_out, numbered
from turnout.data.readers import path_of, read_table

KINDS = ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"
LARGE = 1 << 28  # bytes of pixels that lie in a temporary file


@spelt
def load(
    *,
    path: str | Path,  # of the folder
    layout: Literal["class", "client/class", "client"] = "class",  # what its folders are; client: labels say the class
    labels: str | Path | None = None,  # for layout client: a CSV file with the columns file and label
    size: Count | None = None,  # height and width that images are resized to; none: they have one size
    colour: Literal["rgb", "grey"] = "rgb",  # channels: three, or one
    pixels: Literal["unit", "bytes"] = "unit",  # numbers from 0 to 1, or bytes, which take a quarter of the memory
    test_fraction: Held = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """`[n, channels, height, width]` images and the class of each.

    The test set takes its share of every client, or else of every class. As `bytes` many images lie in a temporary
    file, not in memory; a model by name scales them itself. Facts: `classes`, and `clients` by number.
    """
    root = path_of(path)
    if not os.path.isdir(root):
        raise UserError(f"dataset images: there is no folder {root}")
    if (layout == "client") == (labels is None):
        raise UserError(f"dataset images: labels={labels} with layout={layout}; only layout client has them")
    files = [file for file in sorted(root.rglob("*")) if file.suffix.lower() in KINDS and file.is_file()]
    depth = 3 if layout == "client/class" else 2
    files = [file for file in files if len(file.relative_to(root).parts) == depth]
    if not files:
        raise UserError(f"dataset images: {root} has no images in folders {layout}")
    targets, classes = numbered(
        [file.parent.name for file in files] if labels is None else _labels(root, files, labels)
    )
    facts: dict[str, object] = {"classes": classes}
    groups: IntArray | None = None
    if layout != "class":
        groups, facts["clients"] = numbered([file.relative_to(root).parts[0] for file in files])
    train, test = hold_out(targets if groups is None else groups, test_fraction, seed)
    order = np.concatenate([train, test])  # test samples last: both are then parts of one pool
    pool = _read([files[place] for place in order], size, "RGB" if colour == "rgb" else "L", pixels)
    y, cut = torch.from_numpy(targets[order]), len(train)
    held = (pool[cut:], y[cut:]) if len(test) else (None, None)
    owners = (None, None) if groups is None else (groups[train], groups[test] if len(test) else None)
    return Dataset("images", pool[:cut], y[:cut], len(classes), held[0], held[1], owners[0], owners[1], facts)


def _labels(root: Path, files: list[Path], labels: str | Path) -> list[str]:
    """The label of every file, by its path in the folder or by its name alone."""
    path = path_of(labels)
    rows = read_table("images", path if path.is_absolute() or path.exists() else root / path)
    known = dict(zip(rows.words("file"), rows.words("label"), strict=True))
    found = [known.get(file.relative_to(root).as_posix(), known.get(file.name)) for file in files]
    for file, label in zip(files, found, strict=True):
        if label is None:
            raise UserError(f"dataset images: {rows.path} has no label for {file.relative_to(root).as_posix()}")
    return [str(label) for label in found]


def _read(files: list[Path], size: int | None, mode: str, pixels: str) -> Tensor:
    image = optional("dataset images", "PIL.Image", extra("images"))
    pool: Any = None
    for number, file in enumerate(files):
        own = _pixels(image, file, size, mode)
        if pool is None:
            pool = _room((len(files), *own.shape), pixels)
        if own.shape != pool.shape[1:]:
            wanted, found = (f"{shape[2]} x {shape[1]}" for shape in (pool.shape[1:], own.shape))
            raise UserError(
                f"dataset images: {file} has {found} pixels, {files[0]} {wanted}; give size, to which all are resized"
            )
        pool[number] = own if pixels == "bytes" else own.astype(np.float32) / 255
    return as_tensor("dataset images: inputs", pool) if pixels == "bytes" else torch.from_numpy(pool)


def _room(shape: tuple[int, ...], pixels: str) -> NDArray[Any]:
    """Make room for all images: in memory, or in a file that goes with the process."""
    if pixels == "unit":
        return np.empty(shape, np.float32)
    if np.prod(shape) <= LARGE:
        return np.empty(shape, np.uint8)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=shape)


def _pixels(image: Any, file: Path, size: int | None, mode: str) -> NDArray[np.uint8]:
    """`[channels, height, width]` one image."""
    try:
        with image.open(file) as picture:
            picture = picture.convert(mode)
            picture = picture if size is None else picture.resize((size, size))
            pixels = np.asarray(picture, np.uint8)
    except Exception as error:  # which one depends on which byte is wrong
        raise UserError(f"dataset images: {file} is not a picture that Pillow can read") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
