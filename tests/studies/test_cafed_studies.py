"""The studies of CA-Fed: how rates are chosen, what is measured, and a run of each at its smallest size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout import studies
from turnout.studies import cafed_curves as curves
from turnout.studies.cafed_curves import Size


class Remembered:
    """Trials with a known outcome: the best rates are 0.3 and 4."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def __call__(self, **trial: Any) -> dict[str, list[float]]:
        self.asked.append((trial["lr"], trial["server_lr"]))
        away = abs(np.log(trial["lr"] / 0.3)) + abs(np.log(trial["server_lr"] / 4))
        return {"train": [0.0, *[1 - float(away)] * 5]}


@pytest.mark.parametrize("first", [(0.01, 0.1), (2.0, 8.0), (0.3, 4.0), (1.0, 7.0)])
def test_rates_are_found_from_anywhere(first: tuple[float, float]) -> None:
    trials, trial = Remembered(), curves.planned("mnist", curves.ADAFED, "mnist adafed")
    tuned = curves.tune(trials, 0, Size(), 50, trial, first)  # type: ignore[arg-type]
    assert tuned == {"mnist adafed lr": 0.3, "mnist adafed server_lr": 4.0}
    assert len(set(trials.asked)) < 36
    assert curves.completed(trial, tuned, {"mnist": 50}) == {
        "task": "mnist", "scheme": {"name": "adafed"}, "rounds": 50, "lr": 0.3, "server_lr": 4.0,
    }  # fmt: skip


def test_quantities() -> None:
    measures = {"test": [0.1, 0.2, 0.4, 0.4, 0.5, 0.5, 0.7], "weights": [0.1, 0.1, 0.0, 0.2, 0.2, 0.1, 0.1, 0.0]}
    assert curves.final(measures) == pytest.approx(0.5)
    assert curves.time_average(measures) == pytest.approx(0.4)
    assert curves.unrest(measures) == pytest.approx(np.std([0.4, 0.5, 0.5, 0.7]))
    assert curves.at(0.5)(measures) == 0.4
    assert curves.shares(measures) == pytest.approx([0.25, 0.25, 0.375, 0.125])


@pytest.mark.parametrize("name", ["cafed", "cafed_tradeoff", "cafed_presence"])
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = studies.find(name)
    results = study.run("small", range(2), tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"undecided"}  # two seeds decide nothing
    assert all(np.isfinite(one.values).all() for one in judged)
    for _, measures in results.trials:
        assert len(measures["test"]) == len(measures["train"]) == results.trials[0][0]["rounds"] // 2 + 1
        assert 0 <= min(measures["test"]) <= max(measures["test"]) <= 1
    left_out = [sum(measures["excluded"]) for trial, measures in results.trials if trial["scheme"]["name"] == "cafed"]
    assert max(left_out) > 0
