from __future__ import annotations

import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from tiny_files import Refused

from turnout.data import Dataset, load

bundled = import_module("sklearn.datasets")


def both(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    assert data.test_inputs is not None
    assert data.test_targets is not None
    return torch.cat([data.inputs, data.test_inputs]), torch.cat([data.targets, data.test_targets])


def test_digits() -> None:
    data = load("digits")
    assert (data.name, data.num_classes, data.groups) == ("digits", 10, None)
    assert data.inputs.shape == (1438, 64)
    assert data.inputs.dtype == torch.float32
    assert data.targets.shape == (1438,)
    assert data.targets.dtype == torch.int64
    inputs, targets = both(data)
    assert [inputs.min().item(), inputs.max().item()] == [0, 1]
    bunch = bundled.load_digits()
    expected = sorted([*row, label] for row, label in zip((bunch.data / 16).tolist(), bunch.target, strict=True))
    assert sorted([*row, label] for row, label in zip(inputs.tolist(), targets.tolist(), strict=True)) == expected


def test_the_test_set_has_its_share_of_every_class() -> None:
    _, targets = both(data := load("digits", test_fraction=0.25))
    assert data.test_targets is not None
    share = torch.bincount(data.test_targets) / torch.bincount(targets)
    assert torch.allclose(share, torch.tensor(0.25), atol=0.01)


def test_training_rows_keep_their_order() -> None:
    whole, part = load("digits", test_fraction=0.0), load("digits", test_fraction=0.5)
    assert whole.test_inputs is None
    assert whole.test_targets is None
    rows = {tuple(row): i for i, row in enumerate(whole.inputs.tolist())}
    positions = [rows[tuple(row)] for row in part.inputs.tolist()]
    assert positions == sorted(positions)


def test_digits_as_images() -> None:
    flat, image = load("digits"), load("digits", shape="image")
    assert image.inputs.shape == (1438, 1, 8, 8)
    assert torch.equal(image.inputs.flatten(1), flat.inputs)


@pytest.mark.parametrize("name", ["digits", "diabetes", "breast_cancer"])
def test_the_seed_decides_the_split(name: str) -> None:
    first, again, other = load(name, seed=1), load(name, seed=1), load(name, seed=2)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_diabetes_is_standardised_and_facts_turn_targets_back() -> None:
    data = load("diabetes")
    assert data.num_classes is None
    assert data.inputs.shape == (354, 10)
    assert data.targets.shape == (354, 1)
    assert data.targets.dtype == torch.float32
    for part in (data.inputs, data.targets):
        assert torch.allclose(part.mean(0), torch.zeros(part.shape[1]), atol=1e-5)
        assert torch.allclose(part.std(0, correction=0), torch.ones(part.shape[1]), atol=1e-5)
    _, targets = both(data)
    offset, scale = np.asarray(data.facts["target_offset"]), np.asarray(data.facts["target_scale"])
    original = np.sort(offset + scale * targets.numpy().astype(np.float64), axis=0)[:, 0]
    np.testing.assert_allclose(original, np.sort(bundled.load_diabetes().target), rtol=1e-5)


def test_minmax_and_none() -> None:
    data = load("diabetes", normalise="minmax")
    for part in (data.inputs, data.targets):
        assert [part.min().item(), part.max().item()] == [0, 1]
    inputs, _ = both(load("diabetes", normalise="none"))
    assert inputs[:, 0].max() == bundled.load_diabetes(scaled=False).data[:, 0].max()


def test_breast_cancer() -> None:
    data = load("breast_cancer")
    assert data.num_classes == 2
    assert data.inputs.shape == (456, 30)
    assert torch.allclose(data.inputs.mean(0), torch.zeros(30), atol=1e-5)
    _, targets = both(data)
    assert torch.bincount(targets).tolist() == np.bincount(bundled.load_breast_cancer().target).tolist()


def test_without_scikit_learn_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with refused("digits", "pip install scikit-learn"):
        load("digits")
