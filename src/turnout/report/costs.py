"""What a run cost: traffic, energy, and the clients' time that came to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from turnout.core.random import FloatArray
from turnout.record.views import Column, Columns, Figure, axis_of, chart, colour, lines_of
from turnout.report.audit import Groups, several
from turnout.report.blocks import Block, Chart, Grid, megabytes, number, span
from turnout.report.read import Recorded
from turnout.report.timeline import ENDS, PHASES, endings

_PATTERNS = ("", "/", "x", "\\", "-", "|", ".")


def summed(*columns: str, unit: float = 1.0) -> Column:
    """The running sum of columns of the history; None where one is missing."""

    def running(rounds: Columns) -> FloatArray | None:
        if not all(name in rounds for name in columns):
            return None
        return np.asarray(np.cumsum(np.sum([np.nan_to_num(rounds[name]) for name in columns], axis=0)) / unit)

    return running


def costs(groups: Groups, names: Sequence[str]) -> list[Block]:
    """The section."""
    found: list[Block] = [_grid(groups, names)]
    alone = groups[0][0] if len(groups) == len(groups[0]) == 1 else None
    drawn: list[tuple[str, Figure | None, str]] = []
    if alone is not None:
        sent: dict[str, Column] = {
            "to clients": summed("bytes_down", unit=1e6),
            "from clients": summed("bytes_up", unit=1e6),
        }
        spent: dict[str, Column] = {"spent": summed("energy_wh"), "of it wasted": summed("wasted_wh")}
        drawn.append(("Traffic", lines_of([alone], sent, "traffic so far (MB)"), "Models sent, both ways."))
        drawn.append(("Energy", lines_of([alone], spent, "energy so far (Wh)"), "Of the clients' devices."))
    else:
        sent_in_all = chart(groups, names, summed("bytes_down", "bytes_up", unit=1e6), "traffic so far (MB)")
        drawn.append(("Traffic", sent_in_all, "Models sent, both ways together."))
        spent_in_all = chart(groups, names, summed("energy_wh"), "energy so far (Wh)")
        drawn.append(("Energy", spent_in_all, "Of the clients' devices."))
    drawn.append(("Where the clients' time went", _time_spent(groups, names), "By how the jobs ended."))
    return found + [Chart(title, figure, about) for title, figure, about in drawn if figure is not None]


def _grid(groups: Groups, names: Sequence[str]) -> Grid:
    traffic = {"traffic to clients": "bytes_down", "traffic from clients": "bytes_up"}
    rows: dict[str, Callable[[Recorded], float | None]] = {
        "jobs begun": lambda run: run.total("work_assigned"),
        "work lost (jobs)": lambda run: run.total("work_lost"),
        "seconds a round": lambda run: _efficiency(run, "round_seconds"),
        "energy (Wh)": lambda run: run.total("energy_wh") if "energy_wh" in run.rounds() else None,
        "energy wasted (Wh)": lambda run: run.total("wasted_wh") if "wasted_wh" in run.rounds() else None,
    }
    sent = [[title, *(span([run.total(name) for run in group], megabytes) for group in groups)]
            for title, name in traffic.items()]  # fmt: skip
    cells = [[title, *(several([value(run) for run in group]) for group in groups)] for title, value in rows.items()]
    return Grid(["", *names], sent + [row for row in cells if set(row[1:]) != {number(None)}])


def _efficiency(run: Recorded, name: str) -> float | None:
    found: float | None = run.summary.get("efficiency", {}).get(name)
    return found


def _time_spent(groups: Groups, names: Sequence[str]) -> Figure | None:
    """A bar a setting: the seconds of its clients, by how jobs ended."""
    shares = np.array([np.mean([_by_ending(run) for run in group], axis=0) for group in groups])  # [settings, ends]
    if not shares.sum():
        return None
    bars = []
    for place, end in enumerate(ENDS):
        marker = {"color": colour(2 if place == 0 else place + 2), "pattern": {"shape": _PATTERNS[place]}}
        bar = {"x": shares[:, place], "y": [escape(name) for name in names], "name": end, "marker": marker}
        if shares[:, place].any():
            bars.append({**bar, "type": "bar", "orientation": "h", "width": 0.6})
    layout = {
        "xaxis": axis_of("share of the clients' time", tickformat=".0%"),
        "yaxis": {"type": "category", "autorange": "reversed"},
        "barmode": "stack",
        "hovermode": "closest",
        "showlegend": True,
        "height": max(300, 150 + 34 * len(names)),
    }
    return {"data": bars, "layout": layout}


def _by_ending(run: Recorded) -> FloatArray:
    table = run.jobs()
    if not table:
        return np.zeros(len(ENDS))
    seconds = np.bincount(endings(table), sum(table[name] for name in PHASES), minlength=len(ENDS))
    return np.asarray(seconds / (seconds.sum() or 1.0))
