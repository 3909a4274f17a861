"""A user's own arrays, tables and functions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_files import Refused, save_npz, write

from turnout.data import load

INPUTS = np.arange(12.0).reshape(6, 2)
LABELS = np.array([0, 2, 1, 0, 2, 1])
FULL = {
    "inputs": INPUTS,
    "targets": LABELS,
    "groups": np.array([30, 10, 10, 20, 30, 20]),
    "test_inputs": INPUTS[:2] + 100,
    "test_targets": LABELS[:2],
    "test_groups": np.array([20, 30]),
}


@pytest.mark.parametrize("kind", ["npz", "folder", "function"])
def test_all_arrays(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_npz(tmp_path / "data.npz", **FULL)
    if kind == "npz":
        data = load("numpy_files", path=tmp_path / "data.npz")
    elif kind == "folder":
        for name, array in FULL.items():
            np.save(tmp_path / f"{name}.npy", array)
        data = load("numpy_files", path=str(tmp_path))
    else:
        source = f"import numpy as np\ndef arrays(name):\n    return dict(np.load({str(tmp_path)!r} + '/' + name))\n"
        write(tmp_path / "own_arrays.py", source)
        monkeypatch.chdir(tmp_path)
        before = list(sys.path)
        data = load("function", function="own_arrays:arrays", arguments={"name": "data.npz"})
        assert sys.path == before
    assert data.num_classes == 3
    assert data.inputs.dtype == torch.float32
    assert data.targets.dtype == torch.int64
    np.testing.assert_array_equal(data.inputs, INPUTS)
    assert data.targets.tolist() == LABELS.tolist()
    assert data.groups is not None
    assert data.groups.tolist() == [2, 0, 0, 1, 2, 1]
    assert data.test_groups is not None
    assert data.test_groups.tolist() == [1, 2]
    assert data.facts["clients"] == [10, 20, 30]
    assert data.test_inputs is not None
    assert data.test_inputs[0].tolist() == [100, 101]


def from_npz(tmp_path: Path, arrays: dict[str, Any], **options: Any) -> Any:
    save_npz(tmp_path / "data.npz", **arrays)
    return load("numpy_files", path=tmp_path / "data.npz", **options)


def test_regression_and_tokens_and_words(tmp_path: Path) -> None:
    data = from_npz(tmp_path, {"inputs": INPUTS.astype(int), "targets": LABELS + 0.5, "groups": list("cabcab")})
    assert data.num_classes is None
    assert data.targets.shape == (6, 1)
    assert data.targets.dtype == torch.float32
    assert data.inputs.dtype == torch.int64
    assert data.groups.tolist() == [2, 0, 1, 2, 0, 1]
    assert data.facts["clients"] == ["a", "b", "c"]
    assert from_npz(tmp_path, {"inputs": INPUTS, "targets": LABELS}, num_classes=7).num_classes == 7
    assert from_npz(tmp_path, {"inputs": INPUTS, "targets": INPUTS / 2}).targets.shape == (6, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": INPUTS[:5], "groups": None, "test_groups": None}, ["5 training inputs", "6 targets"]),
        ({"inputs": np.where(INPUTS == 3, np.nan, INPUTS)}, ["NaN"]),
        ({"inputs": INPUTS + 1e300}, ["infinity"]),
        ({"inputs": INPUTS[:0], "targets": LABELS[:0]}, ["no samples"]),
        ({"inputs": np.array(["a", "b"])}, ["inputs", "numbers"]),
        ({"inputs": np.float64(3)}, ["inputs", "shape []"]),
        ({"targets": LABELS[:, None]}, ["targets", "[6, 1]"]),
        ({"targets": LABELS - 1}, ["from -1 to 2"]),
        ({"targets": LABELS + 0.5}, ["targets and test_targets do not match"]),
        ({"test_inputs": np.ones((2, 3))}, ["inputs and test_inputs do not match", "[2]", "[3]"]),
        ({"test_targets": LABELS[:1]}, ["2 test inputs", "1 targets"]),
        ({"test_targets": None}, ["go together"]),
        ({"groups": np.arange(5)}, ["groups", "[5]"]),
        ({"groups": np.arange(6) / 2}, ["groups", "float64"]),
        ({"groups": None}, ["test_groups", "groups is not"]),
        ({"test_groups": np.array([20, 31])}, ["test_groups", "31"]),
        ({"test_groups": np.arange(3)}, ["test_groups", "[3]"]),
        ({"inputs": None}, ["no array inputs"]),
        ({"group": np.arange(6)}, ["did you mean groups?"]),
        ({"inputs": np.array([{}], object)}, ["pickled"]),
    ],
)
def test_bad_arrays_are_one_sentence(
    change: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused
) -> None:
    arrays = {name: array for name, array in (FULL | change).items() if array is not None}
    with refused("numpy_files", *words):
        from_npz(tmp_path, arrays)


def test_bad_paths_and_class_counts(tmp_path: Path, refused: Refused) -> None:
    for path in (tmp_path, tmp_path / "none.npz"):
        with refused("numpy_files", path, "neither"):
            load("numpy_files", path=path)
    with refused("numpy_files", "0 to 1", "from 0 to 2"):
        from_npz(tmp_path, FULL, num_classes=2)
    with refused("numpy_files", "num_classes=2", "not integers"):
        from_npz(tmp_path, {"inputs": INPUTS, "targets": INPUTS}, num_classes=2)


TABLE = """age,colour,city,income
20,red,Ulm,low
30,blue,Bonn,high
40,red,Ulm,low
50,green,Bonn,high
60,"red",Ulm,low
70,blue,Bonn,mid
"""


def table(tmp_path: Path, content: str = TABLE, name: str = "own.csv", **options: Any) -> Any:
    return load("csv_table", **({"path": write(tmp_path / name, content), "target": "income"} | options))


@pytest.mark.parametrize("name", ["own.csv", "own.csv.gz"])
def test_csv_classification_with_clients(name: str, tmp_path: Path) -> None:
    data = table(tmp_path, name=name, client="city", test_fraction=0.0, normalise="none")
    assert {name: fact for name, fact in data.facts.items() if name != "preprocess"} == {
        "features": ["age", "colour=blue", "colour=green", "colour=red"],
        "classes": ["high", "low", "mid"],
        "clients": ["Bonn", "Ulm"],
    }
    assert data.inputs[:3].tolist() == [[20, 0, 0, 1], [30, 1, 0, 0], [40, 0, 0, 1]]
    assert data.num_classes == 3
    assert data.targets.tolist() == [1, 0, 1, 0, 1, 2]
    assert data.groups.tolist() == [1, 0, 1, 0, 1, 0]
    assert data.test_inputs is None


def test_csv_split_takes_a_share_of_every_client(tmp_path: Path) -> None:
    data = table(tmp_path, client="city", test_fraction=0.34)
    assert sorted(data.test_groups.tolist()) == [0, 1]
    assert len(data) == 4
    assert data.inputs[:, 0].mean().abs() < 1e-6
    assert set(data.inputs[:, 1:].flatten().tolist()) == {0, 1}


def test_csv_regression_and_drop(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "target": "age",
        "task": "regression",
        "drop": ["colour", "income"],
        "test_fraction": 0.0,
    }
    data = table(tmp_path, normalise="none", **options)
    assert data.num_classes is None
    assert data.targets.tolist() == [[20], [30], [40], [50], [60], [70]]
    assert data.facts["features"] == ["city=Bonn", "city=Ulm"]
    assert table(tmp_path, **options).targets.mean().abs() < 1e-6


def test_csv_numeric_classes_and_clients_in_numeric_order(tmp_path: Path) -> None:
    data = table(tmp_path, "x,y,who\n1,10,3\n2,9,20\n3,10,3\n", target="y", client="who", test_fraction=0.0)
    assert data.facts["classes"] == [9, 10]
    assert data.targets.tolist() == [1, 0, 1]
    assert data.facts["clients"] == [3, 20]
    assert data.groups.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (TABLE.replace("40,red", "40,"), {}, ["line 4", "colour", "missing"]),
        (TABLE.replace("40,red", "nan,red"), {}, ["line 4", "age", "missing"]),
        (TABLE.replace("Ulm,low", ",low", 1), {"client": "city"}, ["line 2", "city", "missing"]),
        (TABLE.replace("70,blue,Bonn,mid", "70,blue,Bonn,"), {}, ["line 7", "income", "missing"]),
        (TABLE.replace("40,red", "inf,red"), {}, ["line 4", "age", "finite"]),
        (TABLE.replace("40,red", "red"), {}, ["line 4", "3 cells for 4 columns"]),
        (TABLE, {"target": "incme"}, ["did you mean income?"]),
        (TABLE, {"client": "town"}, ["'town'"]),
        (TABLE, {"drop": ["colr"]}, ["did you mean colour?"]),
        (TABLE, {"task": "regression"}, ["line 2", "income", "'low'"]),
        (TABLE, {"task": "regresion"}, ["did you mean regression?"]),
        (TABLE, {"drop": ["age", "colour", "city"]}, ["no column left"]),
        (TABLE, {"path": "~no-such-user/own.csv"}, ["~no-such-user/own.csv", "No such file"]),
        (TABLE, {"path": "own\0.csv"}, ["cannot read"]),
        (TABLE, {"path": "/nowhere/own.csv"}, ["/nowhere/own.csv", "No such file"]),
        ("income,word\n" + "".join(f"1,w{i}\n" for i in range(1001)), {}, ["no column left", "word", "identifier"]),
        (
            "income,word\n" + "".join(f"1,w{i}\n1,w{i}\n" for i in range(1001)),
            {},
            ["word", "1001 different words", "drop"],
        ),
        ("", {}, ["no rows"]),
        ('a,income\n"' + "x" * 200_000 + '",1\n', {}, ["line", "not CSV"]),
    ],
)
def test_bad_tables_are_one_sentence(
    content: str, options: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused
) -> None:
    with refused("csv_table", *words):
        table(tmp_path, content, **options)


OWN = """
import numpy as np
from turnout import Dataset
from turnout.core.errors import UserError
import torch

