"""The studies of free-riders and detectors: what is measured, and a run of each at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout_studies as studies
from turnout_studies import free_riders, liar_detectors
from turnout_studies.study import Results


@pytest.mark.parametrize("name", ["free_riders", "liar_detectors"])
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = studies.find(name)
    results = study.run("small", [0], tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)
    if name == "liar_detectors":
        lines = liar_detectors.table(results, "iid", best=True)
        assert len(lines) == len(liar_detectors.ATTACKS) + 2
        assert liar_detectors.found(results, "identical_upload", ["plain"], "iid").tolist() == [1]


def test_what_follows_from_the_curves() -> None:
    """Honest training halves its loss in 4 of 8 rounds, the other in 6; ripples are what is not trend."""
    steady = {"losses": [2.0 - t / 4 for t in range(9)], "accuracies": [0.1, 0.9], "rounds": 8}
    slower = {"losses": [2.0 - t / 6 for t in range(9)], "accuracies": [0.1, 0.7], "rounds": 8}
    trials = [
        (free_riders.trial_of("fedavg", riders) | {"seed": 3}, measures)
        for riders, measures in ((0, steady), (5, slower))
    ]
    results = Results("free_riders", "small", [3], {}, {}, trials)
    assert free_riders.slowdown(results, "fedavg", 5, "plain").tolist() == [1.5]
    assert free_riders.gap(free_riders.final_accuracy, 5, 0, ("fedavg", "plain"))(results) == pytest.approx([-0.2])
    assert free_riders.early_loss(steady) == 1.75
    long = {"losses": [float(t % 2) for t in range(41)], "rounds": 40}
    assert free_riders.unrest(long) > 0.7
    assert free_riders.unrest({"losses": list(range(41)), "rounds": 40}) == pytest.approx(0, abs=1e-12)


def test_curves_of_scores() -> None:
    """Liars score 3 and 1, honest clients 0, 1, 2 and nothing: a limit that accuses nobody finds one of the two."""
    trial = {"attack": "plain", "split": "iid", "seed": 0}
    scores = {"norm": [[3.0, 0.0, 1.0], [1.0, 2.0, None]]}
    results = Results("liar_detectors", "small", [0], {}, {}, [(trial, {"scores": scores, "liars": 1})])
    wrongly, rightly = liar_detectors.curve(results, "norm", "plain", "iid")
    assert wrongly.tolist()[:4] == [0, 0, 0.25, 0.5]
    assert rightly.tolist()[:4] == [0, 0.5, 0.5, 1]
    assert liar_detectors.attainable(results, "norm", "plain", "iid") == 0.5
    assert liar_detectors.attainable(results, "norm", "plain", "iid", accused=0.5) == 1
