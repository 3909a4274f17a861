"""Your own arrays: one .npz, or a folder of .npy files, named inputs, targets and what else there is."""

from __future__ import annotations

import os
from pathlib import Path

from turnout.core.allowed import Count
from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import from_arrays
from turnout.data.readers import path_of, read_numpy


@spelt
def load(
    *,
    path: str | Path,  # of an .npz file, or a folder of .npy files
    num_classes: Count | None = None,  # none: the largest target + 1
) -> Dataset:
    """`inputs` and `targets`; if there are, `groups` (the client of every sample, any integer or word), `test_inputs`,
    `test_targets`, `test_groups`.

    Integer targets are classes (`num_classes`, else the largest + 1), others `[n]` or `[n, outputs]` are regressed
    on. Inputs become float32, or int64 tokens if they are integers: scale images to floats first.
    """
    place = path_of(path)
    files = sorted(place.glob("*.npy")) if os.path.isdir(place) else [place]
    if not files or not os.path.isfile(files[0]):
        raise UserError(f"dataset numpy_files: path={place} is neither an .npz file nor a folder of .npy files")
    arrays = {name: array for file in files for name, array in read_numpy("numpy_files", file).items()}
    return from_arrays("numpy_files", arrays, num_classes)
