"""Your own arrays: one .npz, or a folder of .npy files, named inputs, targets and what else there is."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from turnout.core.allowed import Count
from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import PARTS, from_arrays
from turnout.data.readers import path_of, read_numpy
from turnout.data.sources import made


@spelt
def load(
    *,
    path: str | Path,  # of an .npz file, or a folder of .npy files
    num_classes: Count | None = None,  # none: the largest target + 1
    mapped: bool = False,  # whether .npy files stay where they are, in the numbers they have
) -> Dataset:
    """`inputs` and `targets`; if there are, `groups` (the client of every sample, any integer or word), `test_inputs`,
    `test_targets`, `test_groups`.

    Integer targets are classes (`num_classes`, else the largest + 1), others `[n]` or `[n, outputs]` are regressed
    on. Inputs become float32, or int64 tokens if they are integers: scale images to floats first. Those that are
    `mapped` become so a batch at a time, but bytes stay bytes: a model by name scales them.
    """
    place = path_of(path)
    files = sorted(place.glob("*.npy")) if os.path.isdir(place) else [place]
    if not files or not os.path.isfile(files[0]):
        raise UserError(f"dataset numpy_files: path={place} is neither an .npz file nor a folder of .npy files")
    if mapped:
        return _mapped(place, files, num_classes)
    arrays = {name: array for file in files for name, array in read_numpy("numpy_files", file).items()}
    return from_arrays("numpy_files", arrays, num_classes)


def _mapped(place: Path, files: list[Path], num_classes: int | None) -> Dataset:
    """Map each file into memory; groups and labels, one a sample, are read."""
    arrays = {}
    for file in files:
        try:
            arrays[file.stem] = np.load(file, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # which one depends on which byte is wrong
            raise UserError(f"dataset numpy_files: {file} is not a .npy file of plain numbers to be mapped") from error
        if file.stem not in PARTS or not isinstance(arrays[file.stem], np.ndarray):
            raise UserError(
                f"dataset numpy_files: mapped arrays are .npy files called {', '.join(PARTS)}, not {file.name}"
            )
    for name in ("inputs", "targets"):
        if name not in arrays:
            raise UserError(f"dataset numpy_files: {place} has no file {name}.npy")
    test = None
    if "test_inputs" in arrays or "test_targets" in arrays:
        test = tuple(arrays.get(name) for name in ("test_inputs", "test_targets", "test_groups"))
    groups = arrays.get("groups")
    return made(arrays["inputs"], arrays["targets"], groups, None, num_classes, test, None, "numpy_files")
