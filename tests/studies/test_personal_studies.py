"""The studies of personal models: what is measured of clients, and a run of each at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout_studies as studies
from turnout_studies.personal_runs import of_clients


@pytest.mark.parametrize("name", ["fedem_mixture", "personal_writers", "personal_cifar", "personal_shakespeare"])
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = studies.find(name)
    results = study.run("small", [0], tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)


def test_what_is_measured_of_clients() -> None:
    """Twelve clients; the last two are unseen. Weights are test samples; the (10/10)-th worst is the worst."""
    accuracy = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.4, 0.3, 0.2, np.nan, 0.25, 0.75])  # one without test samples
    table = {
        "unseen": np.arange(12) >= 10,
        "train_samples": np.arange(1, 13) * 10,
        "test_samples": np.array([2] * 9 + [0] + [1, 3]),
        "test_accuracy": accuracy,
        "validation_samples": np.ones(12),
        "validation_accuracy": np.linspace(0, 1, 12),
    }
    found = of_clients(table)
    assert found["accuracy"] == pytest.approx(accuracy[:9].mean())
    assert found["worst_decile"] == 0.2
    assert found["unseen"] == pytest.approx((0.25 + 3 * 0.75) / 4)
    assert found["small"] == pytest.approx(accuracy[:4].mean())
    assert found["large"] == pytest.approx(accuracy[6:9].mean())
    assert found["validation"] == pytest.approx(np.linspace(0, 1, 12)[:10].mean())
