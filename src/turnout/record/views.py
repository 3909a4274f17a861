"""What a run shows of itself: data frames, a summary where a notebook displays it, and curves, a column of the history
over virtual time or rounds, seeds of one setting as one line with a band."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from turnout.core.errors import UserError, unknown
from turnout.core.imports import optional
from turnout.core.random import FloatArray, IntArray
from turnout.core.statistics import OVER_CLIENTS, UNDEFINED
from turnout.record.curves import line_chart

Columns = dict[str, np.ndarray[Any, Any]]
Table = Literal["rounds", "jobs", "clients"]
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


def splits(rounds: Collection[str]) -> dict[str, list[str]]:
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


def telling(rounds: Collection[str]) -> tuple[str, str] | None:
    """Split and metric that say most: on test data and not the loss, where there is such; None where nothing was
    measured."""
    for split, metrics in splits(rounds).items():
        return split, next((name for name in metrics if name != "loss"), metrics[0])
    return None


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
    parts = []
    for rounds in filter(None, (run.rounds() for run in runs)):
        values = rounds.get(column) if isinstance(column, str) else column(rounds)
        if values is not None:
            x, y = rounds["time" if over == "time" else "round"].astype(np.float64), values.astype(np.float64)
            known = np.isfinite(x) & np.isfinite(y)
            parts += [(x[known] / unit, y[known])] if known.any() else []
    return banded(label, parts)


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


def figure(lines: Sequence[Line], x: str, y: str, legend: bool | None = None) -> Figure:
    """The lines as a chart, with a legend where there are several, or as said."""
    shown = len(lines) > 1 if legend is None else legend
    layout = {"xaxis": axis_of(x), "yaxis": axis_of(y), "showlegend": shown}
    return {"data": [trace for one in lines for trace in _traces(one)], "layout": layout}


def _traces(one: Line) -> Iterator[dict[str, Any]]:
    """The band, where there is one, and the line."""
    if one.low is not None and one.high is not None:
        above, below = decimated(one.high), decimated(one.low)[::-1]
        yield {
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
    kept = decimated(one.y)
    yield {
        "x": one.x[kept],
        "y": one.y[kept],
        "name": escape(one.label),  # plotly reads some tags
        "type": "scatter",
        "mode": "lines" if len(kept) > 1 else "markers",
        "line": {"color": colour(one.style), "width": 2, "dash": DASHES[one.style // len(COLOURS) % len(DASHES)]},
    }


def colour(style: int) -> str:
    return COLOURS[style % len(COLOURS)]


def axis_of(title: str, **options: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **options}


def chart(
    groups: Sequence[Sequence[Views]], names: Sequence[str], column: Column, title: str, over: Over = "time"
) -> Figure | None:
    """A column of the history, a line a setting; None where nobody has it."""
    parts = [(name, group, column) for name, group in zip(names, groups, strict=True)]
    return _drawn(parts, title, over, len(groups) > 1)


def lines_of(runs: Sequence[Views], columns: dict[str, Column], title: str, over: Over = "time") -> Figure | None:
    """Columns of one setting, a line each, by what they are called; None where it has none of them."""
    return _drawn([(name, runs, column) for name, column in columns.items()], title, over)


def _drawn(
    parts: Sequence[tuple[str, Sequence[Views], Column]], title: str, over: Over, legend: bool | None = None
) -> Figure | None:
    unit, x = axis([run for _, runs, _ in parts for run in runs], over)
    found = [line(name, runs, column, over, unit) for name, runs, column in parts]
    lines = [replace(one, style=style) for style, one in enumerate(found) if one is not None]
    return figure(lines, x, title, legend) if lines else None


class Views:
    """For whatever has the record of a run."""

    def rounds(self) -> Columns:
        raise NotImplementedError

    def jobs(self) -> Columns:
        raise NotImplementedError

    def clients(self) -> Columns:
        raise NotImplementedError

    def outcome(self) -> dict[str, Any]:
        """Where the run ended and what the audit found, as `result.json` has it; empty while it is under way."""
        raise NotImplementedError

    def frame(self, table: Table = "rounds") -> Any:
        """A pandas data frame: a row a round, a job or a client."""
        if table not in get_args(Table):
            raise unknown("frame", table, get_args(Table))
        return optional("frame", "pandas", "pandas").DataFrame(getattr(self, table)())

    def plot(self, measure: str | None = None, over: Literal["time", "rounds"] = "time") -> Any:
        """A plotly figure of a column of the rounds, over virtual time or over rounds."""
        if over not in ("time", "rounds"):
            raise unknown("plot", over, ("time", "rounds"))
        name = measure or "_".join(telling(self.rounds()) or ())
        if not name:
            raise UserError("plot: nothing was measured; name a column of the rounds")
        figure = chart([[self]], [name], name, name.replace("_", " "), over) if name in self.rounds() else None
        if figure is None:
            raise unknown("plot", name, self.rounds())
        return optional("plot", "plotly.graph_objects", "plotly").Figure(figure)

    def __repr__(self) -> str:
        outcome, rounds = self.outcome(), self.rounds()
        if not outcome:
            return f"{type(self).__name__}(unfinished, {rounds['round'][-1] if rounds else 0} rounds recorded)"
        known = ((name, value) for name, value in outcome["measures"].items() if value is not None)
        measures = [f"{name} {value:.4g}" for name, value in known if not name.endswith(_PARTS)]
        length = f"{outcome['rounds']} rounds, {outcome['virtual_seconds']:.6g} virtual seconds"
        return f"{type(self).__name__}({', '.join([length, *measures])})"

    def _repr_html_(self) -> str:
        outcome, rounds = self.outcome(), self.rounds()
        parts = [f"<p><b>{escape(repr(self))}</b></p>"]
        if outcome:
            parts += [_measures(outcome["measures"]), *(f"<div>{escape(line)}</div>" for line in _audit(outcome))]
        with suppress(UserError):  # nothing to draw
            name = "_".join(telling(rounds) or ())
            words = name.replace("_", " ")
            lines = {words: (rounds["time"], rounds[name])} if name else {}
            picture = line_chart(lines, title="", x="virtual seconds", y=words)
            parts.append(f'<div style="max-width: 480px">{picture}</div>')
        return "\n".join(parts)


def _measures(measures: dict[str, float | None]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in ("measure", *OVER_CLIENTS.values()))
    rows = []
    for name in (name for name in measures if not name.endswith((*_PARTS, UNDEFINED))):  # not how one is spread
        values = [measures.get(name + part) for part in OVER_CLIENTS]
        cells = "".join(f"<td>{'' if value is None else f'{value:.4f}'}</td>" for value in values)
        rows.append(f"<tr><td>{escape(defined(name, measures))}</td>{cells}</tr>")
    return f"<table><tr>{heads}</tr>{''.join(rows)}</table>"


def defined(name: str, measures: Mapping[str, float | None]) -> str:
    """What a measure is called for people, with how many clients it is not defined for."""
    words, count = name.replace("_", " "), measures.get(name + UNDEFINED)
    return f"{words} (not defined for {count:.0f})" if count else words


def _audit(outcome: dict[str, Any]) -> list[str]:
    """Whose data counted, in three lines."""
    audit = outcome["audit"]
    failures = ", ".join(f"{count} {reason}" for reason, count in sorted(audit["failures"].items())) or "none"
    if audit["linear"] and audit["ratio_min"] is not None:
        shares = f"{audit['ratio_min']:.2f} to {audit['ratio_max']:.2f} (1 = as intended)"
    else:
        shares = "the rule is not a weighted sum, or nobody was heard"
    heard = audit["clients"] - audit["never_heard"]
    return [
        f"Clients heard: {heard} of {audit['clients']}, with {audit['contributions']} updates",
        f"Realised / intended share: {shares}",
        f"Jobs that brought nothing: {failures}",
    ]
