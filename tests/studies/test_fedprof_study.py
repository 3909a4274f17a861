"""The studies of FedProf: their data, what they measure, and a run of each at its smallest size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout_studies as studies
from turnout import Plan, Task
from turnout.data.dataset import Dataset
from turnout_studies import fedprof, fedprof_images
from turnout_studies.fedprof import FULL, PARTIAL, SCHEMES, at_least_until, best, turns, until
from turnout_studies.fedprof_images import cnn, dominated
from turnout_studies.study import FAILS, HOLDS, UNDECIDED, Measures, Results, Study

RUN: Measures = {
    "accuracy": [0.1, 0.5, 0.7, 0.6],
    "seconds": [3.0, 5.0, 6.0, 8.0],
    "energy": [0.5, 1.0, 2.0, 4.0],
    "turns": {"normal": 1.5, "blur": 0.3},
}


def test_what_a_target_costs() -> None:
    """Where it is never reached: infinitely much for who is judged, all that was spent for its rival."""
    assert [until("rounds", target)(RUN) for target in (0.05, 0.5, 0.6, 0.7, 0.9)] == [1, 1, 2, 2, math.inf]
    assert [until("energy", target)(RUN) for target in (0.5, 0.7, 0.9)] == [1, 2, math.inf]
    assert [until("seconds", target)(RUN) for target in (0.5, 0.7, 0.9)] == [5, 6, math.inf]
    for what, all_of_it in (("rounds", 3), ("seconds", 8), ("energy", 4)):
        assert at_least_until(what, 0.7)(RUN) == until(what, 0.7)(RUN)
        assert at_least_until(what, 0.9)(RUN) == all_of_it


def test_accuracy_and_turns() -> None:
    assert [best(RUN, rounds) for rounds in (0, 1, 2, 50)] == [0.1, 0.5, 0.7, 0.7]
    assert best(RUN) == 0.7
    assert turns("normal")(RUN) == pytest.approx(50)
    assert turns("blur", "irrelevant")(RUN) == pytest.approx(10)


# -- verdicts, on invented runs -------------------------------------------------------------------------------


def invented(study: Study, curves: dict[tuple[str, str], Any]) -> dict[str, str]:
    """Verdicts where a (mode, scheme) has these accuracies, a function of C or the same for all; others 0.5."""
    table = study.table  # type: ignore[attr-defined]
    trials = []
    for mode, schemes in SCHEMES.items():
        for scheme in schemes:
            for fraction in table.fractions:
                curve = curves.get((mode, scheme), [0.1, 0.5])
                accuracy = curve(fraction) if callable(curve) else curve
                steps = [float(round_) for round_ in range(len(accuracy))]
                measures = {"accuracy": accuracy, "seconds": steps, "energy": steps, "turns": {"normal": 2.0}}
                trial = {"mode": mode, "scheme": scheme, "fraction": fraction}
                trials += [({**trial, "seed": seed}, measures) for seed in range(5)]
    results = Results(study.name, "default", list(range(5)), {}, {}, trials)
    return {one.claim.name: one.verdict for one in study.judge(results)}


@pytest.mark.parametrize("study", [fedprof.STUDY, fedprof_images.STUDY])
def test_nothing_is_faster_where_nobody_learns(study: Study) -> None:
    """Fewer rounds of partial aggregation than of full are no merit."""
    lazy = {(mode, scheme): [0.1] * (51 if mode == PARTIAL else 301) for mode in SCHEMES for scheme in SCHEMES[mode]}
    verdicts = invented(study, lazy)
    assert {verdicts[name] for name in ("rounds", "energy", "partial is faster")} == {UNDECIDED}
    assert verdicts.get("time", UNDECIDED) == UNDECIDED


@pytest.mark.parametrize("study", [fedprof.STUDY, fedprof_images.STUDY])
def test_who_gets_there_is_faster_than_who_never_does(study: Study) -> None:
    slow, quick = [0.1] * 101, [0.1, 0.95] + [0.1] * 99
    verdicts = invented(study, {(FULL, "fedavg"): slow, (FULL, "fedprof"): quick, (PARTIAL, "fedprof"): quick})
    assert verdicts["rounds"] == verdicts.get("time", HOLDS) == HOLDS
    assert verdicts["partial is faster"] == FAILS  # one round each
    late = [0.1] * 50 + [0.95] + [0.1] * 50
    verdicts = invented(study, {(FULL, "fedavg"): quick, (FULL, "fedprof"): late, (PARTIAL, "fedprof"): quick})
    assert verdicts["rounds"] == verdicts.get("time", FAILS) == FAILS
    assert verdicts["partial is faster"] == HOLDS


@pytest.mark.parametrize("study", [fedprof.STUDY, fedprof_images.STUDY])
def test_first_of_all_means_in_every_column(study: Study) -> None:
    low, _ = study.table.fractions  # type: ignore[attr-defined]
    fedprof_best = {(FULL, "fedprof"): [0.1, 0.8], (PARTIAL, "fedprof"): [0.1, 0.8]}
    assert invented(study, fedprof_best)["first of all, full"] == HOLDS
    once = {**fedprof_best, (FULL, "cfcfm"): lambda fraction: [0.1, 0.81 if fraction == low else 0.1]}
    assert invented(study, once)["first of all, full"] == FAILS
    rival = {**fedprof_best, (PARTIAL, "fedavg_rp"): lambda fraction: [0.1, 0.79 if fraction == low else 0.1]}
    assert invented(study, rival)["over FedAvg-RP"] == FAILS  # a point is not half of 2.5


# -- data and models ------------------------------------------------------------------------------------------


def test_a_class_dominates() -> None:
    labels = torch.arange(5000) % 10
    rows = dominated(Dataset("digits", torch.zeros(5000, 1), labels, 10), 20, seed=1)
    assert set(rows.counts.tolist()) == {240}
    assert len(np.unique(rows.values)) == 4800
    for client in range(20):
        share = np.bincount(labels.numpy()[rows.row(client)], minlength=10) / 240
        assert share.argmax() == client % 10
        assert 0.55 < share.max() < 0.75
    assert not np.array_equal(rows.values, dominated(Dataset("digits", torch.zeros(5000, 1), labels, 10), 20, 2).values)


def test_the_first_dense_layer_of_the_network_has_128_units() -> None:
    task = Task(cnn)
    task.activations(torch.zeros(1, 1, 28, 28))
    assert task.layer_shapes[task.first_linear] == (128,)


def test_accuracy_of_a_regression_is_in_the_units_measured() -> None:
    """Targets are standardised; here 5 and 6 are measured, and 5 and 4 are said."""
    data = fedprof.STUDY.load(fedprof.STUDY.sizes["small"], None)
    accuracy = fedprof.STUDY.learner(data, seed=0).metrics["accuracy"](
        torch.tensor([[0.0, -1.0]]), torch.tensor([[0.0, 1.0]])
    )
    assert float(accuracy) == pytest.approx((1 + 4 / 6) / 2)


@pytest.mark.parametrize("name", ["fedprof", "fedprof_images"])
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = studies.find(name)
    results = study.run("small", range(2), tmp_path)
    assert len(results.trials) == 2 * sum(map(len, SCHEMES.values())) * 2
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    by_scheme = {(trial["mode"], trial["scheme"]): measures for trial, measures in results.trials}
    first, usual = by_scheme[FULL, "fedprof"], by_scheme[FULL, "fedavg"]
    assert first["init_energy"] > 0 == usual["init_energy"]
    assert first["init_seconds"] > 0 == usual["init_seconds"]
    assert first["energy"][-1] > first["init_energy"]


def test_draws_are_counted_where_the_weights_tell() -> None:
    """K draws a round, of the same client more than once; full aggregation tells only who trained."""
    study = fedprof.STUDY
    carry_out = study.experiment(study.sizes["small"], None, Plan(threads=1))
    trial: dict[str, Any] = {"scheme": "fedprof", "fraction": 0.3, "seed": 1}
    tags = {"irrelevant": 1, "gaussian_noise": 4, "normal": 5}  # of ten clients
    partial, full = (
        sum(tags[tag] * often for tag, often in carry_out({**trial, "mode": mode})["turns"].items())
        for mode in (PARTIAL, FULL)
    )
    assert partial == pytest.approx(2 * 3)
    assert full <= partial


def test_the_learning_rate_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def watch(_task: object, _people: object, method: Any, *_args: Any, **_options: Any) -> Any:
        seen.append(method.local.lr_decay)
        raise InterruptedError

    monkeypatch.setattr(fedprof, "simulate", watch)
    carry_out = fedprof.STUDY.experiment(fedprof.STUDY.sizes["small"], None, Plan(threads=1))
    for mode, schemes in SCHEMES.items():
        for scheme in schemes:
            with pytest.raises(InterruptedError):
                carry_out({"mode": mode, "scheme": scheme, "fraction": 0.2, "seed": 0})
    assert seen == [0.99] * sum(map(len, SCHEMES.values()))
