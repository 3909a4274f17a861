"""Names, options and their errors, for all loaders alike."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from tiny_files import Refused

from turnout import FedAvg, Full, LocalSGD, Population, Ragged, Task, UserError, simulate
from turnout.data import load, loader, names
from turnout.data.dataset import Dataset

NAMES = [
    *("airfoil", "boston", "breast_cancer", "centres", "cifar10", "cifar100", "csv_table", "diabetes", "digits"),
    "fashion_mnist",
    *("function", "gas_turbine", "handwriting", "heart_disease", "hospitals", "images", "kdd99", "leaf"),
    *("linear_mixture", "mnist", "numpy_files", "parquet", "quadratics", "sentences", "shakespeare", "synthetic"),
]


def test_names() -> None:
    assert names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_loader_has_typed_keyword_options_and_a_docstring(name: str) -> None:
    module = import_module(f"turnout.data.{name}")
    assert module.__doc__
    assert loader(name).__doc__
    signature = inspect.signature(loader(name))
    assert signature.return_annotation == "Dataset"
    for parameter in signature.parameters.values():
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.annotation is not parameter.empty


def test_importing_datasets_imports_no_loader_and_nothing_optional() -> None:
    code = (
        "import sys, turnout.data as d; d.names(); "
        "print([m for m in sys.modules if m.split('.')[0] in ('sklearn', 'pandas', 'PIL') "
        "or m.removeprefix('turnout.data.') in d.names()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("digit", {}, ["did you mean digits?"]),
        ("files", {}, ["dataset", "'files'"]),
        ("prepare", {}, ["dataset", "'prepare'"]),
        ("dataset", {}, ["dataset", "'dataset'"]),
        ("digits", {"test_frction": 0.1}, ["digits", "did you mean test_fraction?"]),
        ("digits", {"seed": "one"}, ["digits", "seed='one'", "int"]),
        ("digits", {"seed": True}, ["digits", "seed=True", "int"]),
        ("digits", {"seed": 1.5}, ["digits", "seed=1.5", "int"]),
        ("digits", {"shape": "imge"}, ["digits", "shape", "did you mean image?"]),
        ("digits", {"shape": 8}, ["digits", "shape=8", "'flat', 'image'"]),
        ("digits", {"test_fraction": 1.0}, ["digits", "test_fraction: 1.0", "below 1"]),
        ("digits", {"test_fraction": float("nan")}, ["digits", "test_fraction: nan"]),
        ("diabetes", {"normalise": "standrd"}, ["diabetes", "normalise", "did you mean standard?"]),
        ("csv_table", {"path": "x.csv"}, ["csv_table", "option target is needed"]),
        ("function", {"function": "a:b", "arguments": [1]}, ["function", "arguments=[1]", "Mapping"]),
        ("synthetic", {"clients": 0}, ["synthetic", "clients: 0", "at least 1"]),
        ("synthetic", {"classes": 1}, ["synthetic", "classes: 1", "at least 2"]),
        ("synthetic", {"beta": -1}, ["synthetic", "beta: -1"]),
        ("linear_mixture", {"alpha": 0}, ["linear_mixture", "alpha: 0"]),
        ("linear_mixture", {"components": 0}, ["linear_mixture", "components: 0"]),
        ("quadratics", {"optima": [[1.0, 2.0], [3.0]]}, ["quadratics", "optima", "unequal length"]),
        ("quadratics", {"optima": []}, ["quadratics", "optima"]),
        ("quadratics", {"optima": "12"}, ["quadratics", "optima='12'"]),
        ("quadratics", {"optima": [1.0, float("nan")]}, ["quadratics", "optima", "finite"]),
        ("quadratics", {"optima": [1, 2], "curvatures": [1]}, ["quadratics", "curvatures", "2 positive"]),
        ("quadratics", {"optima": [1, 2], "importance": [1, -1]}, ["quadratics", "importance", "2 positive"]),
        ("gas_turbine", {"targets": ["NOx"]}, ["gas_turbine", "targets", "did you mean NOX?"]),
        ("gas_turbine", {"targets": []}, ["gas_turbine", "targets"]),
        ("kdd99", {"labels": "signs"}, ["kdd99", "labels", "did you mean sign?"]),
        ("cifar100", {"labels": "corse"}, ["cifar100", "labels", "did you mean coarse?"]),
        ("shakespeare", {"stride": 0}, ["shakespeare", "stride: 0"]),
    ],
)
def test_a_wrong_name_option_or_value_is_one_sentence(
    name: str, options: dict[str, Any], words: list[str], refused: Refused
) -> None:
    with refused(*words):
        load(name, **options)


def test_numpy_numbers_are_options_too() -> None:
    assert load("quadratics", optima=np.arange(3.0), samples=np.int64(2), seed=np.int64(-1)).inputs.shape == (6, 1)
    assert len(load("digits", seed=np.int64(5), test_fraction=np.float32(0.5))) == 899


@pytest.mark.parametrize("target", [np.int32, np.uint8, bool, np.float64])
def test_numpy_arrays_are_samples_too(target: Any) -> None:
    """They become float32 and int64, but for bytes, also views and read-only ones, and train to the bits of tensors."""
    inputs: Any = np.linspace(-1, 1, 120).reshape(5, 24).T[::-1]
    targets: Any = (inputs[:, :1] > 0).astype(target)
    inputs.setflags(write=False)
    dataset = Dataset("mine", inputs, targets, None, inputs, targets)
    kind = {np.float64: torch.float32, np.uint8: torch.uint8}.get(target, torch.int64)
    assert (dataset.inputs.dtype, dataset.targets.dtype) == (torch.float32, kind)
    assert dataset.test_inputs is not None and dataset.test_inputs.equal(dataset.inputs)
    rows, task = Population.of(dataset, clients=3).train, Task(lambda: torch.nn.Linear(5, 1), "mse")
    people = Population(inputs, targets, rows), Population(dataset.inputs, dataset.targets, rows)
    one, other = (simulate(task, each, FedAvg(LocalSGD(0.1, batch_size=4), Full()), 1).model for each in people)
    assert one.equal(other)


@pytest.mark.parametrize("bad", [np.array(["a", "b"]), np.array([1j, 2j]), [None, 1], "ab"])
def test_what_is_no_number_is_no_sample(bad: Any) -> None:
    with pytest.raises(UserError, match=r"dataset mine: targets are .*; give a tensor or an array of numbers"):
        Dataset("mine", torch.zeros(2, 1), bad, 2)
    with pytest.raises(UserError, match=r"population: inputs are .*; give a tensor or an array of numbers"):
        Population(bad, torch.zeros(2), Ragged(np.array([0, 2]), np.arange(2)))
