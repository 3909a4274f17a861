from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from turnout.record.views import (
    COLOURS,
    POINTS,
    Line,
    banded,
    chart,
    decimated,
    figure,
    line,
    lines_of,
    splits,
    time_unit,
)
from turnout.report.read import recorded, settings


def test_decimation_keeps_extremes_and_ends() -> None:
    y = np.sin(np.arange(50_000) / 300)
    y[[17_123, 40_001]] = 9.0, -9.0
    kept = decimated(y)
    assert len(kept) <= POINTS
    assert {0, 17_123, 40_001, 49_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    spikes = np.arange(250, 50_000, 500)
    y[spikes] += 3.0
    assert set(spikes.tolist()) <= set(decimated(y).tolist())


def test_short_lines_stay_as_they_are() -> None:
    assert decimated(np.zeros(POINTS)).tolist() == list(range(POINTS))


def test_a_band_reaches_from_the_smallest_to_the_largest() -> None:
    first = np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0])
    other = np.array([0.0, 2.0, 3.0]), np.array([2.0, 4.0, 9.0])
    found = banded("both", [first, other])
    assert found is not None and found.low is not None and found.high is not None
    assert found.x.tolist() == [0.0, 1.0, 2.0]  # no further than both go
    assert found.y.tolist() == [1.0, 2.5, 4.0]
    assert (found.low.tolist(), found.high.tolist()) == ([0.0, 2.0, 4.0], [2.0, 3.0, 4.0])
    assert banded("nobody", []) is None


def test_seeds_become_one_line_with_a_band(seeds: list[Path]) -> None:
    runs = [recorded(folder) for folder in seeds]
    groups = settings(runs)
    assert len(groups) == 1
    found = line("digits", groups[0], "test_accuracy", "rounds")
    rows = np.stack([run.rounds()["test_accuracy"] for run in runs])
    assert found is not None and found.low is not None and found.high is not None
    np.testing.assert_allclose(found.y, rows.mean(0))
    np.testing.assert_allclose(found.low, rows.min(0))
    np.testing.assert_allclose(found.high, rows.max(0))
    assert found.x.tolist() == list(range(7))


def test_what_is_not_finite_is_left_out(digits: Path) -> None:
    run = recorded(digits)
    run.rounds()["test_loss"][3] = np.nan
    found = line("digits", [run], "test_loss", "rounds")
    assert found is not None
    assert found.x.tolist() == [0, 1, 2, 4, 5, 6]
    assert line("digits", [run], "no_such_column") is None


def test_axes_have_units(digits: Path) -> None:
    assert time_unit(599) == (1.0, "virtual time (s)")
    assert time_unit(3600) == (60.0, "virtual time (min)")
    assert time_unit(86_400) == (3600.0, "virtual time (h)")
    assert time_unit(1e7) == (86_400.0, "virtual time (days)")
    drawn = chart([[recorded(digits)]], ["digits"], "test_loss", "loss")
    assert drawn is not None
    assert drawn["layout"]["xaxis"]["title"]["text"] == "virtual time (s)"
    assert drawn["layout"]["yaxis"]["title"]["text"] == "loss"


def test_a_setting_keeps_its_colour_where_others_have_no_such_column(digits: Path, buffered: Path) -> None:
    groups = [[recorded(digits)], [recorded(buffered)]]
    drawn = chart(groups, ["digits", "buffered"], "energy_wh", "energy")
    assert drawn is not None
    assert [trace["name"] for trace in drawn["data"]] == ["buffered"]
    assert drawn["data"][0]["line"]["color"] == COLOURS[1]
    assert drawn["layout"]["showlegend"]


def test_ten_lines_can_be_told_apart() -> None:
    ends = np.array([0.0, 1.0])
    traces = figure([Line(str(i), ends, ends, style=i) for i in range(10)], "x", "y")["data"]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in traces}) == 10


def test_splits_begin_with_the_test_data(digits: Path) -> None:
    found = splits(recorded(digits).rounds())
    assert list(found) == ["test", "train", "central"]
    assert found["test"] == ["loss", "accuracy"]


def test_plotly_takes_the_figures(digits: Path) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    drawn = lines_of([recorded(digits)], {"test": "test_loss", "train": "train_loss"}, "loss")
    assert [trace.name for trace in graph_objects.Figure(drawn).data] == ["test", "train"]
