"""Panels of methods that have something of their own to show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recordings import SIX, record

from turnout.report import page, panels
from turnout.report.blocks import Block, Chart, Grid, Picture, Words
from turnout.report.confusion import confusion
from turnout.report.read import Recorded, recorded


def by_title(blocks: list[Block]) -> dict[str, Block]:
    return {getattr(block, "title", "words"): block for block in blocks}


def test_a_plain_run_has_none(digits: Path) -> None:
    assert panels.panels(recorded(digits)) == []


def test_which_class_is_taken_for_which(tmp_path: Path) -> None:
    """A table of few classes, a picture of many; seeds are added."""
    run = recorded(record(tmp_path / "classes", SIX, "task.metrics=f1_macro", "run.rounds=1"))
    (table,) = confusion([[run, run]], ["f1"])
    assert isinstance(table, Grid) and table.title == "Confusion matrix"
    counts = np.array([[float(cell) for cell in row[1:-1]] for row in table.rows])
    assert counts.tolist() == (2 * np.array(run.summary["confusion"]["counts"])).tolist()
    assert counts.sum() == 2 * run.clients()["test_samples"].sum()
    many = replace(run, summary={**run.summary, "confusion": {"split": "test", "counts": np.eye(20).tolist()}})
    (picture,) = confusion([[many]], ["f1"])
    assert isinstance(picture, Chart) and picture.figure["data"][0]["z"].tolist() == np.eye(20).tolist()
    assert [anchor for anchor, _, blocks in page.sections([[run]], ["f1"]) if blocks].count("classes") == 1


def test_a_mixture_shows_its_components_and_what_clients_are_made_of(tmp_path: Path) -> None:
    run = recorded(record(tmp_path / "mixture", SIX, "algorithm.name=fedem", "run.rounds=2"))
    found = by_title(panels.panels(run))
    masses, weights = found["Mixture components"], found["Mixture weights"]
    assert isinstance(masses, Chart) and isinstance(weights, Chart)
    np.testing.assert_allclose(masses.figure["data"][1]["y"], run.rounds()["mass_1"][1:])
    (heat,) = weights.figure["data"]
    assert heat["z"].shape == (3, 12)
    np.testing.assert_allclose(heat["z"].sum(0), 1)
    assert (np.diff(heat["z"].argmax(0)) >= 0).all()


def test_regions_show_their_slack_factors(tmp_path: Path) -> None:
    options = ("algorithm.name=hybridfl", "algorithm.deadline=3", "clients.regions=2", "run.rounds=4")
    run = recorded(record(tmp_path / "regions", *options))
    (chart,) = panels.panels(run)
    assert isinstance(chart, Chart)
    assert [line["name"] for line in chart.figure["data"]] == ["region 0", "region 1"]
    assert chart.figure["data"][0]["y"][0] == 0.5  # theta_init
    assert len(set(run.rounds()["theta_0"][1:])) > 1


def test_a_stream_shows_what_clients_remember(tmp_path: Path) -> None:
    run = recorded(record(tmp_path / "stream", SIX, "stream.name=constant", "stream.rate=2", "memory.name=unlimited"))
    (chart,) = panels.panels(run)
    assert isinstance(chart, Chart)
    jobs = run.jobs()
    means = [jobs["samples"][jobs["round"] == number].mean() for number in np.unique(jobs["round"])]
    np.testing.assert_allclose(chart.figure["data"][0]["y"], means)
    assert chart.figure["data"][2]["y"][-1] == jobs["samples"][jobs["round"] == jobs["round"].max()].max()


def columns(**values: list[float]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return {name: np.array(column) for name, column in values.items()}


@pytest.fixture
def invented(tmp_path: Path) -> Recorded:
    run = Recorded(tmp_path, {}, {}, {})
    table = columns(round=[0, 1], time=[0, 2.0], epsilon=[0, 0.7], consensus_distance=[4.0, 1.0])
    seen = {"client": np.array([4, 4, 2]), "decision": np.array(["suspected", "suspected", "counts"], object)}
    vars(run)["_tables"] = {"history": table, "jobs": {}, "detectors": seen}
    return run


def test_silos_show_their_map(invented: Recorded) -> None:
    (invented.folder / "overlay.svg").write_text("<svg/>", encoding="utf-8")
    found = by_title(panels.topology(invented))
    assert isinstance(found["Topology"], Picture) and isinstance(found["Consensus"], Chart)
    assert found["Topology"].svg == "<svg/>"
    assert found["Consensus"].figure["layout"]["yaxis"]["type"] == "log"


def test_privacy_shows_what_was_spent(invented: Recorded) -> None:
    spent = {"private": True, "epsilon": 0.7, "delta": 1e-5, "events": 2, "of": "gaussian(1)"}
    summary: dict[str, object] = {"privacy": {"central": spent, "local": {"private": False, "why": "a seed was given"}}}
    chart, words, grid = panels.privacy(replace_summary(invented, summary))
    assert isinstance(chart, Chart) and isinstance(words, Words) and isinstance(grid, Grid)
    assert chart.figure["data"][0]["y"].tolist() == [0, 0.7]
    assert "not private: a seed was given" in words.text
    assert grid.rows == [["central", "0.7", "1e-05", "2", "gaussian(1)"]]


def replace_summary(run: Recorded, summary: dict[str, object]) -> Recorded:
    other = replace(run, summary=summary)
    vars(other)["_tables"] = run._tables
    return other


def test_detectors_show_whom_they_suspect(invented: Recorded) -> None:
    words, grid = panels.detectors(invented)
    assert isinstance(words, Words) and isinstance(grid, Grid)
    assert words.text == "Detectors looked at 3 updates: 2 suspected, 1 counted."
    assert grid.rows == [["client 4", "2", "2"]]


def test_unlearning_shows_what_is_left_of_the_history(invented: Recorded) -> None:
    folder = invented.folder / "unlearning"
    folder.mkdir()
    entries = [
        {"event": "requested", "request": 1, "clients": [3]},
        {"event": "planned", "request": 1, "lineage": [[0, 2]]},
        {"event": "retrained", "request": 1, "rounds": 20},
        {"event": "requested", "request": 2, "clients": [5, 6]},
        {"event": "planned", "request": 2, "lineage": [[0, 1]]},
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    (folder / "certificate1.json").write_text('{"guarantee": {"epsilon": 7.5}}', encoding="utf-8")
    grid, picture = panels.unlearning(invented)
    assert isinstance(grid, Grid) and isinstance(picture, Picture)
    first = ["1", "3", "branch 0 to round 2", "20", "7.5"]
    assert grid.rows == [first, ["2", "5, 6", "branch 0 to round 1", "not yet", "-"]]
    assert "1 of 1 rounds" in picture.svg and "20 of 20 rounds" in picture.svg
