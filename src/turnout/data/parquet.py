"""Parquet files partitioned by client: folders `client=3`, or a file a client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError, unknown
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling, numbered, table
from turnout.data.readers import path_of, require

Columns = dict[str, NDArray[Any]]


@spelt
def load(
    *,
    path: str | Path,  # of a folder of Parquet files, or of one
    target: str,  # column that is predicted
    client: str | None = None,  # column or folder `client=...` that says whose a row is; none: each file is a client
    inputs: Sequence[str] | None = None,  # columns that are the features; none: all others
    task: Literal["classification", "regression"] = "classification",  # whether the target is a class or a number
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: Held = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """Columns of numbers, and of lists of one length of them, side by side. Folders named `column=value` are columns,
    which are features where `inputs` names them, or `client` another.

    The test set takes its share of every client. Facts: `features`, `classes`, and `clients` by number.
    """
    place = path_of(path)
    files = sorted(place.rglob("*.parquet")) if os.path.isdir(place) else [place]
    if not files or not os.path.isfile(files[0]):
        raise UserError(f"dataset parquet: path={place} is neither a Parquet file nor a folder of them")
    columns, owners, said = _columns(place, files)
    others = {target, client} if client else {target, *said}  # what folders say of a file says whose it is
    names = [name for name in columns if name not in others] if inputs is None else list(inputs)
    for name in (target, *([client] if client else []), *names):
        if name not in columns:
            raise unknown("dataset parquet: column", name, columns)
    if not names:
        raise UserError(f"dataset parquet: {place} has no column left to be a feature")
    features, parts = list[str](), list[NDArray[np.float64]]()
    for name in names:
        part = _wide(name, columns[name])
        features += [name] if columns[name].ndim == 1 else [f"{name}[{place}]" for place in range(part.shape[1])]
        parts.append(part)
    groups, clients = numbered(columns[client] if client else owners)
    facts: dict[str, object] = {"features": features, "clients": clients}
    targets: NDArray[Any] = columns[target]
    if task == "classification":
        if targets.ndim != 1:
            raise UserError(f"dataset parquet: target {target} holds lists; classes are one value a row")
        targets, facts["classes"] = numbered(targets)
    else:
        targets = _wide(target, targets)
    classes = int(targets.max()) + 1 if task == "classification" else None
    x = np.concatenate(parts, axis=1)
    return table("parquet", x, targets, classes, normalise, test_fraction, seed, groups, facts)


def _columns(place: Path, files: list[Path]) -> tuple[Columns, NDArray[Any], set[str]]:
    """All files one after another, with what the names of their folders say; of which file each row is, and the columns
    that are names of folders."""
    read = require("parquet", "pyarrow.parquet", "pyarrow").ParquetFile
    parts: list[Columns] = []
    owners: list[NDArray[Any]] = []
    said = dict[str, list[str]]()
    stems = len({file.stem for file in files}) == len(files)
    for file in files:
        try:
            content = read(file).read()  # this file alone: what its folder is called is read here
        except Exception as error:  # which one depends on which byte is wrong
            raise UserError(f"dataset parquet: {file} is not a Parquet file that can be read") from error
        own = {name: _values(file, name, content.column(name)) for name in content.column_names}
        for name, word in _folders(place, file):
            _check_same(file, name, word, own.get(name))
            said.setdefault(name, []).append(word)
            own.setdefault(name, np.full(content.num_rows, word))
        if parts and own.keys() != parts[0].keys():
            odd = min(own.keys() ^ parts[0].keys())
            raise UserError(f"dataset parquet: {file} and {files[0]} differ: only one of them has the column {odd}")
        parts.append(own)
        name = file.stem if stems else file.relative_to(place).with_suffix("").as_posix()
        owners.append(np.full(content.num_rows, name))
    try:
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except ValueError as error:
        raise UserError(f"dataset parquet: files in {place} have lists of different lengths in one column") from error
    if not len(owners) or not sum(map(len, owners)):
        raise UserError(f"dataset parquet: {place} holds no rows")
    for name, words in said.items():
        if whole[name].dtype.kind == "U" and all(word.isdecimal() and str(int(word)) == word for word in words):
            whole[name] = whole[name].astype(np.int64)
    return whole, np.concatenate(owners), {*said}


def _folders(place: Path, file: Path) -> list[tuple[str, str]]:
    """What the names of a file's folders say, decoded: columns and their values."""
    folders = file.relative_to(place).parts[:-1] if os.path.isdir(place) else ()
    pairs = (folder.split("=", 1) for folder in folders if "=" in folder)
    return [(unquote(name), unquote(value)) for name, value in pairs]


def _check_same(file: Path, name: str, word: str, column: NDArray[Any] | None) -> None:
    """Raise where a folder says other than the column of its name."""
    if column is None:
        return
    try:
        same = column == float(word) if column.dtype.kind in "iuf" else column.astype(str) == word
    except ValueError:
        same = np.zeros(1, bool)
    if not np.all(same):
        raise UserError(f"dataset parquet: {file}: its folder says {name}={word}, but its column {name} says otherwise")


def _values(file: Path, name: str, column: Any) -> NDArray[Any]:
    """One column, `[rows]` or, of lists of one length, `[rows, length]`; nothing in it is missing."""
    if column.null_count:
        raise UserError(f"dataset parquet: {file}: column {name} has {column.null_count} missing values")
    array: NDArray[Any] = column.to_numpy()
    if array.dtype != object or (len(array) and isinstance(array[0], str)):
        return array.astype(str) if array.dtype == object else array
    try:
        return np.stack([np.asarray(value, np.float64) for value in array])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"dataset parquet: {file}: column {name} holds neither numbers, words nor lists of one length"
        ) from error


def _wide(name: str, column: NDArray[Any]) -> NDArray[np.float64]:
    """`[rows, width]` numbers, all finite."""
    if column.dtype.kind not in "fiub":
        raise UserError(f"dataset parquet: column {name} holds words; make it numeric, or choose others with inputs")
    values = column.reshape(len(column), -1).astype(np.float64)
    if not np.isfinite(values).all():
        raise UserError(f"dataset parquet: column {name} holds NaN or infinity; clean the data first")
    return values
