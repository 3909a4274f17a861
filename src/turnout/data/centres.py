"""A file or folder a centre: each hospital's CSV, or its arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError
from turnout.core.spelling import spelt
from turnout.data._columns import Decimal, of_cells
from turnout.data._of_table import Aim, Asked, Dates, Ids, Missing, made
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, Scaling, from_arrays
from turnout.data.readers import path_of, read_numpy, read_table

CENTRE = "centre"


@spelt
def load(
    *,
    path: str | Path,  # of the folder with a file or folder for each centre
    target: str | None = None,  # column that is predicted, where centres have CSV files
    task: Aim = "auto",  # of CSV files: classification, regression, or auto: what the target looks like
    drop: Sequence[str] = (),  # columns of CSV files that are left out
    missing: Missing = "refuse",  # cells that say nothing: refuse drop mean median zero flag; or a way for each column
    missing_words: Sequence[str] = (),  # cells that say nothing, beside empty ones, ?, NA, null
    dates: Dates = "days",  # days: since the first one; parts: year, month, day, weekday; words: as any others
    identifiers: Ids = "drop",  # columns that number or name the rows: drop, aloud, or keep
    separator: str = ",",  # between cells of CSV files
    decimal: Decimal = ".",  # sign before the decimals
    normalise: Scaling = "standard",  # inputs of CSV files: standard (mean 0, sd 1), minmax (0 to 1) or none
    test_fraction: Held = 0.2,  # share of each centre's samples that is the central test set, of CSV files
    seed: int = 0,  # of the choice of test samples
) -> Dataset:
    """A centre a client, named as its file or folder: CSV files with one header (read as `csv_table` does), or `.npz`
    files, or folders of `.npy` files, with arrays `inputs` and `targets` (read as `numpy_files` does).

    A folder may hold several CSV or `.npz` files of its centre. Facts: `clients`, the names by number.
    """
    root = path_of(path)
    if not os.path.isdir(root):
        raise UserError(f"dataset centres: path={root} is no folder; give one with a file or folder a centre")
    found = {place.name if place.is_dir() else place.stem: _files(place) for place in sorted(root.iterdir())}
    centres = {name: files for name, files in found.items() if files}
    kinds = {file.suffix for files in centres.values() for file in files}
    if not kinds:
        raise UserError(f"dataset centres: {root} has no .csv, .npz or .npy file, nor folders with some")
    if kinds == {".csv"}:
        if target is None:
            raise UserError("dataset centres: option target is needed for CSV files: the column that is predicted")
        rows = of_cells(_table(centres, separator), decimal, missing_words)
        read = {"separator": separator, "decimal": decimal, "missing_words": [*missing_words]}
        asked = Asked(
            [target], target, CENTRE, task, drop, missing, dates, identifiers, normalise, test_fraction, seed, read
        )
        return made("centres", rows, asked)
    if ".csv" in kinds or len(kinds) > 1:
        raise UserError(f"dataset centres: {root} mixes {' and '.join(sorted(kinds))} files; give all centres one kind")
    if target is not None:
        raise UserError(f"dataset centres: target={target} is for CSV files; arrays are called inputs and targets")
    return from_arrays("centres", _arrays(centres), None)


def _files(place: Path) -> list[Path]:
    """The files of a centre."""
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    return [file for file in files if file.suffix in (".csv", ".npz", ".npy") and file.is_file()]


def _table(centres: dict[str, list[Path]], separator: str) -> Any:
    """All rows, with the centre of each as one more column."""
    parts = [
        (name, read_table("centres", file, separator=separator)) for name, files in centres.items() for file in files
    ]
    first = parts[0][1]
    rows, lines = list[list[str]](), list[int]()
    for name, part in parts:
        if part.header != first.header or CENTRE in part.header:
            raise UserError(
                f"dataset centres: {part.path} has the columns {', '.join(part.header)}, {first.path} has "
                f"{', '.join(first.header)}; all need the same, and none may be called {CENTRE}"
            )
        rows += [[*row, name] for row in part.rows]
        lines += part.lines
    return replace(first, header=[*first.header, CENTRE], rows=rows, lines=lines)


def _arrays(centres: dict[str, list[Path]]) -> dict[str, NDArray[Any]]:
    parts: dict[str, list[NDArray[Any]]] = {"inputs": [], "targets": [], "groups": []}
    for name, files in centres.items():
        by_name = [read_numpy("centres", file) for file in files]
        if files[0].suffix == ".npy":
            by_name = [{key: array for own in by_name for key, array in own.items()}]
        for own in by_name:
            if own.keys() != {"inputs", "targets"} or any(not array.ndim for array in own.values()):
                held = ", ".join(sorted(own))
                raise UserError(f"dataset centres: centre {name} has arrays {held}; allowed: inputs and targets")
            if parts["inputs"] and any(own[key].shape[1:] != parts[key][0].shape[1:] for key in own):
                raise UserError(f"dataset centres: samples of centre {name} have another shape than those of the first")
            for key in own:
                parts[key].append(own[key])
            parts["groups"].append(np.full(len(own["inputs"]), name))
    return {key: np.concatenate(part) for key, part in parts.items()}
