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

    def __init__(self, columns: dict[str, Any], features: Any = None, formatted: bool = False) -> None:
        self.columns, self.formatted, self.column_names = columns, formatted, list(columns)
        self.features = features

    def with_format(self, kind: str) -> Table:
        assert kind == "numpy"
        return Table(self.columns, self.features, True)

    def __getitem__(self, name: str) -> Any:
        assert self.formatted
        values = self.columns[name]
        if len(values) and isinstance(values[0], list):
            return Column(np.array(value) for value in values)
        return np.array(values)


class Held:
    """What Turnout uses of pandas' Series and arrays: words are objects, and rows have names."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, object)

    def to_numpy(self) -> Any:
        return self.__array__()


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
    "series": (Held(X.tolist()), {"targets": Held(Y), "clients": Held(WHO)}),
    "objects": (X, {"targets": np.array(Y, object), "clients": np.array(WHO, object)}),
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


@pytest.mark.parametrize("numbers", [list, np.array, torch.tensor])
@pytest.mark.parametrize("order", [1, -1])
def test_sequences_of_different_lengths_keep_their_numbers(numbers: Any, order: int, refused: Refused) -> None:
    samples = [numbers(part) for part in ([1, 2], [3.75])][::order]
    data = Dataset.of(samples, [0, 1])
    assert data.inputs["input_ids"].tolist() == [[1.0, 2.0], [3.75, 0.0]][::order]
    both = Dataset.of([numbers(part) for part in ([1, 2], [3, 0.5])][::order], [0, 1])
    assert both.inputs.tolist() == [[1.0, 2.0], [3.0, 0.5]][::order]
    with refused("targets", "differ in length"):
        Dataset.of([[1, 2], [3]], samples)
    empty = Dataset.of([numbers(part) for part in ([1, 2], [])][::order], [[1], []])
    assert empty.inputs["input_ids"].tolist() == [[1, 2], [0, 0]][::order]
    assert (empty.inputs["input_ids"].dtype, empty.targets.tolist()) == (torch.int64, [[1], [-100]])


def test_bytes_of_different_lengths_stay_bytes_and_their_targets_do_not() -> None:
    parts = [np.array([1, 255], np.uint8), np.array([3], np.uint8)]
    data = Dataset.of(parts, parts)
    assert data.inputs["input_ids"].dtype == torch.uint8
    assert data.targets.tolist() == [[1, 255], [3, -100]]
    mixed = Dataset.of([torch.tensor([1]).to(torch.uint16), torch.tensor([70_000, 2])], [0, 1])
    assert mixed.inputs["input_ids"].tolist() == [[1, 0], [70_000, 2]]


def test_sequences_of_vectors_and_in_tuples_are_padded() -> None:
    vectors = Dataset.of([np.ones((2, 3)), np.ones((1, 3))], [0, 1]).inputs
    assert (vectors["input_ids"].shape, vectors["attention_mask"].tolist()) == ((2, 2, 3), [[1, 1], [1, 0]])
    assert Dataset.of([((1, 2), 0), ((1, 2, 3), 1)]).inputs["input_ids"].tolist() == [[1, 2, 0], [1, 2, 3]]
    assert [part.tolist() for part in Dataset.of([((1, 2), 0), ((3, 4), 1)]).inputs] == [[1, 3], [2, 4]]


def test_a_test_set_of_sequences_is_padded_as_the_training_samples() -> None:
    short, long = ([[5, 6], [8]], [[1, 2], [4]]), ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]])
    for one, other in ((short, long), (long, short)):
        data = Dataset.of(*one, test=other)
        parts = {len(one[0][1]): data.inputs, len(other[0][1]): data.test_inputs}
        assert parts[1] is not None and parts[3] is not None
        assert parts[1]["input_ids"].tolist() == [[5, 6, 0], [8, 0, 0]]
        assert parts[1]["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
        assert parts[3]["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 1]]
        assert data.test_targets is not None
        assert [4, -100, -100] in torch.cat([data.targets, data.test_targets]).tolist()
    columns = {"a": [[5, 6], [8]], "b": [1.0, 2.0], "y": [0, 1]}
    data = Dataset.of(Table(columns), "y", test=Table(columns | {"a": [[1, 2, 3], [4, 5, 6]]}))
    assert data.test_inputs is not None
    assert data.inputs["a"].shape == data.test_inputs["attention_mask"].shape == (2, 3)


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


class Feature:
    """What Turnout uses of Hugging Face's features."""

    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)


