"""What the tables of a study look like, said before anybody has shown one: `schema.toml`.

    [study]
    name = "wards"
    target = "died"

    [[column]]
    name = "age"
    kind = "number"         # or category, date, id, ignore
    low = 0
    high = 120

    [[column]]
    name = "died"
    kind = "category"
    values = ["no", "yes"]

A table fits, or what does not is said in sentences; the sentences quote cells and stay with the table.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from turnout.core.errors import UserError, meant, unknown
from turnout.core.files import read_toml
from turnout.data._columns import BoolArray, Column, of_arrays, of_cells
from turnout.data.parquet import columns_of
from turnout.data.preprocess import MOST_WORDS, WAYS, Fitted
from turnout.data.readers import read_table

KINDS = ("number", "category", "date", "id", "ignore")
OUTSIDE = ("clip", "missing", "refuse")
OTHER = ("refuse", "missing", "own")
AGREE = "agree"
_OPTIONS = {
    "number": {"low", "high", "outside", "missing"},
    "category": {"values", "other", "missing"},
    "date": {"origin", "low", "high", "outside", "missing"},
    "id": set[str](),
    "ignore": set[str](),
}
_MOST_SAID = 20  # sentences about one table
_MOST_COLUMNS = 10_000


@dataclass(frozen=True)
class Declared:
    """One column as the schema has it."""

    name: str
    kind: Literal["number", "category", "date", "id", "ignore"]
    low: float = 0.0
    high: float = 0.0  # days since `origin`, of a date
    outside: str = "clip"  # what becomes of numbers beyond: clip, missing, refuse
    missing: str = "refuse"  # a way, or of a category the word that is put there
    values: Sequence[str] | Literal["agree"] = ()  # words of a category, or agree: the sites' own, by sums
    other: str = "refuse"  # what becomes of other words: refuse, missing, own (an indicator)
    origin: str = ""  # the day from which a date counts

    @property
    def fitted(self) -> Fitted:
        """As it transforms a table, as far as that is known before anything is fitted."""
        if self.kind == "category":
            values = [] if self.values == AGREE else [*self.values]
            return Fitted(self.name, self.kind, self.missing, values=values, other=self.told_other)
        if self.kind in ("id", "ignore"):
            return Fitted(self.name, self.kind)
        span = [self.low, self.high]
        return Fitted(self.name, self.kind, self.missing, origin=self.origin, range=span, outside=self.outside)

    @property
    def told_other(self) -> str:
        """As `Fitted` has it: nothing where other words are refused."""
        return "" if self.other == "refuse" else self.other

    def misfit(self, column: Column) -> None:
        """Raise where a cell of a table is not what is declared."""
        fitted = self.fitted
        if self.kind in ("number", "date"):
            fitted.numbers(column)
        elif self.kind == "category" and self.values != AGREE and self.other == "refuse":
            words = np.asarray(fitted.words(column), np.str_)
            strange = ~column.missing & ~np.isin(words, np.asarray(self.values, np.str_))
            if strange.any():
                raise column.fault(strange, f"which is none of {', '.join(self.values)}")
        elif self.kind == "category" and self.values == AGREE:
            column.check_words()
        if self.kind not in ("id", "ignore") and self.missing == "refuse" and column.missing.any():
            row = int(column.missing.argmax())
            raise UserError(f"{column.where(row)} is missing; the schema has missing = 'refuse' for it")


@dataclass(frozen=True)
class Schema:
    """The columns of a study, what is predicted, and what each site holds out."""

    name: str
    target: str
    columns: Sequence[Declared]
    version: int = 1
    task: Literal["classification", "regression"] = "classification"
    test_fraction: float = 0.2  # of each site's rows, which it keeps for testing
    validation_fraction: float = 0.0  # of each site's rows, likewise
    min_cell: int = 5  # rows below which a word is not proposed, nor a number summed
    source: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the document

    @property
    def digest(self) -> str:
        """Name the content."""
        text = json.dumps(self.source, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def goal(self) -> Declared:
        return next(one for one in self.columns if one.name == self.target)

    @property
    def features(self) -> list[Declared]:
        """Columns that are learnt from."""
        return [one for one in self.columns if one.name != self.target and one.kind in ("number", "category", "date")]

    @property
    def classes(self) -> int | None:
        return len(self.goal.values) if self.task == "classification" else None

    @property
    def naming(self) -> list[str]:
        """Columns that name a row: its identifier, or all that are not ignored."""
        identifiers = [one.name for one in self.columns if one.kind == "id"]
        return identifiers or [one.name for one in self.columns if one.kind != "ignore"]

    def misfits(self, table: str, columns: Mapping[str, Column]) -> list[str]:
        """Say in a sentence each what of a table does not fit, at most twenty; nothing where all does."""
        declared = [one.name for one in self.columns]
        said = [f"{table} has no column {name}; {meant(name, columns)}" for name in declared if name not in columns]
        said += [
            f"{table} has a column {name}, which the schema does not; {meant(name, declared)}"
            for name in columns
            if name not in declared
        ]
        for one in (one for one in self.columns if one.name in columns):
            try:
                one.misfit(columns[one.name])
            except UserError as error:
                said.append(str(error))
        if not said and not self.kept(columns).any():
            said.append(f"{table}: no row has all that may not be missing")
        return said[:_MOST_SAID]

    def kept(self, columns: Mapping[str, Column]) -> BoolArray:
        """Say which rows stay: those that lack nothing without which a row is left out."""
        dropping = [one for one in (*self.features, self.goal) if one.missing == "drop"]
        kept = np.ones(len(columns[self.target].missing), bool)
        for one in dropping:
            kept &= ~self._absent(one, columns[one.name])
        return kept

    @staticmethod
    def _absent(one: Declared, column: Column) -> BoolArray:
        return column.missing if one.values == AGREE else one.fitted.absent(column)

    # -- as a file ----------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Schema:
        """Read `schema.toml`; whatever is wrong with it is one sentence."""
        return cls.of(read_toml(path), path.name)

    @classmethod
    def of(cls, document: Mapping[str, Any], file: str = "schema.toml") -> Schema:
        for name in document:
            if name not in ("study", "column"):
                raise unknown(f"{file}: table", name, ("study", "column"))
        study, rows = document.get("study"), document.get("column")
        if not isinstance(study, Mapping) or not isinstance(rows, list) or not rows or len(rows) > _MOST_COLUMNS:
            raise UserError(f"{file}: it needs a table [study] and a table [[column]] for each column")
        kinds = {"name": str, "target": str, "version": int, "task": str, "test_fraction": float}
        kinds |= {"validation_fraction": float, "min_cell": int}
        own = _typed(f"{file}: study", study, kinds)
        for name in ("name", "target"):
            if not own.get(name):
                raise UserError(f"{file}: study.{name}: missing; say {name} = '...'")
        if own.get("task", "classification") not in ("classification", "regression"):
            raise unknown(f"{file}: study.task", own["task"], ("classification", "regression"))
        held = own.get("test_fraction", 0.2), own.get("validation_fraction", 0.0)
        if min(held) < 0 or sum(held) >= 1:
            raise UserError(f"{file}: study.test_fraction and validation_fraction are {held[0]:g} and {held[1]:g}; "
                            "shares from 0, below 1 together")  # fmt: skip
        if own.get("min_cell", 5) < 1:
            raise UserError(f"{file}: study.min_cell is {own['min_cell']}; allowed: 1 upwards")
        columns = [_declared(file, row) for row in rows]
        names = [one.name for one in columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{file}: column {twice[0]} is declared twice")
        if own["target"] not in names:
            raise unknown(f"{file}: study.target: column", own["target"], names)
        schema = cls(columns=columns, source=document, **own)
        schema._check(file)
        return schema

    def _check(self, file: str) -> None:
        goal, wanted = self.goal, "category" if self.task == "classification" else "number"
        if goal.kind != wanted:
            raise UserError(f"{file}: target {goal.name} is a {goal.kind}; {self.task} needs a {wanted}")
        if wanted == "category" and (goal.values == AGREE or len(goal.values) < 2):
            raise UserError(f"{file}: target {goal.name} needs values, its classes in their order, two at least")
        if goal.missing not in ("refuse", "drop") or goal.other != "refuse" or goal.outside == "missing":
            raise UserError(f"{file}: target {goal.name} cannot be made up: missing takes refuse or drop, nothing else")
        if not self.features:
            raise UserError(f"{file}: no column is left to learn from")


def _typed(where: str, given: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Take options of these types."""
    for name, value in given.items():
        if name not in kinds:
            raise unknown(f"{where}: option", name, kinds)
        kind = kinds[name]
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or (kind is float and not math.isfinite(value)):
            raise UserError(f"{where}: {name} = {value!r} should be of type {kind.__name__}")
    return {name: float(value) if kinds[name] is float else value for name, value in given.items()}


