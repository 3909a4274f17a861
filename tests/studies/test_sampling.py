"""The studies of client sampling: what is measured, and a run of each at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout_studies as studies
from turnout_studies.sampling_curves import early_classes, fewest_clients, late_classes, late_loss, unrest

CURVES = {
    "losses": [4.0, 3.0, 2.0, 1.0],
    "accuracies": [0.1, 0.2, 0.3, 0.4],
    "distinct": [10, 9, 10, 10],
    "distinct_classes": [6, 7, 8, 10],
}


def test_what_follows_from_the_curves() -> None:
    assert late_loss(CURVES) == 1.0  # fewer than twelve evaluations: the last
    assert late_loss({**CURVES, "losses": list(range(13))}) == 11.5
    assert unrest(CURVES) == 0  # a steady fall is smooth
    assert unrest({**CURVES, "losses": [4.0, 3.0, 2.0, 5.0, 1.0]}) == pytest.approx(np.std([3.0, -4.0]))
    assert fewest_clients(CURVES) == 9
    assert late_classes(CURVES) == 10
    assert early_classes(CURVES) == 7.75


@pytest.mark.parametrize("name", ["clustered_mnist", "clustered_cifar"])
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = studies.find(name)
    results = study.run("small", range(2), tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)


def test_known_digits_are_all_heard_of(tmp_path: Path) -> None:
    """One client of every digit in each round when the groups are known; six or seven digits with MD."""
    results = studies.find("clustered_mnist").run("small", range(2), tmp_path)
    assert results.each(late_classes, scheme="target").tolist() == [10, 10]
    assert (results.each(early_classes, scheme="md") < 9).all()