NAMED = Feature(names=["a", "b", "c"])


def test_tables_say_their_classes_and_which_arrays_are_bytes(refused: Refused) -> None:
    columns = {"x": [[[1, 2]], [[3, 255]]], "y": [0, 1], "tags": [[0, 1], [1]]}
    features = {"x": Feature(shape=(1, 2), dtype="uint8"), "y": NAMED, "tags": Feature(feature=NAMED)}
    table = Table(columns, features)
    data = Dataset.of(table, "y", inputs="x", test=table)
    assert (data.num_classes, data.facts["classes"]) == (3, ["a", "b", "c"])
    assert (data.inputs.dtype, data.inputs.tolist()) == (torch.uint8, columns["x"])
    assert Dataset.of(table, "tags", inputs="x").num_classes == 3
    with refused("classes should be 0 to 2", "to 5"):
        Dataset.of(Table(columns | {"y": [0, 5]}, features), "y", inputs="x")
    with refused("other names"):
        Dataset.of(table, "y", inputs="x", test=Table(columns, features | {"y": Feature(names=["b", "a", "c"])}))


def test_targets_may_be_words(refused: Refused) -> None:
    for words in (["dog", "cat"], np.array(["dog", "cat"]), Held(["dog", "cat"])):
        data = Dataset.of(X[:2], words, test=(X[:2], ["eel", "dog"]))
        assert data.test_targets is not None
        assert (data.targets.tolist(), data.test_targets.tolist()) == ([1, 0], [2, 1])
        assert (data.num_classes, data.facts["classes"]) == (3, ["cat", "dog", "eel"])
    with refused("words in training or in test samples alone"):
        Dataset.of(X[:2], ["dog", "cat"], test=(X[:2], [0, 1]))


def test_lists_of_numbers_are_arrays_in_trees_too() -> None:
    data = Dataset.of((X.tolist(), {"x": X}), Y)
    assert torch.equal(data.inputs[0], data.inputs[1]["x"])


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ([np.zeros((4, 4, 3), "u1"), np.zeros((5, 4, 3), "u1")], {"targets": [0, 1]}, ["(5, 4, 3)", "one shape"]),
        ([np.zeros((4, 4), "u1"), np.zeros((5, 4), "u1")], {"targets": [0, 1]}, ["(5, 4)", "one shape"]),
        ([np.zeros((4, 2)), np.zeros((5, 3))], {"targets": [0, 1]}, ["(5, 3)", "one shape"]),
        (np.zeros((0, 3)), {"targets": np.zeros(0, int)}, ["there are no samples"]),
        (Table({"x": np.zeros(0), "y": np.zeros(0)}), {"targets": "y"}, ["there are no samples"]),
        (Table({"x": [], "y": []}), {"targets": "y"}, ["there are no samples"]),
        (X, {"targets": Y, "test": (X[:0], np.zeros(0, int))}, ["there are no test samples"]),
        (5, {"targets": 3}, ["a row a sample"]),
        (X, {"targets": np.array(3)}, ["targets", "a row a sample"]),
        ([({"a": X[0]}, 0), ({"b": X[0]}, 1)], {}, ["the same parts", "['a']", "['b']"]),
        ([({"a": X[0]}, 0), (X[0], 1)], {}, ["the same parts", "ndarray"]),
        ([((X[0], X[0]), 0), ((X[0],), 1)], {}, ["the same parts", "1 to 2"]),
        (torch.tensor(X).to_sparse(), {"targets": Y}, ["inputs", "sparse", "to_dense()"]),
        ([torch.tensor(x).to_sparse() for x in X], {"targets": Y}, ["inputs", "sparse", "to_dense()"]),
        (([[1, 2], [3]], X), {"targets": Y}, ["different lengths"]),
        (([torch.ones(2)] * 90, X), {"targets": Y}, ["a row a sample", " ..."]),
        (X, {"targets": ["a", 1, "a", "b", "a", "a"]}, ["targets", "words"]),
        (X, {"targets": Y, "clients": ["a", 1, "a", "b", "a", "a"]}, ["integers or words", "mixture"]),
        (X, {"targets": Y, "clients": Held([*WHO[:5], None])}, ["integers or words", "mixture"]),
        (X, {"targets": Y, "test": (X[:, :1], Y)}, ["inputs and test_inputs do not match", "[2]", "[1]"]),
        (X, {"targets": Y, "test": ((X, X), Y)}, ["inputs and test_inputs do not match"]),
        ({"a": X}, {"targets": Y, "test": ({"b": X}, Y)}, ["inputs and test_inputs do not match", "'b'"]),
        (X, {"targets": Y, "test": (X.astype(int), Y)}, ["inputs and test_inputs do not match", "whole"]),
        (X, {"targets": Y, "test": (X, X)}, ["targets and test_targets do not match"]),
        (X, {"targets": Y, "test": (X, [7] * 6), "num_classes": 3}, ["0 to 2", "to 7"]),
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