def _declared(file: str, row: Any) -> Declared:
    name = row.get("name") if isinstance(row, Mapping) else None
    if not isinstance(name, str) or not name:
        raise UserError(f"{file}: a column has no name; say name = '...'")
    where, kind = f"{file}: column {name}", row.get("kind")
    if kind not in KINDS:
        raise unknown(f"{where}: kind", str(kind), KINDS)
    options = {option: value for option, value in row.items() if option not in ("name", "kind", "unit")}
    for option in options:
        if option not in _OPTIONS[kind]:
            raise unknown(f"{where}, a {kind}: option", option, _OPTIONS[kind])
    values = options.pop("values", None)
    kinds = {"low": float, "high": float, "outside": str, "missing": str, "other": str, "origin": str}
    own = _typed(where, options, kinds)
    if kind == "category":
        own["values"] = _values(where, values)
    one = Declared(name, kind, **own)
    _check_ways(where, one)
    return one


def _values(where: str, values: Any) -> Sequence[str] | Literal["agree"]:
    if values == AGREE:
        return "agree"
    if not isinstance(values, list) or not values or not all(isinstance(value, str) and value for value in values):
        raise UserError(f"{where}: values = {values!r}; write a list of words, or 'agree'")
    if len(set(values)) < len(values) or len(values) > MOST_WORDS:
        raise UserError(f"{where}: values holds a word twice, or more than {MOST_WORDS}")
    return [*values]


