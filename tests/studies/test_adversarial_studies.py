"""The studies of adversarial unavailability: what is measured, and a run of each at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from turnout import studies
from turnout.studies.adversarial_cifar import lenet5
from turnout.studies.adversarial_runs import GUESSING, METHODS, late_accuracy, late_loss, most_missing, unrest
from turnout.studies.losses import USELESS
from turnout.studies.study import Measures

CURVES: Measures = {
    "losses": [3.0, 2.0, 1.0, 9.0, 1.0],
    "accuracies": [0.1, 0.2, 0.3, 0.4, 0.5],
    "missing": [0.0, 0.7, 0.8, 0.1],
    "models_remembered": 2.0,
    "diverged": False,
}


def test_what_follows_from_the_curves() -> None:
    assert late_loss(CURVES) == pytest.approx(3.2)
    assert late_accuracy(CURVES) == pytest.approx(0.3)
    assert unrest(CURVES) == pytest.approx(np.std([USELESS - 1, 1 - USELESS]))
    assert most_missing(CURVES) == 0.8
    lost = {**CURVES, "diverged": True}
    assert (late_loss(lost), late_accuracy(lost), unrest(lost)) == (USELESS, GUESSING, USELESS)


def test_the_network_takes_small_images() -> None:
    assert lenet5()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "budgets"), [("adversarial_cifar", (0.8, 0.2)), ("adversarial_synthetic", (0.9, 0.7))]
)
def test_the_small_size_runs_and_is_read_back(name: str, budgets: tuple[float, float], tmp_path: Path) -> None:
    study = studies.find(name)
    results = study.run("small", [0], tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert len({claim.name for claim in study.claims}) == len(study.claims)
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"undecided"}  # one seed decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)
    assert set(results.tuned) == {f"{budget} {method}" for budget in budgets for method in METHODS}
    for trial, measures in results.trials:
        assert max(measures["missing"]) <= trial["epsilon"] + 1e-6
        assert measures["missing"][0] == 0
        assert max(measures["missing"]) > 0 or trial["epsilon"] == 0.2
