"""Verdicts, trials that are carried out once, results that can be judged again, and the commands."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import turnout_studies as studies
from cli.terminal import Terminal
from turnout import UserError
from turnout.core.random import FloatArray
from turnout.core.statistics import interval
from turnout.engine.plan import Plan
from turnout_studies.study import (
    FAILS,
    HOLDS,
    NOT_JUDGED,
    UNDECIDED,
    Claim,
    Experiment,
    Measures,
    Results,
    Study,
    Trial,
    Trials,
    verdict,
)

# -- verdicts -------------------------------------------------------------------------------------------------


def test_the_interval_is_students() -> None:
    values = [1.0, 2.0, 4.0, 4.5, 7.0]
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    mean, half = interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-12)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf, 2.0]])
def test_values_that_cannot_tell_have_no_interval(values: list[float]) -> None:
    assert interval(values)[1] == math.inf


SPREAD = np.array([-0.2, -0.1, 0.0, 0.1, 0.2])
HALF = interval(SPREAD)[1]


@pytest.mark.parametrize(
    ("centre", "thresholds", "expected"),
    [
        (1.0, {"above": 0}, HOLDS),
        (-1.0, {"above": 0}, FAILS),
        (0.1, {"above": 0}, UNDECIDED),
        (HALF * 1.001, {"above": 0}, HOLDS),
        (HALF * 0.999, {"above": 0}, UNDECIDED),
        (-HALF * 1.001, {"above": 0}, FAILS),
        (-HALF * 0.999, {"above": 0}, UNDECIDED),
        (-1.0, {"below": 0}, HOLDS),
        (1.0, {"below": 0}, FAILS),
        (1.0, {"above": 0, "below": 2}, HOLDS),
        (2.5, {"above": 0, "below": 2}, FAILS),
        (-0.5, {"above": 0, "below": 2}, FAILS),
        (1.9, {"above": 0, "below": 2}, UNDECIDED),
    ],
)
def test_the_whole_interval_decides(centre: float, thresholds: dict[str, float], expected: str) -> None:
    assert verdict(centre + SPREAD, **thresholds) == expected


def test_four_seeds_decide_nothing() -> None:
    assert verdict([1.0] * 4, above=0) == UNDECIDED
    assert verdict([1.0] * 5, above=0) == HOLDS


def test_no_difference_at_all_is_not_a_difference() -> None:
    assert verdict([0.0] * 5, above=0) == FAILS


def test_a_seed_without_a_number_leaves_it_open() -> None:
    assert verdict([1.0, 1.0, 1.0, 1.0, 1.0, math.nan], above=0) == UNDECIDED


@pytest.mark.parametrize(
    ("thresholds", "words"), [({"above": 0}, "above 0"), ({"above": 1.5, "below": 3}, "above 1.5 and below 3")]
)
def test_the_rule_in_words(thresholds: dict[str, float], words: str) -> None:
    assert Claim("name", "sentence", "source", "measured", lambda _: SPREAD, **thresholds).rule == words


# -- trials ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    noise: float


def _difference(results: Results) -> FloatArray:
    first, second = (results.each(lambda m: float(m["loss"]), scheme=scheme, lr=results.tuned["lr"]) for scheme in "ab")
    return first - second


def _never(results: Results) -> FloatArray:
    return -_difference(results)


class Toy(Study):
    """Scheme a loses 1 more than scheme b, give or take noise; the best learning rate is 0.2."""

    name, title, source, setting = "toy", "A toy", "nobody", "In words."
    small_data = "wood in the place of steel"
    sizes = {"small": Size(0.1), "default": Size(0.2)}
    claims = (
        Claim("b wins", "b beats a.", "nobody", "loss of a minus loss of b", _difference, above=0),
        Claim("a wins", "a beats b.", "nobody", "loss of b minus loss of a", _never, above=0),
    )

    def __init__(self) -> None:
        self.carried_out: list[Trial] = []
        self.fail_after = math.inf

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        def carry_out(trial: Trial) -> Measures:
            if len(self.carried_out) >= self.fail_after:
                raise KeyboardInterrupt
            self.carried_out.append(trial)
            noise = size.noise * math.sin(1 + 7 * trial["seed"] + (trial["scheme"] == "a"))
            return {"loss": (trial["scheme"] == "a") + abs(trial["lr"] - 0.2) + noise, "odd": math.nan}

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        lr = min((0.1, 0.2, 0.5), key=lambda lr: trials(scheme="a", lr=lr, seed=seeds[0])["loss"])
        for seed in seeds:
            for scheme in "ab":
                trials(scheme=scheme, lr=lr, seed=seed)
        return {"lr": lr}


def test_each_trial_is_carried_out_once(tmp_path: Path) -> None:
    toy = Toy()
    results = toy.run("small", range(5), tmp_path)
    assert len(toy.carried_out) == 3 + 9 == len(results.trials)
    assert toy.run("small", range(5), tmp_path) == results
    assert len(toy.carried_out) == 12
    more = toy.run("small", range(6), tmp_path)
    assert len(toy.carried_out) == 14
    assert more.seeds == [0, 1, 2, 3, 4, 5]


def test_every_cell_at_its_own_rate(tmp_path: Path) -> None:
    """The best of the first seed, the first of those as good; every trial once, and tuning comes first."""

    def carry_out(trial: Trial) -> Measures:
        best = {"a": 0.1, "b": 0.3}[trial["kind"]] * trial["part"]
        return {"validation": None if trial["lr"] == 9 else 1 - abs(trial["lr"] - best), "worse": trial["lr"]}

    trials = Trials(tmp_path / "trials.jsonl", {}, lambda: carry_out, lambda _: None)
    cells = [{"part": part, "kind": kind} for part in (1, 1.5) for kind in "ab"]
    tuned = trials.tune(cells, (0.1, 0.2, 0.3, 0.4, 9), [7, 8])
    assert tuned == {"1 a": 0.1, "1 b": 0.3, "1.5 a": 0.1, "1.5 b": 0.4}
    asked = [trial for trial, _ in trials.asked]
    assert asked[:2] == [{"part": 1, "kind": "a", "lr": 0.1, "seed": 7}, {"part": 1, "kind": "a", "lr": 0.2, "seed": 7}]
    assert asked[20:] == [{**cell, "lr": lr, "seed": 8} for cell, lr in zip(cells, tuned.values(), strict=True)]
    assert trials.tune(cells[:1], (0.1, 0.2), [7], lambda measures: measures["worse"]) == {"1 a": 0.2}


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_an_interrupted_study_goes_on(tmp_path: Path, after: int, torn: bool) -> None:
    whole = Toy().run("small", range(5), tmp_path / "whole")
    toy = Toy()
    toy.fail_after = after
    with pytest.raises(KeyboardInterrupt):
        toy.run("small", range(5), tmp_path / "parts")
    assert not (tmp_path / "parts/results.json").exists()
    file = tmp_path / "parts/trials.jsonl"
    if torn and file.exists():
        file.write_bytes(file.read_bytes()[:-5])
        toy.carried_out.pop()
    toy.fail_after = math.inf
    assert toy.run("small", range(5), tmp_path / "parts") == whole
    assert len(toy.carried_out) == 12
    for name in ("trials.jsonl", "results.json"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_trials_of_another_setting_are_not_mixed_in(tmp_path: Path) -> None:
    Toy().run("small", range(2), tmp_path)
    before = (tmp_path / "trials.jsonl").read_bytes()
    with pytest.raises(UserError, match="holds trials of another setting"):
        Toy().run("default", range(2), tmp_path)
    assert (tmp_path / "trials.jsonl").read_bytes() == before


@pytest.mark.parametrize("text", ["hello\n", "[1]\n", '{"heading": 1}\n{"trial": 2}\n'])
def test_a_file_that_holds_no_trials_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trials.jsonl").write_text(text)
    with pytest.raises(UserError, match="not a file of trials"):
        Toy().run("small", range(2), tmp_path)


def test_results_can_be_judged_again_without_running(tmp_path: Path) -> None:
    toy = Toy()
    results = toy.run("default", range(5), tmp_path)
    again = Results.read(tmp_path / "results.json")
    assert again == results
    judgements = toy.judge(again)
    assert judgements == toy.judge(results)
    assert [judgement.verdict for judgement in judgements] == [HOLDS, FAILS]
    document = json.loads((tmp_path / "results.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert [claim["verdict"] for claim in document["claims"]] == [HOLDS, FAILS]
    assert document["claims"][0]["values"] == judgements[0].values
    assert document["tuned"] == {"lr": 0.2}
    assert document["not_judged"] is None


def test_another_size_has_no_verdicts_and_names_what_stands_in(tmp_path: Path) -> None:
    toy = Toy()
    results = toy.run("small", range(5), tmp_path)
    assert {judgement.verdict for judgement in toy.judge(results)} == {NOT_JUDGED}
    document = json.loads((tmp_path / "results.json").read_text())
    assert {claim["verdict"] for claim in document["claims"]} == {NOT_JUDGED}
    assert document["not_judged"] == toy.not_judged("small")
    assert "wood in the place of steel" in document["not_judged"]


STAND_INS = ("digits", "stand_in", "bundled", "generated")  # fields of sizes that put other data in place of the real


@pytest.mark.parametrize("name", studies.names())
def test_every_study_names_its_stand_in(name: str) -> None:
    study = studies.find(name)
    small, judged = (asdict(study.sizes[size]) for size in ("small", "default"))
    assert not any(judged.get(field) for field in STAND_INS)  # claims are judged on what they speak of
    assert study.small_data in (study.not_judged("small") or "")
    assert study.not_judged("default") is None
    generated = ("fedem_mixture", "stream_synthetic")  # at every size
    if any(small.get(field) for field in STAND_INS) and name not in generated:
        assert "in the place of" in study.small_data


def test_differences_are_paired_within_a_seed(tmp_path: Path) -> None:
    toy = Toy()
    values = toy.judge(toy.run("small", range(5), tmp_path))[0].values
    noise = [0.1 * (math.sin(2 + 7 * seed) - math.sin(1 + 7 * seed)) for seed in range(5)]
    assert values == pytest.approx([1 + part for part in noise])


# -- names and commands ---------------------------------------------------------------------------------------


def test_a_study_is_called_what_its_file_is_called() -> None:
    assert {"asynchronous_bias", "asynchronous_speed", "asynchronous_steps"} <= set(studies.names())
    for name in studies.names():
        study = studies.find(name)
        assert study.name == name
        assert {"small", "default"} <= set(study.sizes)
        claims = [claim.name for claim in study.claims]
        assert len(set(claims)) == len(claims)
        assert all(claim.rule and claim.sentence.endswith(".") for claim in study.claims)


def test_importing_turnout_leaves_studies_alone() -> None:
    script = "import sys, turnout; print([n for n in ('turnout_studies', 'typer', 'pydantic') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The command line knows only the toy."""
    study = Toy()
    monkeypatch.setattr(studies, "find", lambda _: study)
    monkeypatch.setattr(studies, "names", lambda: ["toy"])
    return study


