"""Pools that are larger than memory may be: nothing reads or copies them whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_files import Refused

from turnout import Dataset, Population, Ragged
from turnout.clients import arriving, memories
from turnout.clients.quality import degrade
from turnout.core import trees
from turnout.data import partition

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "large_pool.py"


def test_a_mapped_pool_is_trained_and_evaluated_in_little_memory() -> None:
    """256 MB of images: a copy as they are, or as numbers (1 GB), would not keep within the bound."""
    command = [sys.executable, str(BENCHMARK), "--gb", "0.256", "--rounds", "1", "--bound", "400"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_copies_all_samples_says_so(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr(trees, "COPIED", 1 << 62)
    data = Dataset("d", torch.ones(8, 2), torch.arange(8) % 2, 2, torch.ones(4, 2), torch.arange(4) % 2)
    with refused("clients.test: matched copies all samples", "MiB"):
        Population.of(data, 2, "one_class", test="matched")
    with refused("quality", "copies all samples"):
        degrade(Population.of(data, 2), {"label_noise": 0.5})


TREE = {"a": torch.arange(12.0).view(6, 2), "b": torch.arange(6)}


@pytest.mark.parametrize("name", ["shards", "dirichlet", "dirichlet_equal", "one_class", "pachinko"])
def test_partitions_by_class_need_one_label_a_sample(name: str, refused: Refused) -> None:
    options = {"alpha": 0.5} if "dirichlet" in name else {}
    with refused(f"partition {name}", "one label"):
        partition.PARTITIONS[name](Dataset("d", TREE, TREE, 3), 2, 0, **options)
    assert len(partition.iid(Dataset("d", TREE, TREE, 3), 2, 0)) == 2


def test_drift_and_bad_data_need_one_label_a_sample(refused: Refused) -> None:
    people = Population(TREE, TREE, Ragged.from_rows([[0, 1, 2], [3, 4, 5]]))
    assert people.streaming(arriving.constant(1), memories.Latest()).stream is not None
    with refused("stream.drift", "one label"):
        people.streaming(arriving.constant(1), memories.Latest(), drift=0.5)
    with refused("quality", "one label"):
        degrade(people, {"label_noise": 0.5})


def test_a_population_of_trees_is_saved_and_stays_in_its_files(tmp_path: Path) -> None:
    inputs = {"pixels": torch.zeros(400, 3, 32, 32, dtype=torch.uint8), "age": torch.ones(400, 1)}
    people = Population(inputs, (torch.arange(400), torch.ones(400)), Ragged.from_rows([range(400)]))
    people.save(tmp_path / "people")
    again = Population.open(tmp_path / "people")
    assert torch.equal(again.inputs["pixels"], inputs["pixels"])
    assert torch.equal(again.targets[0], torch.arange(400))
    assert again.inputs["pixels"].dtype == torch.uint8


def test_a_batch_has_the_numbers_of_the_model() -> None:
    inputs = {"half": torch.ones(4, 2).half(), "bytes": torch.ones(4, 2).byte(), "tokens": torch.ones(4).short()}
    targets = torch.tensor(np.array([1, 2, 3, 4], np.uint8)), torch.ones(4).bool()
    like = torch.zeros((), dtype=torch.float64)
    for rows in (slice(1, 3), torch.tensor([[1], [2]])):
        x, y = trees.batch(inputs, targets, rows, like)
        assert [leaf.dtype for leaf in x.values()] == [torch.float64, torch.uint8, torch.int64]
        assert [leaf.dtype for leaf in y] == [torch.int64, torch.bool]
        assert y[0].flatten().tolist() == [2, 3]
