"""How a table becomes numbers: what was asked, and what its training rows showed.

Written as `preprocess.json`, it makes the same numbers of the rows of another table.

    >>> fitted = Preprocess.read(json.loads(Path("runs/wards/preprocess.json").read_text()))
    >>> inputs = fitted.inputs(columns)                             # [n, features] float32

Features are numbers and dates in the order of the columns, then an indicator for each word of each column, then the
flags of what was missing. Numbers are written as the texts of `repr`, so that every bit comes back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError, meant
from turnout.core.random import FloatArray
from turnout.data._columns import BoolArray, Column, days, parts
from turnout.data.prepare import Scaling, scaling

FORMAT = 1
MOST_WORDS = 1000
WAYS = ("refuse", "drop", "mean", "median", "zero", "flag")  # to treat cells that say nothing
PARTS = ("year", "month", "day", "weekday")
_STRATEGIES = {"mean": "mean", "flag": "mean", "median": "median", "zero": "constant"}  # of scikit-learn's imputer
_LISTED = 12  # words in a sentence


@dataclass(frozen=True)
class Fitted:
    """What becomes of one column. `offset`, `scale` and `fill` have a value for each number that it gives."""

    name: str
    kind: str  # number, date, category; left out: id, ignore
    missing: str = "refuse"  # a way, or of words the one that is put there
    fill: Sequence[float] = ()
    offset: Sequence[float] = ()
    scale: Sequence[float] = ()
    values: Sequence[str] = ()  # the words of a category, each with an indicator
    origin: str = ""  # the day from which a date counts
    parts: bool = False  # whether a date gives year, month, day and weekday
    range: Sequence[float] = ()  # least and most that a number may be, where a schema says so
    outside: str = ""  # what becomes of numbers beyond it: clip, missing or refuse
    other: str = ""  # what becomes of other words than `values`: refused, missing, or own (an indicator, the last)

    @property
    def features(self) -> list[str]:
        """Names of what it gives, flags apart."""
        if self.kind == "category":
            return [f"{self.name}={value}" for value in self.values] + [f"{self.name}=*"] * (self.other == "own")
        return (
            [f"{self.name}.{part}" for part in PARTS] if self.parts else [self.name] * (self.kind in ("number", "date"))
        )

    def numbers(self, column: Column) -> FloatArray:
        """`[rows, width]`, NaN where nothing is."""
        if self.kind == "number":
            return self._within(column, column.numbers()[:, None])
        moments = column.moments()
        if self.parts:
            return parts(moments)
        return self._within(column, days(moments, np.datetime64(self.origin, "us"))[:, None])

    def _within(self, column: Column, numbers: FloatArray) -> FloatArray:
        if not self.range:
            return numbers
        low, high = self.range
        beyond = np.asarray((numbers < low) | (numbers > high))
        if self.outside == "refuse" and beyond.any():
            raise column.fault(beyond[:, 0], f"which is not within {low:g} to {high:g}")
        found: FloatArray = np.where(beyond, np.nan, numbers) if self.outside == "missing" else numbers.clip(low, high)
        return found

    def absent(self, column: Column) -> BoolArray:
        """Say in which rows there is nothing, or what counts as nothing."""
        if self.outside == "missing":
            return np.isnan(self.numbers(column)[:, 0])
        if self.other == "missing":
            return column.missing | ~np.isin(np.asarray(self.words(column), np.str_), np.asarray(self.values, np.str_))
        return column.missing

    def filled(self, numbers: FloatArray) -> FloatArray:
        return np.where(np.isnan(numbers), np.asarray(self.fill), numbers) if self.fill else numbers

    def indicators(self, column: Column) -> FloatArray:
        """`[rows, words]`, all 0 where nothing is."""
        values = np.asarray(self.values, np.str_)
        words = np.asarray(self.words(column), np.str_)
        absent = self.absent(column)
        if self.missing not in WAYS:
            words = np.where(absent, self.missing, words)
        there = ~absent | (self.missing not in WAYS)
        order = np.argsort(values)
        place = order[np.minimum(np.searchsorted(values, words, sorter=order), len(values) - 1)]
        strange = there & (values[place] != words)
        if strange.any() and self.other != "own":
            known = ", ".join(self.values[:_LISTED]) + (", …" if len(self.values) > _LISTED else "")
            raise column.fault(strange, f"a word that training never saw; it knows {known}")
        place = np.where(strange, len(values), place)
        found = np.zeros((len(words), len(values) + (self.other == "own")))
        found[np.flatnonzero(there), place[there]] = 1
        return found

    @staticmethod
    def words(column: Column) -> list[str]:
        """Cells as text: a number of a typed table as a person would write it."""
        if column.values.dtype.kind != "f":
            return [str(word) for word in column.values]
        return [str(int(value)) if value.is_integer() else str(value) for value in column.values.tolist()]

    def check(self, column: Column) -> None:
        """Raise where something is missing that may not be."""
        if self.missing in ("refuse", "drop") and (absent := self.absent(column)).any():
            why = "training saw no row without it" if self.missing == "refuse" else "training left such rows out"
            raise UserError(f"{column.where(int(absent.argmax()))} is missing, and {why}; fill it in")


@dataclass(frozen=True)
class Preprocess:
    """The transformation of a whole table; `target` and `client` name columns of it."""

    columns: Sequence[Fitted]
    target: dict[str, Any]  # name, task, and classes in their order, or offset and scale of each number
    client: str | None = None
    normalise: Scaling = "standard"
    read: dict[str, Any] = field(default_factory=dict)  # how the cells of a text table were read
    fitted_on: dict[str, Any] = field(default_factory=dict)  # rows, and rows of each client
    said: Sequence[str] = ()  # what was guessed or left out

    @property
    def used(self) -> list[Fitted]:
        return [one for one in self.columns if one.kind in ("number", "date", "category")]

    @property
    def features(self) -> list[str]:
        return [name for group in self._groups() for one in group for name in one.features] + [
            f"{one.name}=?" for one in self.used if one.missing == "flag"
        ]

    @property
    def indicators(self) -> int:
        """How many features at the end are indicators and flags."""
        return sum(len(one.features) for one in self._groups()[1]) + sum(one.missing == "flag" for one in self.used)

    def _groups(self) -> tuple[list[Fitted], list[Fitted]]:
        """Columns that give numbers, and those that give indicators."""
        return [o for o in self.used if o.kind != "category"], [o for o in self.used if o.kind == "category"]

    def raw(self, columns: Mapping[str, Column]) -> FloatArray:
        """`[rows, features]` before they are scaled."""
        found: list[NDArray[Any]] = []
        for one in self.used:
            if one.name not in columns:
                raise UserError(f"the table has no column {one.name}, which training used; {meant(one.name, columns)}")
            one.check(columns[one.name])
        numeric, wordy = self._groups()
        found += [one.filled(one.numbers(columns[one.name])) for one in numeric]
        found += [one.indicators(columns[one.name]) for one in wordy]
        flagged = [one for one in self.used if one.missing == "flag"]
        found += [one.absent(columns[one.name])[:, None].astype(np.float64) for one in flagged]
        return np.concatenate(found, axis=1)

    def scaled(self, raw: FloatArray) -> NDArray[np.float32]:
        """`[rows, features]` as the model is given them."""
        numeric = self._groups()[0]
        rest = self.indicators
        offset = np.array([v for one in numeric for v in one.offset] + [0.0] * rest)
        scale = np.array([v for one in numeric for v in one.scale] + [1.0] * rest)
        return np.asarray((raw - offset) / scale, np.float32)

    def inputs(self, columns: Mapping[str, Column]) -> NDArray[np.float32]:
        """`[rows, features]` of a table, as the model is given them."""
        return self.scaled(self.raw(columns))

    def fitted_scale(self, raw: FloatArray) -> Preprocess:
        """Take offset and scale from these training rows."""
        offset, scale = scaling(raw, self.normalise)
        done, start = dict[str, Fitted](), 0
        for one in self._groups()[0]:
            end = start + len(one.features)
            done[one.name] = replace(one, offset=offset[start:end].tolist(), scale=scale[start:end].tolist())
            start = end
        return replace(self, columns=[done.get(one.name, one) for one in self.columns])

    # -- as data ----------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """As JSON has it: no number that is not whole but as text."""
        columns = [
            {name: value for name, value in vars(one).items() if value not in ((), [], "", False)}
            for one in self.columns
        ]
        own = {name: getattr(self, name) for name in ("target", "client", "normalise", "read", "fitted_on")}
        said = {"format": FORMAT, "scope": "pooled", **own, "columns": columns, "features": self.features}
        found: dict[str, Any] = _texts({**said, "said": list(self.said)})
        return found

    @classmethod
    def load(cls, document: dict[str, Any]) -> Preprocess:
        """The inverse of `document`."""
        try:
            if document["format"] > FORMAT:
                raise UserError(
                    f"preprocess.json has format {document['format']}, this Turnout reads {FORMAT}; update it"
                )
            columns = [Fitted(**{n: _numbers(n, v) for n, v in one.items()}) for one in document["columns"]]
            target = {name: _numbers(name, value) for name, value in document["target"].items()}
            own = {name: document[name] for name in ("client", "normalise", "read", "fitted_on", "said")}
            return cls(columns, target, **own)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError("preprocess.json is not what a run writes; restore it") from error


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _texts(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(part) for part in value]
    return repr(value) if isinstance(value, float) else value


def _numbers(name: str, value: Any) -> Any:
    return [float(part) for part in value] if name in ("fill", "offset", "scale", "range") else value


def canonical(document: dict[str, Any]) -> str:
    """One line of JSON that is the same for the same content."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


