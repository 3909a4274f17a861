"""The studies of CA-Fed: how rates are chosen, what is measured, and a run of each at its smallest size."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import turnout_studies as studies
from turnout.algorithms.fedavg import FedAvg
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import Sampler
from turnout.sampling.cafed import CAFed
from turnout.sampling.unbiased import Unbiased
from turnout.server.observer import Event, Round
from turnout_studies import cafed, cafed_presence, cafed_tradeoff
from turnout_studies import cafed_curves as curves
from turnout_studies.cafed_curves import GUESSING, Curve, Size
from turnout_studies.study import Claim, Measures, Results, Study, Trial

STUDIES: dict[str, Study] = {name: studies.find(name) for name in ("cafed", "cafed_tradeoff", "cafed_presence")}


class Remembered:
    """Trials with a known outcome: the best rates are 0.3 and 4."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def __call__(self, **trial: Any) -> dict[str, list[float]]:
        self.asked.append((trial["lr"], trial["server_lr"]))
        away = abs(np.log(trial["lr"] / 0.3)) + abs(np.log(trial["server_lr"] / 4))
        return {"train": [0.0, *[1 - float(away)] * 5]}

    def ahead(self, trials: Iterable[Trial]) -> None:
        self.announced = list(trials)


def test_rates_are_the_best_of_the_whole_grid() -> None:
    """A search that walks from neighbour to neighbour can end on a ridge: every pair is tried."""
    trials, trial = Remembered(), curves.planned("mnist", curves.ADAFED, "mnist adafed")
    tuned = curves.tune(trials, 0, Size(), {"mnist": 50}, [trial])  # type: ignore[arg-type]
    assert tuned == {"mnist adafed lr": 0.3, "mnist adafed server_lr": 4.0}
    assert len(set(trials.asked)) == len(trials.announced) == 36
    assert curves.completed(trial, tuned, {"mnist": 50}) == {
        "task": "mnist", "scheme": {"name": "adafed"}, "rounds": 50, "lr": 0.3, "server_lr": 4.0,
    }  # fmt: skip


# -- quantities of one run ------------------------------------------------------------------------------------


def test_quantities_of_a_curve() -> None:
    measures = {"test": [0.1, 0.2, 0.4, 0.4, 0.5, 0.5, 0.7], "train": [0.0, 0.2, 0.2, 0.2, 0.3, 0.6, 0.9]}
    assert curves.final(measures) == pytest.approx(0.5)
    assert curves.by(1.0, "train")(measures) == pytest.approx(0.44)
    assert curves.by(0.5)(measures) == pytest.approx(np.mean([0.1, 0.2, 0.4, 0.4]))
    assert curves.by(5 / 6)(measures) == pytest.approx(np.mean([0.2, 0.4, 0.4, 0.5, 0.5]))
    assert curves.time_average(measures) == pytest.approx(0.4)
    assert curves.unrest(measures) == pytest.approx(np.std([0.4, 0.5, 0.5, 0.7]))
    assert curves.at(0.5)(measures) == 0.4


def test_quantities_of_the_weights() -> None:
    """Two clients a group: often and correlated, often, seldom and correlated, seldom."""
    measures = {"weights": [0.1, 0.1, 0.0, 0.4, 0.2, 0.0, 0.1, 0.1]}
    assert curves.shares(measures) == pytest.approx([0.2, 0.4, 0.2, 0.2])
    assert [cafed._share(group)(measures) for group in range(4)] == pytest.approx([0.2, 0.4, 0.2, 0.2])
    assert cafed._often(measures) == pytest.approx(1.5)
    assert cafed._unevenness(measures) == pytest.approx(0.15)
    within_a_half = {"weights": [0.4, 0.1, 0.25, 0.25]}  # often and seldom are even, the four groups are not
    assert cafed._often(within_a_half) == pytest.approx(1)
    assert cafed._unevenness(within_a_half) == pytest.approx(0.15)
    assert cafed._unevenness({"weights": [0.3, 0.3, 0.3, 0.1]}) == pytest.approx(0.15)  # too little is uneven as well


def test_the_order_of_clusters() -> None:
    """Client i is in cluster i % 10."""
    excluded = np.zeros((2, 10))
    excluded[:, [8, 9]] = [[0.5, 0.9], [0.7, 0.9]]  # 0.75 on average
    excluded[:, [5, 6]] = [[0.1, 0.2], [0.1, 0.0]]  # 0.1
    excluded[:, [0, 4, 7]] = 1.0  # nobody looks at these
    measure = cafed_presence._most_correlated_first
    assert measure({"excluded": excluded.ravel().tolist()}) == pytest.approx(0.65)


# -- what a run leaves ----------------------------------------------------------------------------------------


def _server(sampler: Sampler) -> Any:
    return SimpleNamespace(algorithm=FedAvg(LocalSGD(0.1, steps=1), sampler))


