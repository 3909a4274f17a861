"""Curves of runs: a column of the history over virtual time or rounds, seeds of one setting as one line with a band."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from turnout.core.random import FloatArray, IntArray
from turnout.core.statistics import OVER_CLIENTS
from turnout.record.views import Columns, Views

Over = Literal["time", "rounds"]
Column = str | Callable[[Columns], np.ndarray[Any, Any] | None]  # of the history, or what is made of several
Figure = dict[str, Any]  # data and layout, as `plotly.graph_objects.Figure(...)` takes them
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f98")  # Okabe and Ito, and a grey
DASHES = ("solid", "dash", "dot")
POINTS = 2000  # a line on a screen shows no more
_PARTS = tuple(part for part in OVER_CLIENTS if part)


@dataclass(frozen=True)
class Line:
    """One setting: the mean over its runs, and from the smallest to the largest of them where there are several."""

    label: str
    x: FloatArray
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None
    style: int = 0  # its colour, and how it is dashed where colours are not enough


def splits(rounds: Columns) -> dict[str, list[str]]:
    """What was measured, by whom it was measured on: `{"test": ["loss", "accuracy"], "train": [...]}`, the most telling
    first."""
    found: dict[str, list[str]] = {}
    known = [name for name in rounds if all(name + part in rounds for part in _PARTS)]
    known += [name for name in rounds if name.startswith("central_")]
    for split in ("test", "validation", "train", "central", "unseen_test", "unseen_train"):
        names = [name.removeprefix(f"{split}_") for name in known if name.startswith(f"{split}_")]
        if names:
            found[split] = names
    return found


def axis(runs: Sequence[Views], over: Over) -> tuple[float, str]:
    """What to divide x by, and what the axis is called."""
    if over == "rounds":
        return 1.0, "round"
    return time_unit(max((float(run.rounds()["time"].max(initial=0.0)) for run in runs if run.rounds()), default=0.0))


def time_unit(longest: float) -> tuple[float, str]:
    """A unit for spans of virtual time, and the title of their axis."""
    for limit, size, unit in ((600, 1.0, "s"), (36_000, 60.0, "min"), (864_000, 3600.0, "h")):
        if longest < limit:
            return size, f"virtual time ({unit})"
    return 86_400.0, "virtual time (days)"


def line(label: str, runs: Sequence[Views], column: Column, over: Over = "time", unit: float = 1.0) -> Line | None:
    """A column over time or rounds; None where no run has it. What is not finite is left out."""
    parts = [_points(run.rounds(), column, over) for run in runs]
    return banded(label, [(x / unit, y) for x, y in parts if len(x)])


def _points(rounds: Columns, column: Column, over: Over) -> tuple[FloatArray, FloatArray]:
    values = rounds.get(column) if isinstance(column, str) else column(rounds) if rounds else None
    if values is None:
        return np.zeros(0), np.zeros(0)
    x, y = rounds["time" if over == "time" else "round"].astype(np.float64), values.astype(np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def banded(label: str, parts: Sequence[tuple[FloatArray, FloatArray]]) -> Line | None:
    """Several curves as one line: at every x that one of them has and all of them reach, interpolated between."""
    if len(parts) < 2:
        return Line(label, *parts[0]) if parts else None
    first, last = max(x[0] for x, _ in parts), min(x[-1] for x, _ in parts)
    grid = np.unique(np.concatenate([x for x, _ in parts]))
    grid = grid[(grid >= first) & (grid <= last)]
    rows = np.stack([np.interp(grid, x, y) for x, y in parts])
    return Line(label, grid, rows.mean(0), rows.min(0), rows.max(0))


def decimated(y: FloatArray, points: int = POINTS) -> IntArray:
    """Which points of a long line to keep: the smallest and the largest of every bucket, the first and the last."""
    if len(y) <= points:
        return np.arange(len(y))
    edges = np.linspace(0, len(y), points // 2).astype(np.int64)  # of points / 2 - 1 buckets, and two ends
    buckets = [np.arange(a, b) for a, b in pairwise(edges.tolist())]
    extremes = [(b[y[b].argmin()], b[y[b].argmax()]) for b in buckets]
    return np.unique([0, len(y) - 1, *np.ravel(extremes)])


def figure(lines: Sequence[Line], x: str, y: str) -> Figure:
    """The lines as a chart."""
    traces = [trace for one in lines for trace in (*_band(one), _trace(one))]
    return {"data": traces, "layout": {"xaxis": axis_of(x), "yaxis": axis_of(y), "showlegend": len(lines) > 1}}


def _trace(one: Line) -> dict[str, Any]:
    kept = decimated(one.y)
    return {
        "x": one.x[kept],
        "y": one.y[kept],
        "name": escape(one.label),  # plotly reads some tags
        "type": "scatter",
        "mode": "lines" if len(kept) > 1 else "markers",
        "line": {"color": colour(one.style), "width": 2, "dash": DASHES[one.style // len(COLOURS) % len(DASHES)]},
    }


def _band(one: Line) -> list[dict[str, Any]]:
    if one.low is None or one.high is None:
        return []
    above, below = decimated(one.high), decimated(one.low)[::-1]
    return [
        {
            "x": np.concatenate([one.x[above], one.x[below]]),
            "y": np.concatenate([one.high[above], one.low[below]]),
            "type": "scatter",
            "mode": "lines",
            "fill": "toself",
            "fillcolor": colour(one.style),
            "opacity": 0.2,
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]


def colour(style: int) -> str:
    return COLOURS[style % len(COLOURS)]


def axis_of(title: str, **options: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **options}


def chart(
    groups: Sequence[Sequence[Views]], names: Sequence[str], column: Column, title: str, over: Over = "time"
) -> Figure | None:
    """A column of the history, a line a setting; None where nobody has it."""
    unit, x = axis([run for group in groups for run in group], over)
    found = [line(name, group, column, over, unit) for name, group in zip(names, groups, strict=True)]
    lines = [replace(one, style=style) for style, one in enumerate(found) if one is not None]
    drawn = figure(lines, x, title)
    drawn["layout"]["showlegend"] = len(groups) > 1
    return drawn if lines else None


def lines_of(runs: Sequence[Views], columns: dict[str, Column], title: str, over: Over = "time") -> Figure | None:
    """Columns of one setting, a line each, by what they are called; None where it has none of them."""
    unit, x = axis(runs, over)
    found = [line(name, runs, column, over, unit) for name, column in columns.items()]
    lines = [replace(one, style=style) for style, one in enumerate(found) if one is not None]
    return figure(lines, x, title) if lines else None