def test_list(terminal: Terminal) -> None:
    listing = terminal.done("study", "list", "--json").json()
    assert list(listing) == studies.names()
    bias = listing["asynchronous_bias"]
    assert set(bias) == {"title", "source", "claims"}
    printed = terminal.done("study", "list").out
    assert all(name in printed for name in listing)


def test_show_says_everything_and_runs_nothing(terminal: Terminal, toy: Toy) -> None:
    shown = terminal.done("study", "show", "toy").out
    for text in ("A toy", "In words.", "small, default", "wood in the place of steel", "b wins", "above 0"):
        assert text in shown
    assert not toy.carried_out
    assert not list(terminal.here.iterdir())


@pytest.mark.usefixtures("toy")
def test_run_prints_a_table(terminal: Terminal) -> None:
    answer = terminal.done("study", "run", "toy")
    rows = [line for line in answer.out.splitlines() if "wins" in line]
    assert [FAILS in row for row in rows] == [False, True]
    assert HOLDS in rows[0]
    assert "+-" in rows[0]
    assert "above 0" in rows[0]
    assert "learning rates: lr 0.2" in answer.out
    assert answer.err.count("scheme") == 12  # progress
    assert (terminal.here / "runs/toy-default/results.json").exists()
    assert "Not judged" not in answer.out


