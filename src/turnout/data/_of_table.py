"""From the columns of a table to a dataset: rows and columns left out, the test set held out, the rest fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError, unknown
from turnout.core.random import IntArray
from turnout.data._columns import BoolArray, Column
from turnout.data.dataset import Dataset
from turnout.data.prepare import Scaling, hold_out, parted, scaling
from turnout.data.preprocess import WAYS, Fitted, Preprocess, fit

Missing = str | Mapping[str, str]
Dates = Literal["days", "parts", "words"]
Ids = Literal["drop", "keep"]
Aim = Literal["auto", "classification", "regression"]
OTHERS = "*"  # in place of a column, for the way of all that are not named
FEW_CLASSES = 20  # numbers that are taken for classes however few rows have each
MANY_CLASSES = 100  # words that are taken for classes only where
ROWS_A_CLASS = 10  # so many rows have each


@dataclass(frozen=True)
class Asked:
    """What a user says of a table."""

    targets: Sequence[str]  # columns that are predicted: several are one list
    target: str
    client: str | None
    task: Aim
    ignored: Sequence[str]
    missing: Missing
    dates: Dates
    identifiers: Ids
    normalise: Scaling
    test_fraction: float
    seed: int
    read: dict[str, Any] = field(default_factory=dict)  # how a text table was read

    def way(self, name: str) -> str:
        """How cells of a column that say nothing are treated."""
        given = self.missing
        return given if isinstance(given, str) else given.get(name, given.get(OTHERS, "refuse"))

    def check(self, dataset: str, columns: Mapping[str, Column]) -> None:
        for name in (*self.targets, *([self.client] if self.client else []), *self.ignored):
            if name not in columns:
                raise unknown(f"dataset {dataset}: column", name, columns)
        if isinstance(self.missing, str) and self.missing not in WAYS:
            raise unknown(f"dataset {dataset}: option missing", self.missing, WAYS)
        for name in () if isinstance(self.missing, str) else self.missing:
            if name not in columns and name != OTHERS:
                raise unknown(f"dataset {dataset}: missing, for the column", name, columns)


def made(dataset: str, columns: Mapping[str, Column], asked: Asked, owner: Column | None = None) -> Dataset:
    """Make a dataset of columns; `owner` says whose each row is, where no column does."""
    asked.check(dataset, columns)
    owner = columns[asked.client] if asked.client else owner
    said: list[str] = []
    names, left_out = _chosen(dataset, columns, asked, said)
    kept = _kept(columns, asked, names, owner, said)
    if not kept.any():
        raise UserError(f"dataset {dataset}: no rows are left")
    columns = {name: one.rows(kept) for name, one in columns.items()}
    goal, targets, facts = _goal([columns[name] for name in asked.targets], asked, said)
    classes = len(goal["classes"]) if "classes" in goal else None
    groups = None
    if owner is not None:
        groups, facts["clients"] = owner.rows(kept).codes()
    strata = groups if groups is not None else targets if classes else np.zeros(len(targets), np.int64)
    train, test = hold_out(strata, asked.test_fraction, asked.seed)
    trains = np.isin(np.arange(len(targets)), train)
    inputs = [one for name, one in columns.items() if name not in (*asked.targets, asked.client)]
    each = [_fitted(one, asked, one.name in names, one.name in left_out, trains) for one in inputs]
    fitted = Preprocess(each, goal, asked.client, asked.normalise, asked.read, _whose(groups, facts, train), said)
    raw = fitted.raw(columns)
    fitted = fitted.fitted_scale(raw[train])
    if classes is None:
        offset, scale = scaling(targets[train], asked.normalise)
        targets = (targets - offset) / scale
        facts |= {"target_offset": offset, "target_scale": scale}
        goal |= {"offset": offset.tolist(), "scale": scale.tolist()}
    facts = {"features": fitted.features, **facts, "preprocess": fitted.document()}
    labels = targets.astype(np.float32 if classes is None else np.int64)
    return parted(dataset, fitted.scaled(raw), labels, classes, train, test, groups, facts)


def _chosen(dataset: str, columns: Mapping[str, Column], asked: Asked, said: list[str]) -> tuple[list[str], list[str]]:
    """Choose the columns to learn from; and those that are left out without being told to be."""
    others = {*asked.targets, *([asked.client] if asked.client else []), *asked.ignored}
    names = [name for name in columns if name not in others]
    left_out = [name for name in names if _left_out(columns[name], asked, said)]
    if len(left_out) == len(names):
        where = next((one.of for one in columns.values()), f"dataset {dataset}")
        why = "".join(f"; {sentence}" for sentence in said)
        raise UserError(f"{where} has no column left to be a feature{why}")
    return [name for name in names if name not in left_out], left_out


def _goal(
    goals: Sequence[Column], asked: Asked, said: list[str]
) -> tuple[dict[str, Any], NDArray[Any], dict[str, object]]:
    """Read what is predicted: what `preprocess.json` says of it, the classes by number or the values `[rows, width]`,
    and facts."""
    goal: dict[str, Any] = {"name": asked.target, "task": _task(goals, asked, said)}
    if goal["task"] == "regression":
        return goal, np.stack([one.numbers() for one in goals], axis=1), {}
    targets, classes = goals[0].codes()
    return goal | {"classes": [str(name) for name in classes]}, targets, {"classes": classes}


def _left_out(column: Column, asked: Asked, said: list[str]) -> bool:
    """Say whether a column is none to learn from: nothing is in it, or it numbers the rows."""
    if column.missing.all() and asked.way(column.name) != "refuse":
        said.append(f"column {column.name} is empty and was left out")
        return True
    if asked.identifiers == "drop" and column.is_identifier():
        why = "was left out: nearly all its values differ, as those of an identifier do"
        said.append(f"column {column.name} {why} (identifiers=keep keeps such columns)")
        return True
    if (remark := column.remark()) is not None:
        said.append(remark)
    return False


def _kept(
    columns: Mapping[str, Column], asked: Asked, names: Sequence[str], owner: Column | None, said: list[str]
) -> BoolArray:
    """Say which rows stay: those that have a target and a client, and all that may not be missing."""
    needed = [columns[name] for name in asked.targets] + ([] if owner is None else [owner])
    kept = np.ones(len(needed[0].missing), bool)
    for one in needed:
        if one.missing.any() and asked.way(one.name) == "refuse":
            raise _absent(
                one, f"the option missing, or {_ways(one)} for this column alone, takes drop: it cannot be made up"
            )
        if one.missing.any():
            said.append(f"{_rows(one.missing)} without {one.name} were left out")
        kept &= ~one.missing
    for one in (columns[name] for name in names):
        if one.missing.any() and asked.way(one.name) == "refuse":
            raise _absent(
                one, f"the option missing, or {_ways(one)} for this column alone, takes {', '.join(WAYS[1:])}"
            )
        if asked.way(one.name) == "drop":
            gone = one.missing & kept
            kept &= ~one.missing
            if gone.any():
                said.append(f"{_rows(gone)} without {one.name} were left out")
        elif one.missing[kept].any():
            said.append(f"{one.name} is missing in {_rows(one.missing & kept)}: {asked.way(one.name)}")
    return kept


def _ways(column: Column) -> str:
    return f"missing.{column.name}"


def _rows(which: BoolArray) -> str:
    return f"{which.sum()} row{'s' if which.sum() > 1 else ''} of {len(which)}"


def _absent(column: Column, remedy: str) -> UserError:
    nothing = " (null or NaN)" if not column.loose else ""
    others = int(column.missing.sum()) - 1
    more = f", as in {others} more row{'s' * (others > 1)}" if others else ""
    return UserError(f"{column.where(int(column.missing.argmax()))} is missing{nothing}{more}; {remedy}")


def _task(goals: Sequence[Column], asked: Asked, said: list[str]) -> str:
    """Choose what is learnt, aloud where nobody said it."""
    goal, task = goals[0], asked.task
    if len(goals) > 1 or asked.target not in asked.targets:
        if task == "classification":
            raise UserError(f"{goal.of}: target {asked.target} holds lists; classes are one value a row")
        return "regression"
    if task != "auto":
        return task
    kind, different, rows = goal.kind(), len(np.unique(goal.values)), len(goal.values)
    if kind == "date":
        raise UserError(f"{goal.of}: target {goal.name} holds dates; predict a number or a class")
    enough = different <= MANY_CLASSES and rows >= ROWS_A_CLASS * different
    if kind == "number":
        numbers = goal.numbers()
        whole = bool((numbers == np.rint(numbers)).all())
        if not (different <= FEW_CLASSES or (whole and enough)):
            said.append(f"target {goal.name} is taken for a number (task=classification takes it for classes)")
            return "regression"
    elif different > MANY_CLASSES and rows < ROWS_A_CLASS * different:
        why = f"{different} different words in {rows} rows are too many to be classes"
        raise UserError(f"{goal.of}: target {goal.name} is no target: {why}; choose another column")
    _, values = goal.codes()
    words = ", ".join(map(str, values[:6])) + (", …" if len(values) > 6 else "")
    other = "" if kind == "category" else " (task=regression takes it for a number)"
    said.append(f"target {goal.name} is taken for one of {len(values)} classes, {words}{other}")
    return "classification"


def _fitted(column: Column, asked: Asked, used: bool, left_out: bool, train: BoolArray) -> Fitted:
    if used:
        way = asked.way(column.name)
        own = not isinstance(asked.missing, str) and column.name in asked.missing
        if not own and way not in ("refuse", "drop") and not column.missing.any():
            wordy = column.kind(asked.dates != "words") == "category"
            way = "refuse" if wordy else "mean" if way == "flag" else way  # nothing could be learnt of a flag
        return fit(column, way, asked.dates, train)
    return Fitted(column.name, "id" if left_out and not column.missing.all() else "ignore")


def _whose(groups: IntArray | None, facts: Mapping[str, Any], train: IntArray) -> dict[str, Any]:
    """Say on whose rows all of it is fitted."""
    found: dict[str, Any] = {"rows": len(train)}
    if groups is not None:
        counts = Counter(groups[train].tolist())
        found["clients"] = [[str(name), counts[i]] for i, name in enumerate(facts["clients"])]
    return found
