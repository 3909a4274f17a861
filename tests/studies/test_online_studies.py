"""The studies of online mixtures: what they measure, and a run of each at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout_studies as studies
from turnout import Task
from turnout.task.models import mlp
from turnout_studies.fem_omd_mnist import Size, accuracies, accuracies_in_hindsight, learner_of, settled, stand_in
from turnout_studies.online.environment import LabelledStream, classes_in_order

NAMES = ("fem_omd", "fem_omd_mnist")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    for name, folder in folders.items():
        studies.find(name).run("small", [0], folder)
    return folders


@pytest.mark.parametrize("name", NAMES)
def test_the_small_size_runs_and_is_read_back(name: str, ran: dict[str, Path]) -> None:
    study = studies.find(name)
    judged = study.judge(study.read(ran[name]))
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)


def test_fewer_clients_have_more_regret_at_the_small_size_too(ran: dict[str, Path]) -> None:
    results = studies.find("fem_omd").read(ran["fem_omd"])
    assert len(results.trials) == 9  # the panels share their middle
    judged = {one.claim.name: one.mean for one in studies.find("fem_omd").judge(results)}
    assert judged["5 clients over 2"] > judged["100 clients over 20"] > 0


def test_rates_are_tuned_by_the_first_seed(ran: dict[str, Path]) -> None:
    results = studies.find("fem_omd_mnist").read(ran["fem_omd_mnist"])
    for method, rate in results.tuned.items():
        finals = {t["lr"]: m["regrets"][-1] for t, m in results.trials if t["method"] == method}
        assert len(finals) == 2
        assert finals[rate] == min(finals.values())


def test_when_a_regret_has_settled() -> None:
    """Regret 1 a step for 40 of 160 steps, then 0.2: a window of 20 grows less than half as fast from step 33 on, when
    it has 7 steps of 1 and 13 of 0.2; and never, if it always grows alike."""
    curve = np.cumsum(np.where(np.arange(160) < 40, 1.0, 0.2))
    assert settled(curve.tolist()) == 33
    assert settled(np.arange(1.0, 161).tolist()) == 160


def test_the_best_in_hindsight_has_seen_everything() -> None:
    """It beats what is played, whoever plays; both are judged by the same samples."""
    size, stream = Size(clients=3, hidden=8), LabelledStream(stand_in(), classes_in_order(10, 4), 3, 4)
    task = Task(lambda: mlp(12, [8], 10), seed=1)
    best = accuracies_in_hindsight(task, stream, 20, 20, seed=0)
    untrained = accuracies_in_hindsight(task, stream, 20, 0, seed=0)
    assert best.shape == untrained.shape == (20, 3)
    assert best.mean() > 0.9 > untrained.mean() + 0.4
    for method in ("fem_omd", "fedomd"):
        played = accuracies(learner_of(method, task, 0.3, size), stream, 20)
        assert played.shape == (20, 3)
        assert untrained.mean() < played[10:].mean() < best.mean()