def dataset(n=3):
    return Dataset("mine", torch.zeros(n, 2), torch.zeros(n, dtype=torch.int64), 2)

def known():
    return {"inputs": np.zeros((3, 2)), "targets": [0, 1, 0], "num_classes": 5}

def tensors():
    return {"inputs": torch.ones(3, 2), "targets": torch.tensor([0, 1, 0])}

def words(): return {"inputs": np.zeros((3, 2)), "targets": [0, 1, 0], "num_classes": "two"}
def numbered(): return {1: np.zeros((3, 2))}
def ragged(): return {"inputs": [[1, 2], [3]], "targets": [0, 1]}
def groups(): return {"inputs": [[1.0], [3.0]], "targets": [0, 1], "groups": [[1, 2], [3]]}
def wrong(): return [1, 2]
def fails(): return 1 / 0
def advises(): raise UserError("mine: buy more disks")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "own_module.py", OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)


@pytest.mark.usefixtures("own")
def test_function_returns_a_dataset_or_a_dict() -> None:
    data = load("function", function="own_module:dataset", arguments={"n": 4})
    assert (data.name, len(data)) == ("mine", 4)
    assert load("function", function="own_module:known").num_classes == 5
    assert load("function", function="own_module:tensors").inputs.tolist() == [[1, 1]] * 3


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("own_module", ["own_module", "package.module:function"]),
        (":f", ["package.module:function"]),
        ("own_module:", ["package.module:function"]),
        ("no_such_module:f", ["No module named 'no_such_module'"]),
        ("own_module:nothing", ["nothing"]),
        ("own_module:groups", ["groups", "rows of one length"]),
        ("own_module:wrong", ["Dataset or a dict", "list"]),
        ("own_module:words", ["num_classes='two'"]),
        ("own_module:numbered", ["array", "'1'"]),
        ("own_module:ragged", ["inputs", "rows of one length"]),
        ("own_module:fails", ["ZeroDivisionError"]),
        ("own_module:advises", ["mine: buy more disks"]),
    ],
)
def test_bad_functions_are_one_sentence(function: str, words: list[str], refused: Refused) -> None:
    with refused(*words):
        load("function", function=function)
