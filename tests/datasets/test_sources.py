"""`Dataset.of`: what people have, as samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_files import Refused
from torch import Tensor
from torch.utils import data as torch_data

from turnout import Dataset, FedAvg, Full, LocalSGD, Plan, Population, Task, simulate
from turnout.core import trees
from turnout.data import load

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = [0, 1, 2, 0, 1, 2]
WHO = ["ann", "bob", "ann", "bob", "cleo", "cleo"]


class Items(torch_data.Dataset[Any]):
    """A map-style dataset; like many, it never raises IndexError."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number % len(self.items)]


class Column(list[Any]):
    pass


class Table:
    """What Turnout uses of Hugging Face's `Dataset`."""

    def __init__(self, columns: dict[str, Any], formatted: bool = False) -> None:
        self.columns, self.formatted, self.column_names = columns, formatted, list(columns)

    def with_format(self, kind: str) -> Table:
        assert kind == "numpy"
        return Table(self.columns, True)

    def __getitem__(self, name: str) -> Any:
        assert self.formatted
        values = self.columns[name]
        if isinstance(values[0], list):
            return Column(np.array(value) for value in values)
        return np.array(values)


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "arrays": (X, {"targets": Y, "clients": WHO}),
    "tensors": (torch.tensor(X), {"targets": torch.tensor(Y), "clients": WHO}),
    "nested lists": (X.tolist(), {"targets": Y, "clients": WHO}),
    "samples": (list(X), {"targets": Y, "clients": WHO}),
    "pairs": (list(zip(X, Y, strict=True)), {"clients": WHO}),
    "torch": (Items([(torch.tensor(x), y) for x, y in zip(X, Y, strict=True)]), {"clients": WHO}),
    "dictionaries": (
        Items([{"x": x, "y": y, "who": who} for x, y, who in zip(X, Y, WHO, strict=True)]),
        {"targets": "y", "clients": "who"},
    ),
    "table": (Table({"x": X.tolist(), "y": Y, "who": WHO}), {"targets": "y", "clients": "who"}),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_samples(kind: str) -> None:
    source, options = SOURCES[kind]
    data = Dataset.of(source, **options)
    assert torch.equal(data.inputs, torch.tensor(X))
    assert data.targets.tolist() == Y
    assert data.targets.dtype == torch.int64
    assert data.num_classes == 3
    assert data.groups is not None
    assert data.groups.tolist() == [0, 1, 0, 1, 2, 2]
    assert data.facts["clients"] == ["ann", "bob", "cleo"]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_test_set_is_a_source_likewise(kind: str) -> None:
    source, options = SOURCES[kind]
    named = isinstance(options.get("targets"), str)
    test = source if named or kind in ("pairs", "torch") else (source, Y, WHO)
    if kind in ("pairs", "torch"):
        test = (source, None, WHO)
    data = Dataset.of(source, **options, test=test)
    assert data.test_inputs is not None
    assert torch.equal(data.test_inputs, torch.tensor(X))
    assert data.test_groups is not None
    assert data.test_groups.tolist() == [0, 1, 0, 1, 2, 2]


def test_columns_by_name_are_a_dictionary_or_one_tensor() -> None:
    table = Table({"a": [1.0, 2.0], "b": [[1, 2], [3, 4]], "words": ["x", "y"], "y": [0, 1]})
    data = Dataset.of(table, "y", inputs=["a", "b"])
    assert {name: column.tolist() for name, column in data.inputs.items()} == {"a": [1, 2], "b": [[1, 2], [3, 4]]}
    assert Dataset.of(table, "y", inputs="b").inputs.tolist() == [[1, 2], [3, 4]]


def test_sequences_are_padded_and_masked() -> None:
    data = Dataset.of([np.array([5, 6, 7]), np.array([8])], [[1, 2, 3], [4]])
    assert data.inputs["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert data.inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert data.targets.tolist() == [[1, 2, 3], [4, -100, -100]]
    named = Dataset.of([[5, 6], [8]], [0, 1], padded_as=("tokens", "real"))
    assert set(named.inputs) == {"tokens", "real"}


def test_columns_of_sequences_are_padded_and_masked_once() -> None:
    table = Table({"input_ids": [[5, 6], [8]], "labels": [[1, 2], [4]]})
    data = Dataset.of(table, "labels")
    assert data.inputs["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert data.targets.tolist() == [[1, 2], [4, -100]]
    own = Table({"input_ids": [[5, 6], [8]], "attention_mask": [[1, 1], [1]], "labels": [1, 0]})
    assert set(Dataset.of(own, "labels").inputs) == {"input_ids", "attention_mask"}


def test_samples_of_torchs_datasets_may_be_trees() -> None:
    items = [({"a": torch.ones(2), "b": 1}, torch.zeros(3)), ({"a": torch.zeros(2), "b": 2}, torch.ones(3))]
    data = Dataset.of(Items(items))
    assert data.inputs["a"].tolist() == [[1, 1], [0, 0]]
    assert data.inputs["b"].tolist() == [1, 2]
    assert data.num_classes is None


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (Items([(torch.ones(3, 4, 4), 0), (torch.ones(3, 5, 5), 1)]), {}, ["sample 1", "(3, 5, 5)", "one shape"]),
        (Items([torch.ones(2)]), {}, ["pairs (x, y)"]),
        (Items([]), {}, ["no samples"]),
        (Items([{"x": 1.0}]), {}, ["which column is the target"]),
        (Table({"x": [1.0], "y": [0]}), {"targets": "z"}, ["column", "'z'"]),
        (Table({"x": ["word"], "y": [0]}), {"targets": "y"}, ["words", "inputs"]),
        (X, {}, ["give targets"]),
        (X, {"targets": Y[:5]}, ["6 training inputs but 5 targets"]),
        (X, {"targets": Y, "clients": "who"}, ["names a column"]),
        (X, {"targets": Y, "clients": WHO[:5]}, ["one id a sample"]),
        (X, {"targets": X, "num_classes": 3}, ["not whole numbers"]),
        ([np.ones(2), np.ones(3)], {"targets": [[0.5], [0.5, 0.5]]}, ["differ in length", "no classes"]),
        (X, {"targets": Y, "test": X}, ["(inputs, targets)"]),
    ],
)
def test_mistakes(source: Any, options: dict[str, Any], words: list[str], refused: Refused) -> None:
    with refused("dataset own", *words):
        Dataset.of(source, **options)


