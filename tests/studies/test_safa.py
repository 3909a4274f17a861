"""The studies of SAFA: their tables, their trials, and a run of each at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import turnout_studies as studies
from turnout import UserError
from turnout_studies import safa_tables
from turnout_studies.safa_accuracy import relative_accuracy
from turnout_studies.safa_time import cells


def test_published_lengths_without_distribution() -> None:
    assert safa_tables.round_seconds("kdd99", "safa", 0.7, 0.1) == pytest.approx(141.9)
    assert safa_tables.round_seconds("mnist", "fedavg", 0.7, 1.0) == pytest.approx(5600)


def test_tables_are_whole() -> None:
    for task in ("boston", "mnist", "kdd99"):
        for algorithm in ("fedavg", "fedcs", "safa"):
            lengths = safa_tables.LENGTHS[task][algorithm]
            assert {crash: len(row) for crash, row in lengths.items()} == dict.fromkeys(safa_tables.CRASH_RATES, 5)
        assert all(0 < value <= 1 for row in safa_tables.ACCURACIES[task]["local"].values() for value in row)


def test_accuracy_of_a_regression() -> None:
    """1 - |y - y'| / max(y, y'), never below 0."""
    outputs, targets = torch.tensor([[0.5], [0.2], [-1.0]]), torch.tensor([[1.0], [0.2], [0.5]])
    torch.testing.assert_close(relative_accuracy(outputs, targets), torch.tensor([0.5, 1.0, 0.0]))


@pytest.mark.parametrize("name", ["safa_time", "safa_accuracy", "safa_mnist"])
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = studies.find(name)
    results = study.run("small", range(2), tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)


def test_workers_change_nothing(tmp_path: Path) -> None:
    study = studies.find("safa_time")
    alone, shared = (study.run("small", [3], tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert alone.trials == shared.trials


def test_workers_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="0 workers"):
        studies.find("safa_time").run("small", [0], tmp_path, workers=0)


def test_safa_closes_sooner_than_fedavg(tmp_path: Path) -> None:
    """Cells are [seed, crash rate, fraction]; with a small fraction SAFA never waits for the deadline."""
    results = studies.find("safa_time").run("small", range(2), tmp_path)
    lengths = {
        scheme: cells(results, lambda measures: measures["round_seconds"], "kdd99", scheme)
        for scheme in ("fedavg", "safa")
    }
    assert lengths["safa"].shape == (2, 1, 2)
    assert (lengths["safa"] < lengths["fedavg"]).all()
