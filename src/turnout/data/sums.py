"""What everybody's rows have in common, as sums of whole numbers over sites: means, deviations, words, what is missing.

A number x between low and high counts as u = (x - c) / h within -1 to 1, c the centre and h half the width. A site says
how many it has, n, how many are missing, m, and

    s = sum rint(2^40 u),    q = sum rint(2^40 u^2),    and for a median how many lie in each of 256 equal bins.

Whole numbers add up to the same in any order, and room is for 2^23 rows. Mean and deviation follow from the sums:

    >>> moments({"n": 6, "m": 1, "s": s, "q": q}, 0.0, 20.0)     # of 1, 2, 3, 10, 14, 5
    (5.833333333, 4.669641909)

Nothing is said of a column of which a site has fewer rows than `least`: a sum of one is a cell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from turnout.core.errors import UserError
from turnout.data._columns import Column
from turnout.data.preprocess import MOST_WORDS, Fitted, Preprocess
from turnout.data.schema import AGREE, Declared, Schema

ONE = 1 << 40  # of fixed point
BINS = 256
LONGEST = 200  # characters of a word
_FLAT = 1e-12  # a variance of u below which a column does not vary
Sums = dict[str, Any]  # of a column: n, m, s, q, and bins or words


def sums_of(schema: Schema, columns: Mapping[str, Column], least: int) -> dict[str, Sums]:
    """Sum up some rows of one site's table."""
    found = {one.name: _sums(one, columns[one.name], least) for one in schema.features}
    return found | {schema.target: _sums(schema.goal, columns[schema.target], least)}


def _sums(one: Declared, column: Column, least: int) -> Sums:
    if one.kind == "category":
        return _words(one, column, least)
    numbers = one.fitted.numbers(column)[:, 0]
    known = numbers[~np.isnan(numbers)]
    width = BINS if one.missing == "median" else 0
    if len(known) < least:
        return {"n": 0, "m": 0, "s": 0, "q": 0, "bins": [0] * width}
    u = (known - (one.low + one.high) / 2) / ((one.high - one.low) / 2)
    bins = np.bincount(np.minimum(((u + 1) * (BINS / 2)).astype(np.int64), BINS - 1), minlength=BINS)[:width]
    squares = np.rint(ONE * u * u).astype(np.int64)
    whole = int(np.rint(ONE * u).astype(np.int64).sum()), int(squares.sum())
    return {"n": len(known), "m": len(numbers) - len(known), "s": whole[0], "q": whole[1], "bins": bins.tolist()}


def _words(one: Declared, column: Column, least: int) -> Sums:
    words = Counter(word for word, gone in zip(Fitted.words(column), column.missing, strict=True) if not gone)
    if one.values == AGREE:
        told = {word: n for word, n in words.items() if n >= least and len(word) <= LONGEST and word.isprintable()}
        told = dict(sorted(sorted(told.items()), key=lambda pair: -pair[1])[:MOST_WORDS])
    else:
        told = {word: words[word] for word in one.values}
    known = int((~column.missing).sum())
    return {"n": known, "m": int(column.missing.sum()), "words": told, "others": known - sum(told.values())}


# -- what a site has said ---------------------------------------------------------------------------------------


def check_sums(schema: Schema, said: Any, rows: int) -> dict[str, Sums]:
    """Take what somebody untrusted says of that many rows; `ValueError` unless it is possible."""
    declared = {one.name: one for one in (*schema.features, schema.goal)}
    if not isinstance(said, dict) or said.keys() != declared.keys():
        raise ValueError("other columns than those of the schema")
    return {name: _possible(one, said[name], rows) for name, one in declared.items()}


def _possible(one: Declared, said: Any, rows: int) -> Sums:
    parts = {"n", "m", "words", "others"} if one.kind == "category" else {"n", "m", "s", "q", "bins"}
    if not isinstance(said, dict) or said.keys() != parts:
        raise ValueError("other sums than those asked for")
    n, m = _count(said["n"]), _count(said["m"])
    if n + m not in ({rows} if one.kind == "category" else {0, rows}):
        raise ValueError("other counts than its rows")
    if one.kind == "category":
        words = said["words"]
        if not isinstance(words, dict) or len(words) > MOST_WORDS:
            raise ValueError("too many words")
        if any(not isinstance(word, str) or not 0 < len(word) <= LONGEST or not word.isprintable() for word in words):
            raise ValueError("a word that nobody can read")
        if one.values != AGREE and words.keys() != set(one.values):
            raise ValueError("other words than those of the schema")
        if sum(map(_count, words.values())) + _count(said["others"]) != n:
            raise ValueError("words that do not add up")
        return said
    s, q = said["s"], said["q"]
    if type(s) is not int or type(q) is not int or not abs(s) <= n * ONE or not 0 <= q <= n * ONE:
        raise ValueError("sums beyond the range")
    if s * s > n * ONE * (q + n) + n * n * ONE:  # Cauchy and Schwarz, but for rounding
        raise ValueError("a sum that its squares do not allow")
    wide = BINS if one.missing == "median" else 0
    if (
        not isinstance(said["bins"], list)
        or len(said["bins"]) != wide
        or (wide and sum(map(_count, said["bins"])) != n)
    ):
        raise ValueError("bins that do not add up")
    return said


def _count(said: Any) -> int:
    if type(said) is not int or not 0 <= said < 1 << 40:
        raise ValueError("not a count")
    return said


# -- what all say together --------------------------------------------------------------------------------------


