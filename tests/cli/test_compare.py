"""`turnout compare`: what is in the tables is what the runs recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from terminal import QUICK, Terminal

from turnout.record.progress import duration
from turnout.record.run_folder import reseal
from turnout.report.compare import Target, compare
from turnout.report.page import MARK
from turnout.report.read import recorded

QUIET = (*QUICK, "run.report=false")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of one algorithm, one of another with a known power, and one that was interrupted."""
    here = tmp_path_factory.mktemp("runs")
    terminal = Terminal(here)
    for name, *words in (
        ("a0", "run.seed=0"),
        ("a1", "run.seed=1"),
        ("a2", "run.seed=2"),
        ("b", "algorithm.name=fedprox", "power.transmit=2.0"),
    ):
        terminal.done("run", "digits", *QUIET, f"run.name={name}", f"run.folder={here}", *words)
    (here / "a2" / "result.json").rename(here / "kept.json")
    return here


@pytest.fixture
def finished(runs: Path) -> Path:
    (runs / "a2" / "result.json").write_text((runs / "kept.json").read_text())
    return runs


def document(terminal: Terminal, folders: list[Path], *words: str) -> Any:
    return terminal.done("compare", *map(str, folders), *words, "--json").json()


def test_seeds_are_one_row_with_an_interval(terminal: Terminal, finished: Path) -> None:
    folders = [finished / name for name in ("a0", "a1", "b", "a2")]
    first, second = document(terminal, folders)["rows"]
    assert [Path(folder).name for folder in first["runs"]] == ["a0", "a1", "a2"]
    assert first["seeds"] == [0, 1, 2]
    assert [second["algorithm"], second["finished"]] == ["fedprox", True]
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    accuracies = [results[i]["measures"]["test_accuracy"] for i in (0, 1, 3)]
    found = first["quantities"]["test_accuracy"]
    assert found["values"] == accuracies
    assert found["mean"] == pytest.approx(np.mean(accuracies))
    low, high = stats.t.interval(0.95, 2, np.mean(accuracies), stats.sem(accuracies))
    assert found["half_width"] == pytest.approx((high - low) / 2)
    alone, result = second["quantities"], results[2]
    assert alone["test_accuracy_worst_decile"]["mean"] == result["measures"]["test_accuracy_worst_decile"]
    assert alone["test_accuracy"]["half_width"] is None
    assert alone["never_heard"]["mean"] == result["audit"]["never_heard"]
    sent = result["efficiency"]["bytes_down"] + result["efficiency"]["bytes_up"]
    assert alone["bytes"]["mean"] == sent
    assert alone["energy_wh"]["mean"] == pytest.approx(result["efficiency"]["energy_wh"])
    assert "energy_wh" not in first["quantities"]


def test_the_tables(terminal: Terminal, finished: Path) -> None:
    shown = terminal.done("compare", *(str(finished / name) for name in ("a0", "a1", "b"))).out
    for words in (
        "Where the runs ended",
        "test accuracy",
        "worst 10th percentile",
        "traffic",
        "energy (Wh)",
        "never heard",
        "±",
    ):
        assert words in shown
    assert "Means over 1 to 2 seeds" in shown


def test_time_to_target(terminal: Terminal, finished: Path) -> None:
    run = recorded(finished / "a0")
    accuracy = run.rounds()["test_accuracy"]
    aim = f"test_accuracy={float(accuracy[2])}"
    (row,) = document(terminal, [finished / "a0"], "--target", aim)["rows"]
    first = int(np.argmax(accuracy >= accuracy[2]))
    assert row["quantities"]["rounds_to_target"]["values"] == [first]
    assert row["quantities"]["seconds_to_target"]["values"] == [run.rounds()["time"][first]]
    shown = terminal.done("compare", str(finished / "a0"), "--target", aim).out
    assert duration(run.rounds()["time"][first]) in shown