def test_bytes_in_memory_stay_bytes_and_other_whole_numbers_are_tokens() -> None:
    for shape in ((6, 4, 4), (6, 4)):
        assert Dataset.of(np.zeros(shape, np.uint8)[::-1], Y).inputs.dtype == torch.uint8
        assert Dataset.of(list(np.zeros(shape, np.uint8)), Y).inputs.dtype == torch.uint8
    assert Dataset.of(np.zeros((6, 4), np.uint16), Y).inputs.dtype == torch.int64
    assert Dataset.of(X, np.array(Y, np.uint8)).targets.dtype == torch.int64


def test_a_map_turned_round_is_copied_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    array = mapped(tmp_path / "x.npy", np.arange(24, dtype=np.uint8).reshape(6, 4))
    assert Dataset.of(array[::-1], Y).inputs.tolist() == array[::-1].tolist()
    fields = mapped(tmp_path / "y.npy", np.ones((6, 2), [("a", "u1"), ("b", "f4")]))
    assert Dataset.of(fields["b"], Y).inputs.tolist() == [[1, 1]] * 6
    monkeypatch.setattr(trees, "COPIED", 1 << 62)
    with refused("inputs", "turned round", "copies all samples"):
        Dataset.of(array[::-1], Y)


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


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_mapped_tokens_of_any_width_train_as_int64(kind: Any, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 9, (40, 3))
    results = []
    for x, y in ((mapped(tmp_path / "x.npy", tokens.astype(kind)),) * 2, (tokens, tokens)):
        people = Population.of(Dataset.of(x, y), 4, seed=0)
        task = Task(lambda: torch.nn.Embedding(9, 9), "cross_entropy", seed=0)
        results.append(simulate(task, people, FedAvg(LocalSGD(0.1), Full()), rounds=2))
    assert torch.equal(results[0].model, results[1].model)


def test_a_class_that_the_model_does_not_know_is_found_before_training(refused: Refused) -> None:
    people = Population.of(Dataset.of(X, Y, test=(X, [5] * 6)), 2)
    with refused("central test set: task.loss", "outputs of shape (3,)"):
        simulate(Task(lambda: torch.nn.Linear(2, 3)), people, FedAvg(LocalSGD(0.1), Full()), rounds=1)


def test_a_dataset_has_no_more_classes_than_it_says(refused: Refused) -> None:
    few, many = torch.arange(6) % 3, torch.arange(6)
    for targets, tests, label in ((many, few, "training"), (few, many, "test")):
        with refused("dataset d", label, "class 5", "0 to 2"):
            Dataset("d", X, targets, 3, X, tests)


def test_scanning_for_nan_goes_by_numbers_not_rows() -> None:
    wide = torch.zeros(3, trees.LOOKED_AT // 2 + 1)
    wide[2, -1] = torch.nan
    assert not trees.finite(wide)
    assert trees.finite(torch.zeros(0, 3))