@pytest.mark.usefixtures("toy")
def test_a_small_run_prints_no_verdicts(terminal: Terminal) -> None:
    printed = terminal.done("study", "run", "toy", "--size", "small").out
    assert "wood in the place of steel" in printed
    assert not [word for word in ("verdict ", "rule", HOLDS, FAILS, UNDECIDED) if word in printed]
    document = terminal.done("study", "run", "toy", "--size", "small", "--json").json()
    assert {claim["verdict"] for claim in document["claims"]} == {NOT_JUDGED}
    assert "wood in the place of steel" in document["not_judged"]
    for command in (["run", "toy"], ["all"]):
        assert "--strict: toy has no verdicts" in terminal.refused("study", *command, "--size", "small", "--strict")


def test_show_judges_results_again(terminal: Terminal, toy: Toy) -> None:
    table = terminal.done("study", "run", "toy", "--size", "small").out
    toy.fail_after = 0
    assert terminal.done("study", "show", "toy", "--out", "runs/toy-small").out == table
    assert "holds no results.json" in terminal.refused("study", "show", "toy", "--out", "runs")
    toy.name = "other"  # type: ignore[misc]
    assert "the results of toy, not of other" in terminal.refused("study", "show", "toy", "--out", "runs/toy-small")


@pytest.mark.usefixtures("toy")
def test_run_as_json(terminal: Terminal) -> None:
    document = terminal.done("study", "run", "toy", "--out", "here", "--json").json()
    assert document["study"] == "toy"
    assert document["folder"] == "here"
    assert document["size"] == "default"
    assert document["not_judged"] is None
    assert document["seeds"] == [0, 1, 2, 3, 4]
    claim = document["claims"][0]
    keys = {"name", "sentence", "source", "measured", "rule", "values", "mean", "half_width", "verdict"}
    assert set(claim) == keys
    assert len(claim["values"]) == 5


