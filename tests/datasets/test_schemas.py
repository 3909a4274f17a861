"""Schemas, and what follows from sums over the tables that fit one."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout import UserError
from turnout.data._columns import Column, of_arrays
from turnout.data.preprocess import Preprocess
from turnout.data.schema import Schema, read_columns
from turnout.data.sums import ONE, added, agreed, check_agreed, check_sums, median, moments, sums_of

WARDS = """
[study]
name = "wards"
target = "died"
[[column]]
name = "age"
kind = "number"
low = 0
high = 20
missing = "mean"
[[column]]
name = "sex"
kind = "category"
values = ["F", "M", "X"]
other = "own"
[[column]]
name = "died"
kind = "category"
values = ["no", "yes"]
"""


def schema(text: str = WARDS) -> Schema:
    return Schema.of(tomllib.loads(text))


def columns(ages: Any, sexes: Any = None, died: Any = None) -> dict[str, Column]:
    ages = np.asarray(ages, float)
    words = {"sex": sexes or ["F"] * len(ages), "died": died or ["no"] * len(ages)}
    found = of_arrays("table", {"age": ages, **{name: np.array(each) for name, each in words.items()}})
    return {name: own[0] for name, own in found.items()}


def test_mean_and_deviation_follow_from_whole_sums() -> None:
    parts = [[1, 2, 3, np.nan], [10, 14], [5]]
    total = added([sums_of(schema(), columns(part), 1) for part in parts])["age"]
    assert (total["n"], total["m"]) == (6, 1)
    assert moments(total, 0, 20) == pytest.approx((35 / 6, np.sqrt(335 / 6 - (35 / 6) ** 2)), abs=1e-10)


def test_a_large_offset_costs_no_digits() -> None:
    rows = 1e8 + np.random.default_rng(0).normal(size=(3, 100))
    wide = schema(WARDS.replace("low = 0", "low = 99999990").replace("high = 20", "high = 100000010"))
    total = added([sums_of(wide, columns(part), 1) for part in rows])["age"]
    assert moments(total, 99999990, 100000010)[1] == pytest.approx(rows.std(), rel=1e-11)


def test_a_median_is_off_by_half_a_bin_at_most() -> None:
    said = schema(WARDS.replace('missing = "mean"', 'missing = "median"'))
    ages = np.random.default_rng(1).uniform(0, 20, 301)
    assert median(sums_of(said, columns(ages), 1)["age"], 0, 20) == pytest.approx(np.median(ages), abs=20 / 256)


@pytest.mark.parametrize("values", ['["F", "M", "X"]', '"agree"'])
def test_rare_words_count_as_others(values: str) -> None:
    said = schema(WARDS.replace('["F", "M", "X"]', values))
    sites = {"a": "M" * 5 + "F" * 7, "b": "MMFFFX", "c": "F" * 4 + "M" * 6}
    told = {name: (len(words), sums_of(said, columns(range(len(words)), [*words]), 5)) for name, words in sites.items()}
    fitted = agreed(said, told)
    assert [*fitted.columns[1].values] == ["F", "M"]
    inputs = fitted.raw(columns([1, 2], ["X", "F"]))
    assert fitted.features == ["age", "sex=F", "sex=M", "sex=*"]
    assert inputs[:, 1:].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert "X" not in told["b"][1]["sex"]["words"] or values != '"agree"'
    again = check_agreed(said, fitted.document())
    assert Preprocess.load(fitted.document()) == again


def test_few_rows_tell_no_sum() -> None:
    assert sums_of(schema(), columns([3.25, np.nan]), 5)["age"] == {"n": 0, "m": 0, "s": 0, "q": 0, "bins": []}


def test_what_lies_outside_is_clipped_missing_or_refused() -> None:
    for way, expected in (("clip", [20.0, 5.0]), ("missing", [np.nan, 5.0])):
        fitted = schema(WARDS.replace("high = 20", f'high = 20\noutside = "{way}"')).columns[0].fitted
        np.testing.assert_array_equal(fitted.numbers(columns([25, 5])["age"])[:, 0], expected)
    refusing = schema(WARDS.replace("high = 20", 'high = 20\noutside = "refuse"'))
    assert "row 1: column age is '25.0', which is not within 0 to 20" in refusing.misfits("t", columns([25, 5]))[0]


def spoilt(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    said: Any = copy.deepcopy(sums_of(schema(), columns([1, 2, 3, 19, 5, 6, np.nan]), 1))
    into = said
    for part in path[:-1]:
        into = into[part]
    into[path[-1]] = value
    return {**said}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("age", "n"), 7),
        (("age", "n"), -1),
        (("age", "n"), True),
        (("age", "s"), 7 * ONE),
        (("age", "s"), 1e308),
        (("age", "q"), -1),
        (("age", "q"), 0),
        (("age", "bins"), [6]),
        (("age", "bins"), None),
        (("age",), []),
        (("sex", "words"), {"F": 7}),
        (("sex", "words", "F"), 8),
        (("sex", "words", "F"), "7"),
        (("sex", "others"), -7),
        (("ghost",), {}),
    ],
)
def test_sums_that_cannot_be_are_refused(path: tuple[Any, ...], value: Any) -> None:
    check_sums(schema(), spoilt(("age", "m"), 1), 7)
    with pytest.raises(ValueError, match=r"\w"):
        check_sums(schema(), spoilt(path, value), 7)


@pytest.mark.parametrize(
    ("column", "changed"),
    [
        (0, {"scale": ["0.0"]}),
        (0, {"offset": ["nan"]}),
        (0, {"range": ["0.0", "99.0"]}),
        (0, {"fill": []}),
        (0, {"name": "sex"}),
        (1, {"values": ["F", "Q"]}),
        (1, {"missing": "flag"}),
        (1, {"values": []}),
    ],
)
def test_a_preprocessing_of_another_schema_is_refused(column: int, changed: dict[str, Any]) -> None:
    document = agreed(schema(), {"a": (9, sums_of(schema(), columns(range(9)), 1))}).document()
    check_agreed(schema(), document)
    document["columns"][column] |= changed
    with pytest.raises(ValueError, match=r"\w"):
        check_agreed(schema(), document)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('target = "died"', 'target = "dead"', "did you mean died?"),
        ('kind = "number"', 'kind = "nummer"', "did you mean number?"),
        ("low = 0", "low = 30", "low = 30 and high = 20"),
        ("low = 0", 'low = "0"', "should be of type float"),
        ("low = 0", "colour = 3", "colour"),
        ('values = ["no", "yes"]', 'values = "agree"\nother = "own"', "two at least"),
        ('other = "own"', 'other = "refuse"\nmissing = "Q"', "missing"),
        ('values = ["F", "M", "X"]', 'values = ["F", "F"]', "twice"),
        ('name = "sex"', 'name = "age"', "declared twice"),
        ('other = "own"', 'other = "missing"', "missing = 'refuse'"),
        ("[study]", "[study]\ntest_fraction = 1.5", "below 1 together"),
        ("[study]", "[study]\nsize = 1", "size"),
        ("[study]", "[studies]\n[study]", "studies"),
    ],
)
def test_a_wrong_schema_is_one_sentence(old: str, new: str, sentence: str) -> None:
    with pytest.raises(UserError, match=r"schema\.toml") as told:
        schema(WARDS.replace(old, new))
    assert sentence in str(told.value)


def test_tables_differ_in_form_and_not_in_content(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age;sex;died\n1,5;F;no\n;M;yes\n")
    found = read_columns(tmp_path / "a.csv", ";", ",")
    assert not schema().misfits("a.csv", found)
    np.testing.assert_array_equal(found["age"].numbers(), [1.5, np.nan])
    with pytest.raises(UserError, match="there is no such table"):
        read_columns(tmp_path / "b.csv")
