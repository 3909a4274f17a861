"""Parquet files partitioned by client: folders `client=3`, or a file a client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError, unknown
from turnout.core.spelling import spelt
from turnout.data._columns import of_arrays
from turnout.data._of_table import Aim, Asked, Dates, Ids, Missing, made
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling
from turnout.data.readers import path_of, require

Columns = dict[str, NDArray[Any]]


@spelt
def load(
    *,
    path: str | Path,  # of a folder of Parquet files, or of one
    target: str,  # column that is predicted
    client: str | None = None,  # column or folder `client=...` that says whose a row is; none: each file is a client
    inputs: Sequence[str] | None = None,  # columns that are the features; none: all others
    task: Aim = "auto",  # classification, regression, or auto: what the target looks like
    missing: Missing = "refuse",  # nulls and NaN: refuse drop mean median zero flag; or a way for each column
    dates: Dates = "days",  # days: since the first one; parts: year, month, day, weekday; words: as any others
    identifiers: Ids = "drop",  # columns that number or name the rows: drop, aloud, or keep
    normalise: Scaling = "standard",  # inputs by the training rows: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: Held = 0.2,  # share of the samples that is the central test set
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """Columns of numbers and dates, and of lists of one length of numbers, side by side, then one indicator a word of
    columns of words. Folders named `column=value` are columns, which are features where `inputs` names them, or
    `client` another.

    The test set takes its share of every client. Facts: `features`, `classes`, and `clients` by number.
    """
    place = path_of(path)
    files = sorted(place.rglob("*.parquet")) if os.path.isdir(place) else [place]
    if not files or not os.path.isfile(files[0]):
        raise UserError(f"dataset parquet: path={place} is neither a Parquet file nor a folder of them")
    arrays, owners, said = columns_of(place, files)
    for name in (target, *([client] if client else []), *(inputs or ())):
        if name not in arrays:
            raise unknown("dataset parquet: column", name, arrays)
    others = {client} if client else said  # what folders say of a file says whose it is
    ignored = [name for name in arrays if name != target and (name in others if inputs is None else name not in inputs)]
    of = f"dataset parquet: {place}"
    found = of_arrays(of, arrays)
    owner = None if client else of_arrays(of, {"file": owners})["file"][0]
    goals = [one.name for one in found.pop(target)] if arrays[target].ndim > 1 else [target]
    columns = {one.name: one for name in (inputs or found) if name in found for one in found[name]}
    columns |= {one.name: one for own in of_arrays(of, arrays).values() for one in own if one.name not in columns}
    left = [one.name for name in ignored for one in found[name] if name != client]
    asked = Asked(goals, target, client, task, left, missing, dates, identifiers, normalise, test_fraction, seed)
    return made("parquet", columns, asked, owner)


def columns_of(place: Path, files: list[Path]) -> tuple[Columns, NDArray[Any], set[str]]:
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
    """One column, `[rows]` or, of lists of one length, `[rows, length]`: NaN, or an empty word, where nothing is."""
    types = require("parquet", "pyarrow", "pyarrow").types
    if types.is_temporal(column.type) and not types.is_time(column.type) and not types.is_duration(column.type):
        moments = column.to_numpy().astype("datetime64[us]")
        return np.where(np.isnat(moments), "", np.datetime_as_string(moments))
    array: NDArray[Any] = column.to_numpy()
    if array.dtype != object:
        return array
    known = [value for value in array if value is not None]
    if all(isinstance(value, str) for value in known):
        return np.array(["" if value is None else value for value in array], np.str_)
    if all(isinstance(value, bool) for value in known):
        return np.array([np.nan if value is None else float(value) for value in array])
    try:
        return np.stack([np.asarray(value, np.float64) for value in array])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"dataset parquet: {file}: column {name} holds neither numbers, words, dates nor lists of one length"
        ) from error