def _check_ways(where: str, one: Declared) -> None:
    if one.kind in ("number", "date") and not one.low < one.high:
        raise UserError(f"{where}: low = {one.low:g} and high = {one.high:g}; low must be given, and lie below high")
    if one.outside not in OUTSIDE:
        raise unknown(f"{where}: outside", one.outside, OUTSIDE)
    if one.other not in OTHER:
        raise unknown(f"{where}: other", one.other, OTHER)
    words = ("refuse", "drop", "flag") if one.kind == "category" else WAYS
    own = [*one.values] if one.kind == "category" and one.values != AGREE else []
    if one.kind not in ("id", "ignore") and one.missing not in (*words, *own):
        raise unknown(f"{where}: missing", one.missing, (*words, *own))
    if "missing" in (one.outside, one.other) and one.missing == "refuse":
        raise UserError(f"{where}: what is outside becomes missing, and missing = 'refuse'; choose another way for it")
    if one.values == AGREE and (one.other == "refuse" or (one.other == "missing" and one.missing == "drop")):
        raise UserError(
            f"{where}: values = 'agree' leaves rare words out: other takes own, or missing with a way but drop"
        )
    if one.kind == "date":
        try:
            np.datetime64(one.origin or "nothing", "D")
        except ValueError as error:
            raise UserError(f"{where}: origin = {one.origin!r}; write a day as 2020-01-01") from error


def read_columns(path: Path, separator: str = ",", decimal: Literal[".", ","] = ".") -> dict[str, Column]:
    """Read the table of a site, CSV or Parquet."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such table")
    if path.suffix == ".parquet":
        arrays, *_ = columns_of(path, [path])
        return {one.name: one for own in of_arrays(path.name, arrays).values() for one in own}
    return of_cells(read_table("site", path, separator=separator), decimal, of=path.name)
