"""Federated data in LEAF's format: JSON files with `users` and `user_data`.

Caldas et al., "LEAF: a benchmark for federated settings", 2018. Words (of Shakespeare, of tweets) are no numbers: write
tokens in their place, or take the dataset `shakespeare`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.core.allowed import Count
from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import from_arrays
from turnout.data.readers import path_of, read_text


@spelt
def load(
    *,
    path: str | Path,  # of a .json file, a folder of them, or a folder with folders train and test of them
    shape: Sequence[int] | None = None,  # of one sample, such as [1, 28, 28]; none: as it is written
    num_classes: Count | None = None,  # none: the largest target + 1
) -> Dataset:
    """A client a user: `x` and `y` of `user_data`. Whole targets are classes, others are regressed on.

    A folder `test` beside `train` is the central test set, whose samples are of the same users. Facts: `clients`, the
    names of the users by number.
    """
    place = path_of(path)
    arrays = _read(place / "train" if os.path.isdir(place / "train") else place, shape)
    if os.path.isdir(place / "train") and os.path.isdir(place / "test"):
        for name, array in _read(place / "test", shape).items():
            kind = np.result_type(arrays[name], array)  # JSON says 1 where it means 1.0
            arrays |= {name: arrays[name].astype(kind), f"test_{name}": array.astype(kind)}
    return from_arrays("leaf", arrays, num_classes)


def _read(place: Path, shape: Sequence[int] | None) -> dict[str, NDArray[Any]]:
    files = sorted(place.glob("*.json")) if os.path.isdir(place) else [place]
    if not files or not os.path.isfile(files[0]):
        raise UserError(f"dataset leaf: path={place} is neither a .json file nor a folder of them")
    parts: dict[str, list[NDArray[Any]]] = {"inputs": [], "targets": [], "groups": []}
    for file in files:
        for user, own in _users(file):
            x, y = (_numbers(file, user, name, own[name]) for name in ("x", "y"))
            if len(x) != len(y):
                raise UserError(f"dataset leaf: {file}: user {user} has {len(x)} x but {len(y)} y")
            if len(x):
                parts["inputs"].append(_shaped(file, user, x, shape))
                parts["targets"].append(y)
                parts["groups"].append(np.full(len(x), user))
    widths = {part.shape[1:] for part in parts["inputs"]}
    if not widths:
        raise UserError(f"dataset leaf: {place} holds no samples")
    if len(widths) > 1:
        raise UserError(f"dataset leaf: {place} has samples of different shapes, {' and '.join(map(str, widths))}")
    return {name: np.concatenate(part) for name, part in parts.items()}


def _users(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Each user's name and data."""
    try:
        content = json.loads(read_text("leaf", file))
        users = [(str(user), content["user_data"][user]) for user in content["users"]]
        if all(isinstance(own, dict) and {"x", "y"} <= own.keys() for _, own in users):
            return users
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(f"dataset leaf: {file} is not LEAF's JSON: `users`, and `user_data` with x and y for each of them")


def _numbers(file: Path, user: str, name: str, values: Any) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.dtype.kind not in "fiu" or not array.ndim:
        raise UserError(
            f"dataset leaf: {file}: {name} of user {user} is no list of numbers of one length; words have to be tokens"
        )
    return array


def _shaped(file: Path, user: str, x: NDArray[Any], shape: Sequence[int] | None) -> NDArray[Any]:
    if shape is None:
        return x
    try:
        return x.reshape(len(x), *shape)
    except ValueError as error:
        found = list(x.shape[1:])
        raise UserError(f"dataset leaf: shape={list(shape)} but {file} has {found} of user {user}") from error
