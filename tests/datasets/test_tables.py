from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_files import Refused, write

from turnout.data import Dataset, load, names
from turnout.data.airfoil import FEATURES as AIRFOIL
from turnout.data.boston import FEATURES as BOSTON


def grid(rows: int, columns: int) -> list[list[float]]:
    return [[round((7 * i + 3 * j + i * j) % 23 + 0.25 * j, 2) for j in range(columns)] for i in range(rows)]


def text(rows: list[list[Any]], separator: str = ",") -> str:
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def same(one: Dataset, other: Dataset) -> None:
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.targets, other.targets)
    assert one.test_inputs is not None
    assert other.test_inputs is not None
    assert torch.equal(one.test_inputs, other.test_inputs)


@pytest.mark.parametrize(
    ("name", "header", "csv", "uci", "separator"),
    [
        ("boston", (*BOSTON, "MEDV"), "boston_housing.csv", "housing.data", "   "),
        ("airfoil", (*AIRFOIL, "sound_pressure_db"), "tabular/airfoil_self_noise.csv", "airfoil_self_noise.dat", "\t"),
    ],
)
def test_regression_tables(
    name: str, header: tuple[str, ...], csv: str, uci: str, separator: str, tmp_path: Path
) -> None:
    rows = grid(20, len(header))
    write(tmp_path / "a" / csv, text([list(header), *rows]))
    write(tmp_path / "b" / uci, text(rows, separator))
    data = load(name, folder=tmp_path / "a")
    same(data, load(name, folder=tmp_path / "b"))
    assert data.num_classes is None
    assert data.inputs.shape == (16, len(header) - 1)
    assert data.targets.shape == (16, 1)
    assert data.inputs.dtype == data.targets.dtype == torch.float32
    assert data.test_inputs is not None
    assert len(data.test_inputs) == 4
    for part in (data.inputs, data.targets):
        assert part.mean().abs() < 1e-6
        assert part.std(correction=0) == pytest.approx(1, abs=1e-5)
    raw = load(name, folder=tmp_path / "a", normalise="none", test_fraction=0.0)
    np.testing.assert_allclose(torch.cat([raw.inputs, raw.targets], dim=1), rows, rtol=1e-6)
    scaled = load(name, folder=tmp_path / "a", normalise="minmax")
    for part in (scaled.inputs, scaled.targets):
        assert [part.min().item(), part.max().item()] == [0, 1]


def test_a_constant_column_stays_finite(tmp_path: Path) -> None:
    rows = [[5.0, *row] for row in grid(10, 5)]
    write(tmp_path / "airfoil_self_noise.dat", text(rows, "\t"))
    for normalise in ("standard", "minmax"):
        assert load("airfoil", folder=tmp_path, normalise=normalise).inputs[:, 0].tolist() == [0.0] * 8


TURBINE = ["AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP", "CO", "NOX"]


def test_gas_turbine(tmp_path: Path) -> None:
    rows = grid(25, 11)
    years = [2011 + i // 5 for i in range(25)]
    write(
        tmp_path / "a" / "tabular" / "gas_turbine.csv.gz",
        text([["year", *TURBINE], *([year, *row] for year, row in zip(years, rows, strict=True))]),
    )
    for year in range(2011, 2016):
        part = [row for when, row in zip(years, rows, strict=True) if when == year]
        write(tmp_path / "b" / f"gt_{year}.csv", text([TURBINE, *part]))
    data = load("gas_turbine", folder=tmp_path / "a")
    same(data, load("gas_turbine", folder=tmp_path / "b"))
    assert data.inputs.shape == (20, 9)
    assert data.targets.shape == (20, 2)
    assert data.groups is not None
    assert np.bincount(data.groups).tolist() == [4] * 5
    assert data.test_groups is not None
    assert data.test_groups.tolist() == [0, 1, 2, 3, 4]
    assert data.facts["clients"] == [2011, 2012, 2013, 2014, 2015]
    energy = load("gas_turbine", folder=tmp_path / "a", targets=["TEY"], normalise="none", test_fraction=0.0)
    table = np.array(rows)
    np.testing.assert_allclose(energy.inputs, table[:, [0, 1, 2, 3, 4, 5, 6, 8]], rtol=1e-6)
    np.testing.assert_allclose(energy.targets, table[:, 7:8], rtol=1e-6)


def connection(i: int, protocol: str = "tcp", label: str = "normal.", source: int = 100) -> list[Any]:
    row: list[Any] = [i + j / 100 for j in range(41)]
    row[1:4], row[4], row[5] = [protocol, "http", "SF"], source, 200 + i
    return [*row, label]


@pytest.mark.parametrize("name", ["kddcup99_10pct.csv", "tabular/kddcup.data_10_percent.gz"])
def test_kdd99(name: str, tmp_path: Path) -> None:
    rows = [connection(i, label="neptune." if i % 2 else "normal.") for i in range(10)]
    rows += [connection(10, protocol="udp"), connection(11, source=30_001), connection(12, source=30_000)]
    write(tmp_path / name, text(rows))
    data = load("kdd99", folder=tmp_path, test_fraction=0.0, normalise="none")
    assert data.inputs.shape == (11, 35)
    assert data.num_classes is None
    assert data.targets.shape == (11, 1)
    assert data.targets.dtype == torch.float32
    assert data.targets[:, 0].tolist() == [-1, 1] * 5 + [-1]
    kept = [j for j in range(41) if j not in (1, 2, 3, 7, 19, 20)]
    np.testing.assert_allclose(data.inputs[3], [rows[3][j] for j in kept], rtol=1e-6)
    classes = load("kdd99", folder=tmp_path, labels="class", max_bytes=None)
    assert classes.num_classes == 2
    assert classes.targets.dtype == torch.int64
    assert classes.test_targets is not None
    assert len(classes) + len(classes.test_targets) == 12
    scaled = load("kdd99", folder=tmp_path)
    assert [scaled.inputs.min().item(), scaled.inputs.max().item()] == [0, 1]
    assert set(scaled.targets[:, 0].tolist()) == {-1, 1}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([connection(0)[:-1]], ["line 1", "41 features"]),
        ([connection(0), [*connection(1)[:8], "many", *connection(1)[9:]]], ["many"]),
        ([connection(0, protocol="udp")], ["no TCP records"]),
        ([connection(0, source=40_000)], ["no rows are left"]),
    ],
)
def test_kdd99_refuses(rows: list[list[Any]], words: list[str], tmp_path: Path, refused: Refused) -> None:
    write(tmp_path / "kddcup99_10pct.csv", text(rows))
    with refused("kdd99", *words):
        load("kdd99", folder=tmp_path)