def test_a_stream_without_numbers_is_refused(refused: Refused) -> None:
    class Stream(torch_data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([])

    with refused("IterableDataset", "list(it)"):
        Dataset.of(Stream())


# -- samples that stay in a file --------------------------------------------------------------------------------


def mapped(path: Path, array: Any) -> Any:
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.float32, np.float64, np.int32, np.uint16])
def test_what_is_mapped_stays_in_its_file(kind: Any, tmp_path: Path) -> None:
    array = mapped(tmp_path / "x.npy", np.arange(24).reshape(6, 2, 2).astype(kind))
    data = Dataset.of(array, Y)
    assert data.inputs.numpy().dtype == kind
    assert data.inputs.data_ptr() == array.ctypes.data
    part = Dataset.of(array[2:], Y[2:])
    assert part.inputs.data_ptr() == array[2:].ctypes.data
    assert part.targets.dtype == torch.int64


def test_a_folder_of_arrays_may_stay_on_disk(tmp_path: Path, refused: Refused) -> None:
    stored = np.arange(96, dtype=np.uint8).reshape(6, 1, 4, 4)
    arrays = {"inputs": stored, "targets": np.array(Y), "groups": np.array(WHO), "test_inputs": stored[:2]}
    for name, array in (arrays | {"test_targets": np.array(Y[:2])}).items():
        np.save(tmp_path / f"{name}.npy", array)
    data = load("numpy_files", path=tmp_path, mapped=True)
    assert (data.inputs.dtype, data.inputs.tolist()) == (torch.uint8, stored.tolist())
    assert (data.num_classes, data.facts["clients"]) == (3, ["ann", "bob", "cleo"])
    assert data.test_inputs is not None
    assert len(data.test_inputs) == 2
    (tmp_path / "test_targets.npy").unlink()
    with refused("numpy_files", "go together"):
        load("numpy_files", path=tmp_path, mapped=True)
    (tmp_path / "targets.npy").write_bytes(b"no array")
    with refused("numpy_files", "targets.npy", "to be mapped"):
        load("numpy_files", path=tmp_path, mapped=True)


def test_images_in_memory_stay_bytes_and_other_whole_numbers_are_tokens() -> None:
    assert Dataset.of(np.zeros((6, 4, 4), np.uint8), Y).inputs.dtype == torch.uint8
    assert Dataset.of(np.zeros((6, 4), np.uint8), Y).inputs.dtype == torch.int64


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(8, 3)
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), self.last)

    def forward(self, images: Tensor) -> Tensor:
        values: Tensor = self.layers(images.to(self.last.weight.dtype) / 255)
        return values


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_mapped_pool_trains_as_the_same_numbers_in_memory(engine: str, precision: Any, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    labels = draws.integers(0, 3, 60)
    stored = mapped(tmp_path / "x.npy", pixels), mapped(tmp_path / "y.npy", labels.astype(np.uint8))
    exact = torch.tensor(pixels).to(torch.float64), torch.tensor(labels)
    results = []
    for x, y in (stored, exact):
        people = Population.of(Dataset.of(x, y, num_classes=3, test=(x[:20], y[:20])), 4, seed=0)
        work = LocalSGD(0.1, epochs=2, batch_size=5)
        plan = Plan(engine=engine, precision=precision, threads=1)
        results.append(simulate(Task(Net, seed=0), people, FedAvg(work, Full()), rounds=3, plan=plan))
    one, two = results
    assert torch.equal(one.model, two.model)
    assert one.measures == two.measures


def test_scanning_for_nan_goes_by_numbers_not_rows() -> None:
    wide = torch.zeros(3, trees.LOOKED_AT // 2 + 1)
    wide[2, -1] = torch.nan
    assert not trees.finite(wide)
    assert trees.finite(torch.zeros(0, 3))
