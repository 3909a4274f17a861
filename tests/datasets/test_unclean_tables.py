"""Tables as people have them: what is missing, dates, identifiers, targets that nobody explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tiny_files import Refused, write

from turnout import Population
from turnout.data import Dataset, load
from turnout.data._columns import of_cells
from turnout.data.prepare import hold_out
from turnout.data.preprocess import Preprocess, canonical
from turnout.data.readers import read_table
from unclean import SITES, write_hospitals

EUROPEAN = {"separator": ";", "decimal": ","}


def hospitals(path: Path, **options: Any) -> Dataset:
    if not path.exists():
        write_hospitals(path)
    return load(
        "csv_table", **({"path": path, "target": "died", "client": "hospital", "missing": "flag"} | EUROPEAN | options)
    )


def table(path: Path, header: str, *rows: str) -> Path:
    return write(path, "\n".join([header, *rows]) + "\n")


def said(data: Dataset) -> str:
    return "\n".join(data.facts["preprocess"]["said"])  # type: ignore[index]


@pytest.mark.parametrize("way", ["mean", "median", "zero"])
def test_scikit_learn_makes_the_same_numbers(way: str, tmp_path: Path) -> None:
    data = hospitals(tmp_path / "h.csv", missing=way)
    cells = read_table("x", tmp_path / "h.csv", separator=";")
    number = lambda cell: float(cell.replace(",", ".")) if cell else np.nan  # noqa: E731
    numbers = np.array([[number(c) for c in cells.cells(name)] for name in ("age", "creatinine")]).T
    days = np.array(cells.cells("admitted"), "datetime64[D]").astype(float)
    words = np.array([[c or "~" for c in cells.cells(name)] for name in ("smoker", "ward")], object).T
    rows = np.column_stack([days, numbers, words])
    train, _ = hold_out(np.unique(cells.cells("hospital"), return_inverse=True)[1], 0.2, 0)
    fill = {"mean": "mean", "median": "median", "zero": "constant"}[way]
    both = make_pipeline(SimpleImputer(strategy=fill, fill_value=0 if way == "zero" else None), StandardScaler())
    oracle = ColumnTransformer([("n", both, [0, 1, 2]), ("w", OneHotEncoder(), [3, 4])], sparse_threshold=0)
    expected = oracle.fit(rows[train]).transform(rows)
    fitted = Preprocess.load(data.facts["preprocess"])  # type: ignore[arg-type]
    assert fitted.features == [
        "admitted", "age", "creatinine", "smoker=no", "smoker=yes", "ward=A", "ward=B", "ward=C", "smoker=?"
    ]  # fmt: skip
    order = [0, 1, 2, 3, 4, 6, 7, 8, 5]  # scikit-learn's word for nothing stands among the others
    np.testing.assert_allclose(fitted.inputs(of_cells(cells, ",")), expected[:, order], atol=1e-6)
    np.testing.assert_array_equal(data.inputs, fitted.inputs(of_cells(cells, ","))[train])


def test_what_was_fitted_is_data_that_comes_back_bit_for_bit(tmp_path: Path) -> None:
    data = hospitals(tmp_path / "h.csv")
    document: Any = data.facts["preprocess"]
    text = canonical(document)
    assert text.isascii()
    again = Preprocess.load(json.loads(text, parse_float=pytest.fail))  # no number that is not whole
    assert again.document() == document
    assert (again.client, again.target["classes"]) == ("hospital", ["no", "yes"])
    counts = np.bincount(data.groups).tolist()  # type: ignore[arg-type]
    assert document["fitted_on"] == {
        "rows": len(data),
        "clients": [list(pair) for pair in zip(SITES, counts, strict=True)],
    }
    assert [one["kind"] for one in document["columns"]] == ["id", "date", "number", "number", "category", "category"]
    people = Population.of(data, 6, "natural")
    assert people.origin is not None
    assert people.origin.table == document
    people.save(tmp_path / "people")
    again_saved = Population.open(tmp_path / "people").origin
    assert again_saved is not None
    assert again_saved.table == document


def test_what_was_guessed_or_left_out_is_said(tmp_path: Path) -> None:
    data = hospitals(tmp_path / "h.csv")
    assert "column patient_id was left out: nearly all its values differ" in said(data)
    assert "target died is taken for one of 2 classes, no, yes" in said(data)
    assert "age is missing in" in said(data)
    assert "patient_id=" not in str(data.facts["features"])
    kept = hospitals(tmp_path / "h.csv", identifiers="keep")
    assert "patient_id=P000000" in kept.facts["features"]  # type: ignore[operator]
    fewer = Population.of(data, 4, "natural").origin
    assert fewer is not None
    assert fewer.said[-1] == "clients.count=4 of the 6 in the data: left out are Turin, Zürich"
    dealt = Population.of(data, 4).origin
    assert dealt is not None
    assert "column hospital says whose each row is, and the partition deals them anew" in dealt.said[-1]


def test_ways_to_treat_what_is_missing(tmp_path: Path) -> None:
    rows = ["1,red,a", ",blue,b", "3,,a", "8,red,b", "2,blue,", "6,red,a"]
    path = table(tmp_path / "t.csv", "x,colour,y", *rows)

    def read(missing: Any) -> Dataset:
        return load("csv_table", path=path, target="y", missing=missing, normalise="none", test_fraction=0.0)

    assert read("drop").inputs[:, 0].tolist() == [1, 8, 6]
    assert "1 row of 6 without y were left out" in said(read("flag"))
    assert read("mean").inputs[:, 0].tolist() == [1, 4.5, 3, 8, 6]
    assert read("median").inputs[1, 0] == 4.5
    assert read("zero").inputs[1, 0] == 0
    flagged = read("flag")
    assert flagged.facts["features"] == ["x", "colour=blue", "colour=red", "x=?", "colour=?"]
    assert flagged.inputs[1].tolist() == [4.5, 1, 0, 1, 0]
    assert flagged.inputs[2].tolist() == [3, 0, 0, 0, 1]
    assert read({"*": "flag", "colour": "red"}).facts["features"] == ["x", "colour=blue", "colour=red", "x=?"]
    put = read({"x": "median", "colour": "red", "y": "drop"})
    assert put.facts["features"] == ["x", "colour=blue", "colour=red"]
    assert put.inputs[2].tolist() == [3, 0, 1]


def test_dates(tmp_path: Path) -> None:
    rows = ["2026-03-01,0", "2026-03-02T12:00,1", "2024-02-29,0", "2026-01-05,1"]
    path = table(tmp_path / "d.csv", "seen,y", *rows)

    def read(dates: str) -> Dataset:
        return load("csv_table", path=path, target="y", dates=dates, normalise="none", test_fraction=0.0)

    assert read("days").inputs[:, 0].tolist() == [731, 732.5, 0, 676]  # since the first of them
    parts = read("parts")
    assert parts.facts["features"] == ["seen.year", "seen.month", "seen.day", "seen.weekday"]
    assert parts.inputs.tolist() == [[2026, 3, 1, 6], [2026, 3, 2, 0], [2024, 2, 29, 3], [2026, 1, 5, 0]]
    assert len(read("words").facts["features"]) == 4  # type: ignore[arg-type]
    german = table(tmp_path / "g.csv", "seen,y", "1.3.2026,0", "05.01.2026,1")
    assert load("csv_table", path=german, target="y", normalise="none", test_fraction=0.0).inputs.tolist() == [
        [55],
        [0],
    ]


@pytest.mark.parametrize(
    ("targets", "classes", "words"),
    [
        (["yes", "no"], 2, "one of 2 classes, no, yes"),
        ([str(i % 20) for i in range(40)], 20, "one of 20 classes"),
        ([f"{i / 7:.3f}" for i in range(40)], None, "taken for a number"),
        ([str(i % 30) for i in range(300)], 30, "task=regression takes it for a number"),
    ],
)
def test_the_target_is_guessed_aloud(targets: list[str], classes: int | None, words: str, tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "x,y", *(f"{i % 3}.5,{y}" for i, y in enumerate(targets)))
    data = load("csv_table", path=path, target="y")
    assert data.num_classes == classes
    assert words in said(data)
    explicit = load("csv_table", path=path, target="y", task="classification")
    assert "taken for" not in said(explicit)


@pytest.mark.parametrize(
    ("header", "rows", "options", "words"),
    [
        ("x;y", ["1;0"], {}, ["one column, 'x;y'", "separator=';'"]),
        ("x,y", ["1,a"], {"separator": ";;"}, ["separator=';;'"]),
        ("x,y", ['"36,6",0', '"36,9",1'], {}, ["column x has decimal commas, such as '36,6'", "decimal=','"]),
        ("x,y", ["03/04/2026,0", "05/04/2026,1"], {}, ["'03/04/2026'", "day and month", "2026-03-31"]),
        ("x,y", [f"1,w{i}" for i in range(300)], {}, ["target y is no target: 300 different words in 300 rows"]),
        ("x,y", ["1,2026-03-01"], {}, ["target y holds dates"]),
        ("x,y", ["1,a", ",b", ",c"], {}, ["line 3: column x is missing, as in 1 more row", "missing.x for this"]),
        ("x,y", ["1,a", "2,"], {"missing": {"x": "mean"}}, ["line 3: column y is missing", "missing.y for this"]),
        ("x,y", ["1,a"], {"missing": "men"}, ["did you mean mean?"]),
        ("x,y", ["1,a"], {"missing": {"z": "mean"}}, ["missing, for the column", "'z'"]),
        ("x,y", ["1,a"], {"missing": {"x": "often"}}, ["missing='often' for x, numbers", "refuse, drop, mean"]),
        ("x,y", ["w,a"], {"missing": {"x": "v"}}, ["'v' for x, which is none of its words"]),
        ("x,y", ["w,a"], {"decimal": ";"}, ["decimal", "allowed"]),
        ("x,y", [f"k{i},a" for i in range(30)], {}, ["no column left", "column x was left out"]),
        ("x,y", ["1,a", "9,"], {"missing": "drop", "test_fraction": 0.0, "drop": ["x"]}, ["no column left"]),
    ],
)  # fmt: skip
def test_wrong_turns_are_one_sentence(
    header: str, rows: list[str], options: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused
) -> None:
    with refused("csv_table", *words):
        load("csv_table", path=table(tmp_path / "t.csv", header, *rows), target="y", **options)


def test_words_for_nothing_and_words_among_numbers(tmp_path: Path) -> None:
    rows = [f"{i}.5,{i % 2}" for i in range(30)]
    path = table(tmp_path / "t.csv", "lab,y", *rows, "unknown,1")
    assert "column lab is read as words because of 'unknown' in line 32" in said(
        load("csv_table", path=path, target="y", identifiers="keep")
    )
    data = load("csv_table", path=path, target="y", missing_words=["Unknown"], missing="mean")
    assert data.facts["features"] == ["lab"]
    empty = table(tmp_path / "e.csv", "lab,note,y", "1,,0", "2,NA,1")
    assert "column note is empty and was left out" in said(load("csv_table", path=empty, target="y", missing="zero"))


def test_parquet_has_the_same(tmp_path: Path) -> None:
    write_hospitals(tmp_path / "h.csv")
    cells = read_table("x", tmp_path / "h.csv", separator=";")
    number = lambda cell: float(cell.replace(",", ".")) if cell else None  # noqa: E731
    columns: dict[str, Any] = {name: [cell or None for cell in cells.cells(name)] for name in cells.header}
    columns |= {name: [number(cell) for cell in cells.cells(name)] for name in ("age", "creatinine")}
    columns["admitted"] = pa.array(cells.cells("admitted")).cast(pa.date32())
    pq.write_table(pa.table(columns), tmp_path / "h.parquet")
    one = hospitals(tmp_path / "h.csv")
    other = load("parquet", path=tmp_path / "h.parquet", target="died", client="hospital", missing="flag")
    assert other.facts["features"] == one.facts["features"]
    np.testing.assert_array_equal(one.inputs, other.inputs)
    np.testing.assert_array_equal(one.targets, other.targets)
    assert other.facts["clients"] == one.facts["clients"] == list(SITES)


def test_damaged_preprocessing_is_one_sentence(refused: Refused) -> None:
    for document in ({}, {"format": 1, "columns": [{"name": "x", "kind": "number", "fil": ["1"]}], "target": {}}):
        with refused("preprocess.json is not what a run writes"):
            Preprocess.load(document)
    with refused("preprocess.json has format 9"):
        Preprocess.load({"format": 9})