def added(parts: Sequence[dict[str, Sums]]) -> dict[str, Sums]:
    """Add what sites have said, column by column."""
    total: dict[str, Sums] = {}
    for part in parts:
        for name, own in part.items():
            into = total.setdefault(name, {})
            for key, value in own.items():
                if isinstance(value, dict):
                    before = into.setdefault(key, {})
                    into[key] = before | {word: before.get(word, 0) + count for word, count in value.items()}
                elif isinstance(value, list):
                    into[key] = [a + b for a, b in zip(into.get(key, [0] * len(value)), value, strict=True)]
                else:
                    into[key] = into.get(key, 0) + value
    return total


def moments(sums: Sums, low: float, high: float) -> tuple[float, float]:
    """Mean and standard deviation; 1 where nothing varies."""
    centre, half = (low + high) / 2, (high - low) / 2
    mean = sums["s"] / (ONE * sums["n"])
    variance = sums["q"] / (ONE * sums["n"]) - mean * mean
    return centre + half * mean, half * math.sqrt(variance) if variance >= _FLAT else 1.0


def median(sums: Sums, low: float, high: float) -> float:
    """The centre of the bin in which half of them are reached."""
    first = int(np.searchsorted(np.cumsum(sums["bins"]), sums["n"] / 2))
    return low + (high - low) * (first + 0.5) / BINS


def agreed(schema: Schema, by_site: Mapping[str, tuple[int, dict[str, Sums]]], said: Sequence[str] = ()) -> Preprocess:
    """Make of the sums of sites, with how many rows each has, how all their tables become numbers."""
    total = added([sums for _, sums in by_site.values()])
    told = [*said]
    columns = [
        _fitted(one, total[one.name], schema.min_cell, told) if one in schema.features else one.fitted
        for one in schema.columns
        if one.name != schema.target
    ]
    target: dict[str, Any] = {"name": schema.target, "task": schema.task}
    if schema.task == "classification":
        target["classes"] = [*schema.goal.values]
    else:
        offset, scale = _moments(schema.goal, total[schema.target])
        target |= {"offset": [offset], "scale": [scale]}
    rows = {name: count for name, (count, _) in by_site.items()}
    lacking = {one.name: total[one.name]["m"] for one in schema.features if total[one.name]["m"]}
    on = {"rows": sum(rows.values()), "clients": [list(pair) for pair in rows.items()], "missing": lacking}
    return Preprocess(columns, target, None, "standard", {}, on | {"schema": schema.digest}, told)


def _moments(one: Declared, sums: Sums) -> tuple[float, float]:
    if not sums["n"]:
        raise UserError(
            f"schema.toml: column {one.name} has a value at no site; leave it out, or make it kind = 'ignore'"
        )
    return moments(sums, one.low, one.high)


def _fitted(one: Declared, sums: Sums, least: int, said: list[str]) -> Fitted:
    if one.kind == "category":
        words = sums["words"]
        values = sorted(words) if one.values == AGREE else [*one.values]
        if one.other == "own" or (one.other == "missing" and one.missing != "drop"):
            rare = [word for word in values if 0 < words[word] < least and word != one.missing]
            values = [word for word in values if word not in rare]
            said += [f"{one.name}: words of fewer than {least} rows count as others ({len(rare)})"] if rare else []
        if not values or len(values) > MOST_WORDS:
            raise UserError(
                f"schema.toml: column {one.name}: sites agree on {len(values)} words; allowed: 1 to {MOST_WORDS}"
            )
        return replace(one.fitted, values=values)
    mean, scale = _moments(one, sums)
    fill = {"mean": mean, "flag": mean, "zero": 0.0}.get(one.missing)
    fill = median(sums, one.low, one.high) if one.missing == "median" else fill
    return replace(one.fitted, fill=[] if fill is None else [fill], offset=[mean], scale=[scale])


def check_agreed(schema: Schema, document: Any) -> Preprocess:
    """Take what somebody untrusted says was agreed on; `ValueError` unless it is of this schema."""
    found = Preprocess.load(document)
    declared = [one for one in schema.columns if one.name != schema.target]
    if [one.name for one in found.columns] != [one.name for one in declared]:
        raise ValueError("other columns than those of the schema")
    for one, fitted in zip(declared, found.columns, strict=True):
        _check_fitted(one, fitted)
    goal: dict[str, Any] = {"name": schema.target, "task": schema.task}
    target = {name: value for name, value in found.target.items() if name not in ("offset", "scale")}
    if schema.task == "classification":
        goal["classes"] = [*schema.goal.values]
    else:
        _check_scale(found.target.get("offset"), found.target.get("scale"))
    if target != goal or found.normalise != "standard" or found.client is not None:
        raise ValueError("another target than that of the schema")
    return found


def _check_fitted(one: Declared, fitted: Fitted) -> None:
    plain = replace(fitted, fill=(), offset=(), scale=(), values=(), range=[*fitted.range])
    if plain != replace(one.fitted, fill=(), values=(), range=[*one.fitted.range]):
        raise ValueError(f"column {one.name} is treated otherwise than the schema has it")
    if one.kind == "category":
        words = [*fitted.values]
        known = words if one.values == AGREE else [value for value in one.values if value in words]
        if not 0 < len(words) <= MOST_WORDS or words != known or len(set(words)) < len(words):
            raise ValueError(f"column {one.name} has other words")
        if not all(isinstance(word, str) and 0 < len(word) <= LONGEST for word in words):
            raise ValueError(f"column {one.name} has other words")
    elif one.kind in ("number", "date"):
        _check_scale(fitted.offset, fitted.scale)
        filled = one.missing in ("mean", "median", "zero", "flag")
        if len(fitted.fill) != filled or not all(map(math.isfinite, fitted.fill)):
            raise ValueError(f"column {one.name} is filled in otherwise")


def _check_scale(offset: Any, scale: Any) -> None:
    if len(offset) != 1 or len(scale) != 1 or not (math.isfinite(offset[0]) and 0 < scale[0] < math.inf):
        raise ValueError("no mean or deviation")