CENTRES = ["cleveland", "hungarian", "switzerland", "va"]
HEART = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"]


def patient(i: int, cp: int = 1, restecg: int = 0, num: int = 0, **missing: str) -> list[Any]:
    values = [40 + i, i % 2, cp, 120 + i, 200 + i, 0, restecg, 150 - i, i % 2, 1.5, "", "", ""]
    return [missing.get(name, value) for name, value in zip(HEART, values, strict=True)] + [num]


def test_heart_disease_as_flamby_prepares_it(tmp_path: Path) -> None:
    patients = [
        (centre, patient(4 * number + i, cp=1 + i, restecg=i % 3, num=i))
        for number, centre in enumerate(CENTRES)
        for i in range(4)
    ]
    patients.append(("va", patient(50, chol="")))
    write(tmp_path / "a" / "heart_disease.csv", text([["centre", *HEART, "num"], *([c, *row] for c, row in patients)]))
    for centre in CENTRES:
        rows = [["?" if cell == "" else cell for cell in row] for name, row in patients if name == centre]
        write(tmp_path / "b" / f"processed.{centre}.data", text(rows))
    data = load("heart_disease", folder=tmp_path / "a", test_fraction=0.0, normalise="none")
    assert data.num_classes == 2
    assert data.targets.tolist() == [0, 1, 1, 1] * 4
    assert data.groups is not None
    assert data.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert data.facts["clients"] == CENTRES
    expected = [43, 1, 123, 203, 0, 147, 1, 1.5, 0, 0, 1, 0, 0]  # cp = 4, restecg = 0
    assert data.inputs[3].tolist() == expected
    assert data.inputs[:4, 8:].tolist() == [[0, 0, 0, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 0, 0]]
    split = load("heart_disease", folder=tmp_path / "a")
    same(split, load("heart_disease", folder=tmp_path / "b"))
    assert split.inputs[:, 0].mean().abs() < 1e-6
    assert set(split.inputs[:, 8:].flatten().tolist()) == {0, 1}
    assert split.test_groups is not None
    assert split.test_groups.tolist() == [0, 1, 2, 3]


def test_heart_disease_refuses_an_unknown_centre(tmp_path: Path, refused: Refused) -> None:
    write(tmp_path / "heart_disease.csv", text([["centre", *HEART, "num"], ["clevelnd", *patient(1)]]))
    with refused("heart_disease", "did you mean cleveland?"):
        load("heart_disease", folder=tmp_path)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[*AIRFOIL, "sound_pressure_db"], [1, 2, 3, 4, 5, 6], [1, 2, "", 4, 5, 6]], ["line 3", "chord_m", "missing"]),
        ([[*AIRFOIL, "sound_pressure_db"], [1, 2, 3, "x", 5, 6]], ["line 2", "velocity_mps", "'x'"]),
        ([[*AIRFOIL, "sound_pressure_db"], [1, 2, 3, "inf", 5, 6]], ["line 2", "velocity_mps", "finite"]),
        ([[*AIRFOIL, "sound_pressure_db"], [1, 2, 3]], ["line 2", "3 cells for 6 columns"]),
        ([[*AIRFOIL, "sound"], [1, 2, 3, 4, 5, 6]], ["sound_pressure_db"]),
        ([[*AIRFOIL, "chord_m"], [1, 2, 3, 4, 5, 6]], ["twice"]),
        ([[*AIRFOIL, "sound_pressure_db"]], ["no rows"]),
        ([], ["no rows"]),
    ],
)
def test_a_damaged_table_is_one_sentence(
    rows: list[list[Any]], words: list[str], tmp_path: Path, refused: Refused
) -> None:
    path = write(tmp_path / "airfoil_self_noise.csv", text(rows))
    with refused("airfoil", path, *words):
        load("airfoil", folder=tmp_path)


@pytest.mark.parametrize("name", ["airfoil", "boston", "gas_turbine", "heart_disease", "kdd99"])
def test_nothing_there_is_one_sentence(name: str, tmp_path: Path, refused: Refused) -> None:
    assert name in names()
    with refused(name, tmp_path, "folder=...", "TURNOUT_DATA"):
        load(name, folder=tmp_path)
    with refused(name, "no folder was given", "folder=...", "TURNOUT_DATA"):
        load(name)