# -- fitting --------------------------------------------------------------------------------------------------


def fit(column: Column, way: str, dates: Literal["days", "parts", "words"], train: BoolArray) -> Fitted:
    """Look at one column: at all rows for the words that it may have, at the training rows for the rest."""
    kind = column.kind(dates != "words")
    if kind == "category":
        return _category(column, way)
    if way not in WAYS:
        raise UserError(f"{column.of}: missing={way!r} for {column.name}, {kind}s; allowed: {', '.join(WAYS)}")
    origin = ""
    if kind == "date" and dates == "days":
        known = column.moments()[train & ~column.missing]
        origin = str((known if len(known) else column.moments()[~column.missing]).min().astype("datetime64[D]"))
    one = Fitted(column.name, kind, way, origin=origin, parts=kind == "date" and dates == "parts")
    if way in _STRATEGIES:
        one = replace(one, fill=_fill(one.numbers(column)[train], way, column))
    return one


def _fill(numbers: FloatArray, way: str, column: Column) -> list[float]:
    from sklearn.impute import SimpleImputer

    if np.isnan(numbers).all():
        raise UserError(f"{column.of}: column {column.name} has no value in any training row; leave it out with drop")
    imputer = SimpleImputer(strategy=_STRATEGIES[way], fill_value=0.0 if way == "zero" else None)
    return [float(value) for value in imputer.fit(numbers).statistics_]


def _category(column: Column, way: str) -> Fitted:
    column.check_words()
    values = sorted(set(np.asarray(Fitted.words(column), np.str_)[~column.missing].tolist()))
    if len(values) > MOST_WORDS:
        advice = "make it numeric, or leave it out with drop"
        raise UserError(f"{column.of}: column {column.name} has {len(values)} different words; {advice}")
    if way not in WAYS and way not in values:
        allowed = f"allowed: {', '.join(WAYS)}, or one of its words"
        raise UserError(f"{column.of}: missing={way!r} for {column.name}, which is none of its words; {allowed}")
    way = "flag" if way in ("mean", "median", "zero") else way  # words have no mean
    return Fitted(column.name, "category", way, values=values)
