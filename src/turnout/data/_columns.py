"""Columns of a table as people have them: numbers, words and dates, where cells may say nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.data.prepare import numbered
from turnout.data.readers import MISSING, Table, is_number

BoolArray = NDArray[np.bool_]
Kind = Literal["number", "category", "date"]
Decimal = Literal[".", ","]
_DATE = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?Z?|\d{1,2}\.\d{1,2}\.\d{4}"
_SLASHES = r"\d{1,4}/\d{1,2}/\d{1,4}"
_COMMA = r"[-+]?\d+,\d+([eE][-+]?\d+)?"
_IDENTIFIER = r"(.*[\W_])?(id|pid|uid|uuid|guid|mrn|nr|no|number|index|key|code)"
_ENOUGH = 20  # rows, below which nothing is told from how many values differ
_LONG = 200  # characters of a cell, from which on an array of them is too wide
_DAY = np.timedelta64(86_400_000_000, "us")


@dataclass(frozen=True)
class Column:
    """One column: float64 numbers, NaN where nothing is; or words."""

    of: str  # dataset and file, in sentences
    name: str
    values: NDArray[Any]
    missing: BoolArray
    lines: NDArray[np.int64]  # of the file, where each row stands
    line: str = "row"  # what they count
    loose: bool = False  # words that are numbers where all of them can be read so

    def rows(self, kept: Any) -> Column:
        """Take some of the rows."""
        return replace(self, values=self.values[kept], missing=self.missing[kept], lines=self.lines[kept])

    @property
    def known(self) -> NDArray[Any]:
        """What stands where something does."""
        return self.values[~self.missing]

    def kind(self, dates: bool = True) -> Kind:
        """Guess what it holds: numbers or dates where every cell can be read so, else words."""
        if self.values.dtype.kind == "f" or (self.loose and self._read is not None):
            return "number"
        return "date" if dates and self._dated else "category"

    @cached_property
    def _dated(self) -> bool:
        return len(self.known) > 0 and all(map(_is_date, self.known))

    def where(self, row: int) -> str:
        return f"{self.of} {self.line} {self.lines[row]}: column {self.name}"

    def fault(self, wrong: BoolArray, words: str) -> UserError:
        """Say what is wrong with the first of these rows."""
        row = int(np.flatnonzero(wrong)[0])
        return UserError(f"{self.where(row)} is {str(self.values[row])!r}, {words}")

    @cached_property
    def _read(self) -> FloatArray | None:
        """`[rows]` numbers, NaN where nothing is; None where a cell is no number."""
        if self.values.dtype.kind == "f":
            return self.values
        found = np.full(len(self.values), np.nan)
        try:
            found[~self.missing] = self.known.astype(np.float64)
        except ValueError:
            return None
        return np.where(~self.missing & np.isnan(found), np.inf, found)

    def numbers(self) -> FloatArray:
        """`[rows]`, NaN where nothing is, all others finite."""
        found = self._read
        if found is None:
            raise self.fault(self._odd, "not a finite number")
        if np.isinf(found).any():
            raise self.fault(np.isinf(found), "not a finite number")
        return found

    @cached_property
    def _odd(self) -> BoolArray:
        """`[rows]` words that are no numbers."""
        odd: BoolArray = np.array([not is_number(str(word)) for word in self.values], bool)
        return odd & ~self.missing

    def moments(self) -> NDArray[np.datetime64]:
        """`[rows]` points in time, NaT where nothing is."""
        found = np.full(len(self.values), "NaT", "datetime64[us]")
        for row in np.flatnonzero(~self.missing).tolist():
            word = str(self.values[row])
            try:
                if not _is_date(word):
                    raise ValueError
                found[row] = np.datetime64(_iso(word), "us")
            except ValueError as error:
                words = "not a date; write it as 2026-03-31"
                raise self.fault(np.arange(len(found)) == row, words) from error
        return found

    def codes(self) -> tuple[NDArray[np.int64], list[Any]]:
        """Its distinct values by number, in numeric order if they are numbers; nothing may be missing."""
        if self.kind(dates=False) != "number":
            return numbered(self.values)
        ranks, values = numbered(self.numbers())
        return ranks, [int(value) if value.is_integer() else value for value in values]

    def is_identifier(self) -> bool:
        """Guess whether it numbers or names the rows: nearly all its values differ, and numbers are whole ones that
        run on or are called an id."""
        known = self.known
        if len(known) < _ENOUGH or (kind := self.kind()) == "date":
            return False
        if kind == "category":
            return len(np.unique(known)) >= 0.95 * len(known)
        numbers = self.numbers()[~self.missing]
        if (numbers != np.rint(numbers)).any() or len(np.unique(numbers)) < 0.95 * len(numbers):
            return False
        named = re.fullmatch(_IDENTIFIER, self.name, re.IGNORECASE) is not None
        return named or np.ptp(numbers) + 1 == len(numbers)

    def check_words(self) -> None:
        """Raise where words are numbers or dates in a form that nobody can read for sure."""
        known = [str(word) for word in self.known]
        written = [re.fullmatch(_COMMA, word) is not None for word in known]
        if any(written) and all(one or is_number(word) for one, word in zip(written, known, strict=True)):
            example = known[written.index(True)]
            raise UserError(
                f"{self.of}: column {self.name} has decimal commas, such as {example!r}; say so: decimal=','"
            )
        if known and all(re.fullmatch(_SLASHES, word) for word in known):
            why = "of which nobody can tell day and month for sure"
            raise UserError(
                f"{self.of}: column {self.name} has dates such as {known[0]!r}, {why}; write them as 2026-03-31, or "
                "leave the column out with drop"
            )

    def remark(self) -> str | None:
        """What a person should know of words that are numbers for the most part."""
        if not self.loose or self.kind() != "category" or len(np.unique(self.known)) <= _ENOUGH:
            return None
        if self._odd.sum() > 0.5 * len(self.known):
            return None
        row = int(np.flatnonzero(self._odd)[0])
        what = f"{str(self.values[row])!r} in line {self.lines[row]}"
        remedy = "if that means nothing is there, say so with missing_words"
        return f"column {self.name} is read as words because of {what}; {remedy}"


def _is_date(word: Any) -> bool:
    return re.fullmatch(_DATE, str(word)) is not None


def _iso(word: str) -> str:
    """A date of digits as NumPy reads it."""
    if "." in word[:3]:
        day, month, year = word.split(".")
        return f"{year}-{month:0>2}-{day:0>2}"
    return word.rstrip("Z")


def days(moments: NDArray[np.datetime64], origin: np.datetime64) -> FloatArray:
    """`[rows]` days since the origin, NaN where nothing is."""
    return np.asarray((moments - origin) / _DAY, np.float64)


def parts(moments: NDArray[np.datetime64]) -> FloatArray:
    """`[rows, 4]` year, month, day of the month, and of the week, Monday 0; NaN where nothing is."""
    known = ~np.isnat(moments)
    found = np.full((len(moments), 4), np.nan)
    date = moments[known].astype("datetime64[D]")
    month = date.astype("datetime64[M]")
    found[known, 0] = date.astype("datetime64[Y]").astype(np.int64) + 1970
    found[known, 1] = month.astype(np.int64) % 12 + 1
    found[known, 2] = (date - month).astype(np.int64) + 1
    found[known, 3] = (date.astype(np.int64) + 3) % 7  # the epoch was a Thursday
    return found


def of_cells(
    table: Table, decimal: Decimal = ".", missing_words: Sequence[str] = (), of: str | None = None
) -> dict[str, Column]:
    """The columns of a text table; these words mean, too, that nothing is there."""
    of = of or f"dataset {table.dataset}: {table.path}"
    nothing = MISSING | {word.lower() for word in missing_words}
    lines = np.asarray(table.lines)
    found = {}
    for name, cells in zip(table.header, zip(*table.rows, strict=True), strict=True):
        missing = np.array([cell.lower() in nothing for cell in cells])
        if decimal == ",":
            cells = tuple(cell.replace(",", ".") if re.fullmatch(_COMMA, cell) else cell for cell in cells)
        values = np.array(cells, np.str_ if max(map(len, cells)) <= _LONG else object)
        found[name] = Column(of, name, values, missing, lines, "line", True)
    return found


def of_arrays(of: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, list[Column]]:
    """Typed columns: numbers (NaN: nothing is there), words ("": nothing), or lists, which are several columns."""
    found = {}
    for name, array in arrays.items():
        wide = {name: array} if array.ndim == 1 else {f"{name}[{i}]": array[:, i] for i in range(array.shape[1])}
        found[name] = [_typed(of, own, values) for own, values in wide.items()]
    return found


def _typed(of: str, name: str, values: NDArray[Any]) -> Column:
    numeric = values.dtype.kind in "fiub"
    values = values.astype(np.float64 if numeric else np.str_)
    missing = np.isnan(values) if numeric else values == ""
    return Column(of, name, values, missing, np.arange(1, len(values) + 1))