def test_a_target_that_only_some_reach(terminal: Terminal, finished: Path) -> None:
    """The mean over those who do would flatter the others."""
    folders = [finished / "a0", finished / "a1"]
    best = max(float(np.nanmax(recorded(folder).rounds()["test_accuracy"])) for folder in folders)
    (row,) = document(terminal, folders, "--target", f"test_accuracy={best}")["rows"]
    found = row["quantities"]["rounds_to_target"]
    assert found["values"].count(None) == 1
    assert found["mean"] is None
    shown = terminal.done("compare", *map(str, folders), "--target", f"test_accuracy={best}").out
    assert "in 1 of 2" in " ".join(shown.split())


def test_a_loss_is_to_fall() -> None:
    rounds = {
        "train_loss": np.array([2.0, np.nan, 0.9, 0.5, 0.95]),
        "test_accuracy": np.array([0.1, np.nan, 0.9, 1, 0]),
    }
    assert Target("train_loss", 0.9).first_round(rounds) == 2
    assert Target("train_loss", 0.1).first_round(rounds) is None
    assert Target("test_accuracy", 0.95).first_round(rounds) == 3


def test_unfinished(terminal: Terminal, runs: Path) -> None:
    (runs / "a2" / "result.json").unlink(missing_ok=True)
    reseal(runs / "a2")
    shown = terminal.done("compare", str(runs / "b"), str(runs / "a2")).out
    assert "unfinished" in shown
    (row,) = compare([recorded(runs / "a2")])
    kept = json.loads((runs / "kept.json").read_text())
    assert row.quantities["test_accuracy"].mean == kept["measures"]["test_accuracy"]
    assert "never_heard" not in row.quantities


def test_report(terminal: Terminal, finished: Path) -> None:
    terminal.done("compare", str(finished / "a0"), str(finished / "b"), "--report", "both.html")
    assert MARK in (terminal.here / "both.html").read_text()[:2000]


def test_the_answer_is_first_and_the_best_is_marked(terminal: Terminal, finished: Path) -> None:
    folders = [str(finished / name) for name in ("a0", "b")]
    shown = terminal.done("compare", *folders).out
    answer = terminal.done("compare", *folders, "--json").json()["answers"][0]
    assert " ".join(shown.split()).startswith(answer)
    assert " *" in shown and "* the best mean of a column" in shown


@pytest.mark.parametrize("form", ["latex", "markdown", "csv"])
def test_tables_for_a_paper(terminal: Terminal, finished: Path, form: str) -> None:
    shown = terminal.done("compare", str(finished), f"--{form}").out  # all runs in the folder
    assert {"latex": r"\begin{tabular}", "markdown": "| ---: |", "csv": "setting,algorithm,runs,seeds"}[form] in shown
    assert "Where the runs ended" not in shown


def test_figure_and_cite(terminal: Terminal, finished: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = str(finished / "a0")
    assert "Written: curves.pdf" in terminal.done("figure", folder, str(finished / "a1")).out
    assert (terminal.here / "curves.pdf").read_bytes().startswith(b"%PDF")
    terminal.done("figure", folder, "--kind", "timeline", "--out", "t.png", "--width", "page")
    cited = terminal.done("cite", folder, "scaffold").out
    assert "@inproceedings{mcmahan2017communication," in cited and "karimireddy2020scaffold" in cited
    terminal.done("cite", folder, "--out", "used.bib")
    assert (terminal.here / "used.bib").read_text().startswith("% Turnout")
    assert "--latex: with --json" in terminal.refused("compare", folder, "--latex", "--json")
    assert "--kind: unknown name 'pie'" in terminal.refused("figure", folder, "--kind", "pie")
    assert "is no folder of a run" in terminal.refused("cite", "nowhere")


def test_mistakes(terminal: Terminal, finished: Path) -> None:
    assert "is not the folder of a run" in terminal.refused("compare", "nowhere")
    folder = str(finished / "a0")
    assert "'x' is not MEASURE=VALUE" in terminal.refused("compare", folder, "--target", "x")
    assert "did you mean test_accuracy?" in terminal.refused("compare", folder, "--target", "test_acc=0.5")