@pytest.mark.usefixtures("toy")
def test_strict_is_exit_code_3(terminal: Terminal) -> None:
    answer = terminal("study", "run", "toy", "--strict", "--json")
    assert answer.code == 3
    assert answer.json()["claims"][1]["verdict"] == FAILS
    assert terminal("study", "run", "toy", "--strict", "--seeds", "4").code == 0  # nothing is decided
    assert terminal("study", "run", "toy").code == 0


@pytest.mark.usefixtures("toy")
def test_all_runs_every_study(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "names", lambda: ["toy", "twin"])
    answer = terminal("study", "all", "--out", "here", "--strict", "--json")
    assert answer.code == 3
    assert [(one["study"], one["folder"]) for one in answer.json()] == [
        ("toy", "here/toy-default"),
        ("twin", "here/twin-default"),
    ]
    assert terminal.done("study", "all", "--size", "small", "--out", "here").out.count("toy, size small") == 2


MISTAKES: dict[str, tuple[list[str], str]] = {
    "study": (["show", "asynchronous_bia"], "study: unknown name 'asynchronous_bia'; did you mean asynchronous_bias?"),
    "size": (["run", "asynchronous_bias", "--size", "smal"], "study size: unknown name 'smal'; did you mean small?"),
    "folder": (["run", "asynchronous_bias", "--data", "nowhere"], "study: there is no data folder nowhere"),
    "no folder": (["run", "asynchronous_bias"], "dataset mnist: no folder was given"),
    "empty folder": (["run", "asynchronous_speed", "--data", "."], "dataset cifar10: the folder . does not hold it"),
    "device": (["run", "asynchronous_bias", "--size", "small", "--device", "gpu"], "'gpu' is not a device"),
    "seeds": (["run", "asynchronous_bias", "--size", "small", "--seeds", "0"], "study: no seeds"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(terminal: Terminal, mistake: str) -> None:
    words, sentence = MISTAKES[mistake]
    assert sentence in terminal.refused("study", *words)
    assert not list(terminal.here.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_is_a_sentence(terminal: Terminal) -> None:
    words = ("study", "run", "asynchronous_bias", "--size", "small", "--device", "cuda")
    assert "has no usable CUDA device" in terminal.refused(*words)
