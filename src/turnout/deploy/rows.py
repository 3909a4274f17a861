"""The rows of a site: read where the table lies, checked against the schema, and parted for good.

A row is held out where the first eight bytes of HMAC-SHA256(salt, row), as a share of 2^64, are below the test
fraction, or else the next eight below the validation fraction. Rows that are added later move no other; and nobody
without the salt, which never leaves, can tell who was held out.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.files import read_toml
from turnout.core.ragged import Ragged
from turnout.core.random import IntArray
from turnout.data._columns import Column
from turnout.data.dataset import Dataset
from turnout.data.preprocess import Fitted, Preprocess
from turnout.data.schema import Schema, read_columns

PLACE = "table.toml"  # in a site's folder: where its table lies and how it is written
_ALL = float(1 << 64)


class MisfitError(UserError):
    """A table does not fit its schema: the first sentence of why, and all of them in `misfits`."""

    def __init__(self, misfits: Sequence[str]) -> None:
        more = f" (and {len(misfits) - 1} more)" if len(misfits) > 1 else ""
        super().__init__(f"{misfits[0]}{more}; the table does not fit the schema")
        self.misfits = misfits


@dataclass(frozen=True)
class Place:
    """Where a site's table lies, how it is written, and what it was at enrolment."""

    path: str
    separator: str = ","
    decimal: str = "."
    fingerprint: str = ""


def read_place(folder: Path) -> Place:
    """Read what enrolment has written."""
    if not (folder / PLACE).exists():
        raise UserError(f"deploy: {folder} has no table yet; turnout deploy enrol {folder} --data TABLE")
    try:
        return Place(**read_toml(folder / PLACE))
    except TypeError as error:
        raise UserError(f"{folder / PLACE}: not as turnout deploy enrol writes it; enrol again") from error


@dataclass(frozen=True)
class Rows:
    """A table that fits, less the rows that are left out: columns, and which rows train, validate and test."""

    columns: Mapping[str, Column]
    train: IntArray
    validation: IntArray
    test: IntArray
    fingerprint: str

    @classmethod
    def read(cls, schema: Schema, place: Place, salt: bytes) -> Rows:
        """Read and check a table; where it does not fit, one sentence says what and how much more."""
        path = Path(place.path)
        columns = read_columns(path, place.separator, cast(Literal[".", ","], place.decimal))
        if misfits := schema.misfits(path.name, columns):
            raise MisfitError(misfits)
        kept = schema.kept(columns)
        columns = {name: column.rows(kept) for name, column in columns.items()}
        keys = _keys(schema.naming, columns)
        digests = [hmac.new(salt, key, hashlib.sha256).digest() for key in keys]
        shares = np.array([[int.from_bytes(each[at : at + 8], "big") / _ALL for at in (0, 8)] for each in digests])
        test = shares[:, 0] < schema.test_fraction
        validation = ~test & (shares[:, 1] < schema.validation_fraction)
        if (test | validation).all():
            raise UserError(f"{path.name}: no row is left to train on; it needs more rows than {len(keys)}")
        cells = _keys([one.name for one in schema.columns if one.kind != "ignore"], columns)
        whole = hmac.new(salt, b"".join(sorted(cells)), hashlib.sha256).hexdigest()
        parts = [np.flatnonzero(part) for part in (~test & ~validation, validation, test)]
        return cls(columns, parts[0], parts[1], parts[2], whole)

    @property
    def training(self) -> dict[str, Column]:
        return {name: column.rows(self.train) for name, column in self.columns.items()}

    @property
    def counts(self) -> dict[str, int]:
        return {"samples": len(self.train), "validation": len(self.validation), "test": len(self.test)}

    def population(self, schema: Schema, fitted: Preprocess) -> tuple[Dataset, Population]:
        """Make numbers of the rows: the population of one client."""
        inputs, goal = torch.from_numpy(fitted.inputs(self.columns)), self.columns[schema.target]
        targets: Any
        if schema.classes is not None:
            places = {word: number for number, word in enumerate(fitted.target["classes"])}
            targets = torch.tensor([places[word] for word in Fitted.words(goal)], dtype=torch.int64)
        else:
            values = schema.goal.fitted.numbers(goal)
            scaled = (values - np.asarray(fitted.target["offset"])) / np.asarray(fitted.target["scale"])
            targets = torch.from_numpy(scaled.astype(np.float32))
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        index: dict[str, Any] = {
            name: Ragged.from_rows([rows]) for name, rows in splits.items() if name == "train" or len(rows)
        }
        return Dataset(schema.name, inputs, targets, schema.classes), Population(inputs, targets, **index)


def _keys(names: Sequence[str], columns: Mapping[str, Column]) -> list[bytes]:
    """Name each row: by its cells in these columns, and how many rows before it have the same."""
    words = [
        ["" if gone else word for word, gone in zip(Fitted.words(columns[name]), columns[name].missing, strict=True)]
        for name in names
    ]
    seen: Counter[str] = Counter()
    keys = []
    for cells in zip(*words, strict=True):
        text = "\x1f".join(cells)
        keys.append(hashlib.sha256(f"{text}\x1f{seen[text]}".encode()).digest())
        seen[text] += 1
    return keys
