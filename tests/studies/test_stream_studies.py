"""The studies of data streams, at their smallest size."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import turnout_studies as studies
from turnout import data as datasets
from turnout.data.partition import iid
from turnout_studies.stream_runs import two_pools


@pytest.mark.parametrize("name", ["stream_synthetic", "stream_cifar", "stream_writers"])
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = studies.find(name)
    results = study.run("small", [0], tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)
    assert (tmp_path / "accuracy_by_share.svg").read_text(encoding="utf-8").count("nu = ") == 3
    ours = [measures for trial, measures in results.trials if trial["weighting"] == "optimal"]
    assert all(measures["estimated_ratio"] > 0 for measures in ours)
    weights = {trial["weighting"]: measures["historical"] for trial, measures in results.trials}
    assert (weights["historical"], weights["fresh"], weights[0.5]) == pytest.approx((1, 0, 0.5))


def test_two_pools() -> None:
    digits = datasets.load("digits")
    rows = two_pools(digits, 10, 3, share=0.2, deal=partial(iid))
    assert sorted(rows.values.tolist()) == list(range(len(digits.targets)))
    assert rows.counts[:5].sum() == round(0.2 * len(digits.targets))
