"""The study of FedProf: its data, what it measures, and a run at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from turnout import Task, studies
from turnout.datasets.dataset import Dataset
from turnout.studies.fedprof import (
    SCHEMES,
    cnn,
    dominated,
    energy_to,
    learner,
    rounds_to,
    stand_in,
    trained,
)

RUN = {"accuracy": [0.1, 0.5, 0.7, 0.6], "energy": [0.0, 1.0, 2.0, 4.0], "trained": {"normal": 1.5, "blur": 0.3}}


def test_rounds_and_energy_to_a_target() -> None:
    """Where it is never reached: one round more than there are, and all the energy."""
    assert [rounds_to(target)(RUN) for target in (0.05, 0.5, 0.6, 0.7, 0.9)] == [1, 1, 2, 2, 4]
    assert [energy_to(target)(RUN) for target in (0.5, 0.7, 0.9)] == [1, 2, 4]
    assert trained("normal")(RUN) == pytest.approx(50)
    assert trained("blur", "irrelevant")(RUN) == pytest.approx(10)


def test_a_class_dominates() -> None:
    labels = torch.arange(5000) % 10
    rows = dominated(Dataset("digits", torch.zeros(5000, 1), labels, 10), 20, seed=1)
    assert set(rows.counts.tolist()) == {250}
    assert len(np.unique(rows.values)) == 5000
    for client in range(20):
        share = np.bincount(labels.numpy()[rows.row(client)], minlength=10) / 250
        assert share.argmax() == client % 10
        assert 0.55 < share.max() < 0.75
    assert not np.array_equal(rows.values, dominated(Dataset("digits", torch.zeros(5000, 1), labels, 10), 20, 2).values)


def test_the_first_dense_layer_of_the_network_has_128_units() -> None:
    task = Task(cnn)
    task.activations(torch.zeros(1, 1, 28, 28), torch.zeros(1).long())
    assert task.layer_shapes[task.first_linear] == (128,)


def test_accuracy_of_a_regression_is_in_the_units_measured() -> None:
    """Targets are standardised; here 5 and 6 are measured, and 5 and 4 are said."""
    data = stand_in("S", 2)
    accuracy = learner("S", data, seed=0).metrics["accuracy"](torch.tensor([[0.0, -1.0]]), torch.tensor([[0.0, 1.0]]))
    assert float(accuracy) == pytest.approx((1 + 4 / 6) / 2)


def test_the_small_size_runs_and_is_read_back(tmp_path: Path) -> None:
    study = studies.find("fedprof")
    results = study.run("small", range(2), tmp_path)
    assert len(results.trials) == 2 * 2 * sum(map(len, SCHEMES.values())) * 2
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"undecided"}  # two seeds decide nothing
    assert all(np.isfinite(one.values).all() for one in judged)
    by_scheme = {trial["scheme"]: measures for trial, measures in results.trials}
    assert by_scheme["fedprof"]["init_energy"] > 0 == by_scheme["fedavg"]["init_energy"]
    assert by_scheme["fedprof"]["init_seconds"] > 0 == by_scheme["cfcfm"]["init_seconds"]
    assert by_scheme["fedprof"]["energy"][-1] > by_scheme["fedprof"]["init_energy"]
