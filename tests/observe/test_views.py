"""A result in Python: data frames, a plot, and what a notebook shows."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from support import experiment, same
from turnout import Result, UserError, execute
from turnout.report.read import Recorded, recorded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run") / "mine"


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return execute(experiment("windowed"), folder)


@pytest.fixture(scope="module")
def run(folder: Path, result: Result) -> Recorded:
    assert result.server.version == 6
    return recorded(folder)


def html(shown: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<html>{shown}</html>")


@pytest.mark.parametrize("table", ["rounds", "jobs", "clients"])
def test_frames(result: Result, run: Recorded, table: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = result.frame(table)  # type: ignore[arg-type]
    columns = getattr(result, table)()
    assert list(frame.columns) == list(columns)
    for name, values in columns.items():
        assert np.array_equal(frame[name].to_numpy(), values, equal_nan=values.dtype.kind == "f")
    pandas.testing.assert_frame_equal(frame, run.frame(table), check_dtype=False)  # type: ignore[arg-type]


def test_a_frame_is_made_of_the_columns(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no pandas to try it with."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda columns: ("frame", columns)))
    kind, columns = result.frame("jobs")
    assert kind == "frame"
    assert same(columns, result.jobs())


def test_frame_mistakes(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"frame: unknown name 'round'; did you mean rounds\?"):
        result.frame("round")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="frame: pandas is not installed; pip install pandas"):
        result.frame()


@pytest.mark.parametrize(
    ("over", "column", "title"), [("time", "time", "virtual time (s)"), ("rounds", "round", "round")]
)
def test_plot(result: Result, run: Recorded, over: str, column: str, title: str) -> None:
    rounds = result.rounds()
    for one in (result, run):
        figure = one.plot(over=over)  # type: ignore[arg-type]
        (line,) = figure.data
        assert np.array_equal(line.x, rounds[column])
        assert np.array_equal(line.y, rounds["test_accuracy"])
        assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (title, "test accuracy")
    assert np.array_equal(result.plot("train_loss").data[0].y, rounds["train_loss"])


def test_plot_mistakes(result: Result) -> None:
    with pytest.raises(UserError, match=r"plot: unknown name 'train_los'; did you mean train_loss\?"):
        result.plot("train_los")
    with pytest.raises(UserError, match="plot: unknown name 'wall'; allowed: rounds, time"):
        result.plot(over="wall")  # type: ignore[arg-type]


def test_short_words(result: Result, run: Recorded) -> None:
    words = f"6 rounds, 3 virtual seconds, train_loss {result.measures['train_loss']:.4g}"
    assert repr(result).startswith(f"Result({words}")
    assert repr(run).startswith(f"Recorded({words}")
    assert len(repr(result)) < 200
    unfinished = replace(run, summary={})
    assert repr(unfinished) == "Recorded(unfinished, 6 rounds recorded)"
    assert "<svg" in unfinished._repr_html_()


def test_in_a_notebook(result: Result, run: Recorded) -> None:
    shown = result._repr_html_()
    text = " ".join(html(shown).itertext())
    audit = result.audit
    assert f"{result.measures['test_accuracy_worst_decile']:.4f}" in text
    assert f"Clients heard: {8 - len(audit.never_heard)} of 8, with {audit.contributions.sum()} updates" in text
    assert f"Realised / intended share: {np.nanmin(audit.ratio[audit.contributions > 0]):.2f} to" in text
    assert f"{audit.failures['crashed']} crashed" in text
    assert "<svg" in shown
    assert run._repr_html_() == shown.replace("Result(", "Recorded(")


def test_what_a_run_says_cannot_act(run: Recorded) -> None:
    odd = {"failures": {"<script>": 1}}
    summary = {**run.summary, "measures": {"<b>": 1.0}, "audit": {**run.summary["audit"], **odd}}
    shown = replace(run, summary=summary)._repr_html_()
    assert not re.search(r"<script|<b>1|<td><b>", shown)
    html(shown)


def test_a_useless_model(run: Recorded) -> None:
    """Measures that are not finite are null in result.json."""
    summary = {**run.summary, "measures": dict.fromkeys(run.summary["measures"])}
    assert "virtual seconds)" in repr(replace(run, summary=summary))
    html(replace(run, summary=summary)._repr_html_())