def test_clients_excluded_in_the_second_half() -> None:
    """Of five rounds the last three count."""
    sampler, curve = CAFed(), Curve(5, 1, 3)
    curve.on_evaluate(_server(sampler), {"train_accuracy": 0.2, "test_accuracy": 0.1})
    for number, excluded in enumerate(([1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 1], [1, 0, 0]), start=1):
        sampler.excluded = np.array(excluded, bool)
        curve.on_round(_server(sampler), Round(number, 0.0, {"used": number}))
    assert curve.measures()["excluded"] == pytest.approx([1, 0, 1 / 3])
    assert curve.measures()["used"] == 3


def _curve(evaluations: int, diverged: bool, every: int = 5, rounds: int = 50) -> Measures:
    """Accuracy 0.5 in training and 0.8 in tests at so many evaluations; then the model is no longer finite."""
    server, curve = _server(Unbiased()), Curve(rounds, every, 1)
    curve.on_round(server, Round(1, 0.0, {"used": 1}))
    for _ in range(evaluations):
        curve.on_evaluate(server, {"train_accuracy": 0.5, "test_accuracy": 0.8})
    if diverged:
        curve.on_event(server, Event("diverged", 0, 0.0, {}))
        curve.on_evaluate(server, {"train_accuracy": 0.5, "test_accuracy": 0.8})  # a last look at what is left
    return curve.measures()


def test_a_diverged_run_ends_in_guessing() -> None:
    assert _curve(11, diverged=False)["test"] == [0.8] * 11
    early, late = _curve(3, diverged=True), _curve(10, diverged=True)  # before round 15, and after round 45
    assert early["test"] == [0.8] * 3 + [GUESSING] * 8
    assert early["train"] == [0.5] * 3 + [GUESSING] * 8
    assert late["test"] == [0.8] * 6 + [GUESSING] * 5
    assert curves.final(late) == curves.by(1.0, "train")(late) == pytest.approx(GUESSING)
    assert _curve(2, diverged=True, rounds=10)["test"] == [GUESSING] * 3  # shorter than what makes a final accuracy


def test_a_real_run_that_diverges() -> None:
    size = cafed.CAFed.sizes["small"]
    trial: Trial = {"task": "synthetic 0.5", "scheme": curves.UNBIASED, "rounds": 4, "server_lr": 1e38, "seed": 0}
    measures = STUDIES["cafed"].experiment(size, None, Plan(threads=1))({**trial, "lr": 1.0})
    assert measures["test"] == measures["train"] == [GUESSING] * 3


# -- what claims compare --------------------------------------------------------------------------------------


def _results(study: str, measured: list[tuple[Trial, list[Measures]]], **tuned: float) -> Results:
    """Hand-made results: measures of each seed for planned trials, all at learning rates 1."""
    rates = {f"{trial['rates']} {kind}": 1.0 for trial, _ in measured for kind in ("lr", "server_lr")}
    rounds = {trial["task"]: 10 for trial, _ in measured}
    trials = [
        ({**curves.completed(trial, rates, rounds), "seed": seed}, measures)
        for trial, by_seed in measured
        for seed, measures in enumerate(by_seed)
    ]
    return Results(study, "hand-made", [0, 1], {"rounds": rounds}, {**rates, **tuned}, trials)


def _claim(study: str, name: str) -> Claim:
    return next(claim for claim in STUDIES[study].claims if claim.name == name)


def test_distance_between_curves() -> None:
    """Curves that cross, and end together, are apart all the same."""
    one, other = cafed_tradeoff._cafed(0.5, 100.0), cafed_tradeoff._unbiased(0.5)
    results = _results(
        "cafed_tradeoff",
        [
            (one, [{"test": [0.1, 0.3, 0.5, 0.6]}, {"test": [0.1, 0.1, 0.1, 0.1]}]),
            (other, [{"test": [0.1, 0.5, 0.3, 0.6]}, {"test": [0.1, 0.1, 0.2, 0.4]}]),
        ],
    )
    claim = _claim("cafed_tradeoff", "kappa^2 100 tracks unbiased")
    assert claim.values(results) == pytest.approx([0.1, 0.1])
    assert claim.rule == "below 0.01"


def test_the_best_weight() -> None:
    """kappa^2 = 0.1 and 0.01 lead early, 100 and 10 at the end."""
    tests = {
        0.01: [[0.1, 0.3, 0.3], [0.1, 0.5, 0.3]],
        0.1: [[0.1, 0.4, 0.4], [0.1, 0.4, 0.4]],
        1.0: [[0.1, 0.2, 0.5], [0.1, 0.2, 0.5]],
        10.0: [[0.1, 0.2, 0.6], [0.1, 0.2, 0.9]],
        100.0: [[0.1, 0.2, 0.8], [0.1, 0.2, 0.7]],
    }
    measured = [
        (cafed_tradeoff._cafed(0.5, weight), [{"test": curve} for curve in by_seed])
        for weight, by_seed in tests.items()
    ]
    results = _results("cafed_tradeoff", measured)
    assert cafed_tradeoff._best_weight(results, curves.at(0.5)) == pytest.approx([-1, -2])
    assert cafed_tradeoff._best_weight(results, curves.at(1.0)) == pytest.approx([2, 1])


@pytest.mark.parametrize(("level", "gains"), [(0.25, [0.1, 0.2]), (0.5, [0.3, 0.4])])
def test_the_gain_in_between(level: float, gains: list[float]) -> None:
    """With the kappa^2 chosen, at the end of 200 rounds: at 0.4 of the run where that has 500."""
    after_200 = [0.0, 0.0, 0.3, 0.3, 0.3, 0.3, 0.3] + [0.1] * 9  # evaluations 2 to 6 of 15, then others
    measured: list[tuple[Trial, list[Measures]]] = [
        (cafed_tradeoff._cafed(level, 1.0), [{"test": [0.9] * 16}] * 2),
        (cafed_tradeoff._cafed(level, 10.0), [{"test": after_200}, {"test": [x + 0.1 for x in after_200]}]),
        (cafed_tradeoff._unbiased(level), [{"test": [0.0] * 16}] * 2),
    ]
    results = _results("cafed_tradeoff", measured, **{f"synthetic {level:g} kappa^2": 10.0})
    assert _claim("cafed_tradeoff", f"in between: cafed wins, {level:g}").values(results) == pytest.approx(gains)


def test_the_weight_is_chosen_on_training_accuracy() -> None:
    """At 0.5 after 0.4 of the run, where 10 leads; elsewhere at the end, where 1 does."""

    def trials(**trial: Any) -> Measures:
        assert trial["seed"] == 7
        weight = trial["scheme"]["bias_weight"]
        return {"train": [weight / 100] * 7 + [1 / weight] * 9, "test": [1 / weight] * 7 + [weight] * 9}

    tuned = {f"synthetic {level:g} {kind}": 1.0 for level in (0.25, 0.5) for kind in ("lr", "server_lr")}
    for level, best in ((0.5, 10.0), (0.25, 1.0)):
        chosen = cafed_tradeoff.CAFedTradeoff._choose(level, cafed_tradeoff.Rounds(), 7, trials, tuned)  # type: ignore[arg-type]
        assert chosen == best


@pytest.mark.parametrize("name", ["cafed", "f3ast"])
def test_weights_are_compared_within_a_seed(name: str) -> None:
    """Who was there is the same for both schemes: seldom and correlated clients have 0.1 less, then 0.05 more."""
    measured: list[tuple[Trial, list[Measures]]] = [
        (cafed._trial("synthetic 0.5", name), [{"weights": [3, 3, 2, 2]}, {"weights": [2, 2, 4, 2]}]),
        (cafed._trial("synthetic 0.5", "unbiased"), [{"weights": [2, 3, 3, 2]}, {"weights": [2, 2, 3.5, 2.5]}]),
    ]
    claim = _claim("cafed", f"{name} and those seldom online, correlated")
    assert claim.values(_results("cafed", measured)) == pytest.approx([-0.1, 0.05])
    assert claim.rule == ("below 0" if name == "cafed" else "above 0")


def test_what_is_watched() -> None:
    """CA-Fed counts transitions, the others rounds online; 100 rounds are compared with 10."""
    assert cafed_presence._estimated("cafed", 100)["scheme"]["estimator"] == "transitions"
    measured = [
        (cafed_presence._estimated("cafed", observed), [{"test": [accuracy]}] * 2)
        for observed, accuracy in ((10, 0.2), (100, 0.6), (1000, 0.7))
    ]
    measured += [
        (cafed_presence._estimated(rival, observed), [{"test": [0.3 + i / 10]}] * 2)
        for observed in (100, 1000)
        for i, rival in enumerate(("adafed", "unbiased", "more_available", "f3ast"))
    ]
    assert all(trial["scheme"]["estimator"] == "beta" for trial, _ in measured[3:])
    results = _results("cafed_presence", measured)
    assert _claim("cafed_presence", "watching helps").values(results) == pytest.approx([0.4, 0.4])
    gains = {
        claim.name.split(": cafed over ")[1]: claim.values(results)[0]
        for claim in STUDIES["cafed_presence"].claims
        if claim.name.startswith("estimated, 100 ")
    }
    assert gains == pytest.approx({"adafed": 0.3, "unbiased": 0.2, "more_available": 0.1, "f3ast": 0.0})


def test_final_is_the_end() -> None:
    """The last five evaluations of 50 rounds are the last five rounds."""
    assert cafed_presence.Rounds().every == 1


@pytest.mark.parametrize("name", STUDIES)
def test_the_small_size_runs_and_is_read_back(name: str, tmp_path: Path) -> None:
    study = STUDIES[name]
    results = study.run("small", range(2), tmp_path)
    judged = study.judge(study.read(tmp_path))
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)
    for _, measures in results.trials:
        assert len(measures["test"]) == len(measures["train"]) == results.trials[0][0]["rounds"] // 2 + 1
        assert 0 <= min(measures["test"]) <= max(measures["test"]) <= 1
    left_out = [sum(measures["excluded"]) for trial, measures in results.trials if trial["scheme"]["name"] == "cafed"]
    assert max(left_out) > 0
