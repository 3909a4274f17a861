"""The sections of a page: where runs ended, what was run, how it went, what it cost, what was logged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from turnout.core.random import FloatArray
from turnout.core.statistics import WORST_PERCENTILE
from turnout.record import views as curves
from turnout.record.progress import duration
from turnout.record.views import Column, Columns, Figure, Over, axis_of, chart, colour, lines_of
from turnout.report.audit import Groups, several
from turnout.report.blocks import Block, Chart, Facts, Folded, Grid, Words, charts, megabytes, number, span
from turnout.report.compare import best, compare
from turnout.report.read import Recorded, differences
from turnout.report.timeline import ENDS, PHASES, endings

_PARTS = (
    "algorithm", "sampler", "local", "model", "data", "partition", "clients", "stream", "memory", "devices", "links",
    "availability", "crashes", "detection", "adversary", "behaviour", "network", "power", "unlearning", "detectors",
    "privacy",
)  # fmt: skip
_LOGGED = 200  # lines of a log


def _lost(run: Recorded) -> float:
    """The share of the jobs that brought nothing."""
    lost = run.total("failed", "cancelled")
    return lost / max(1.0, lost + run.total("arrived"))


# -- where runs ended -----------------------------------------------------------------------------------------


def result(groups: Groups, names: Sequence[str]) -> list[Block]:
    """Figures of one setting, or a row for each of several."""
    table: dict[str, Callable[[Sequence[Recorded]], str]] = {}
    judged = curves.telling(groups[0][0].rounds())
    if judged is not None:
        split, metric = judged
        table[f"{split} {metric}"] = lambda runs: several([run.last(f"{split}_{metric}") for run in runs])
        table[WORST_PERCENTILE] = lambda runs: several([run.last(f"{split}_{metric}_worst_decile") for run in runs])
        if metric != "loss":
            table[f"{split} loss"] = lambda runs: several([run.last(f"{split}_loss") for run in runs])
    if all(run.summary.get("best") for group in groups for run in group):
        table["best model in round"] = lambda runs: several([run.summary["best"]["round"] for run in runs])
    table["rounds"] = lambda runs: several([run.last("round") for run in runs])
    table["virtual time"] = lambda runs: span([run.last("time") or 0.0 for run in runs], duration)
    table["clients heard"] = lambda runs: several([run.last("heard") for run in runs])
    table["jobs lost"] = lambda runs: span([_lost(run) for run in runs], "{:.1%}".format)
    table["traffic"] = lambda runs: span([run.total("bytes_down", "bytes_up") for run in runs], megabytes)
    if len(groups) == 1:
        return [Facts([(what, words(groups[0]), _hint(what, groups[0][0])) for what, words in table.items()])]
    several_seeds = any(len(group) > 1 for group in groups)
    about = "Of several seeds: the mean, and from the smallest to the largest." if several_seeds else ""
    rows = [[name, *(words(group) for words in table.values())] for name, group in zip(names, groups, strict=True)]
    return [Grid(["", *table], rows, about=about, best=_best(groups, list(table), judged))]


def _best(groups: Groups, headings: Sequence[str], judged: tuple[str, str] | None) -> set[tuple[int, int]]:
    """The cells of the best means, of what was measured."""
    split, metric = judged or ("", "")
    columns = {f"{split} {metric}": f"{split}_{metric}", f"{split} loss": f"{split}_loss"}
    columns[WORST_PERCENTILE] = f"{split}_{metric}_worst_decile"
    rows = compare([run for group in groups for run in group])
    places = [(headings.index(heading) + 1, column) for heading, column in columns.items() if heading in headings]
    return {(row, place) for place, column in places for row in best(rows, column)}


def _hint(what: str, run: Recorded) -> str:
    if what == "rounds":
        return f"stopped: {run.summary['stopped']}" if run.finished else f"unfinished: turnout resume {run.folder}"
    clients = run.summary.get("audit", {}).get("clients") or run.config.get("clients", {}).get("count")
    return f"of {clients}" if what == "clients heard" and clients else ""


# -- what was run ---------------------------------------------------------------------------------------------


def setting(groups: Groups, names: Sequence[str]) -> list[Block]:
    """The parts of one setting, or in what several differ; and the configurations."""
    alone = len(groups) == 1
    found: list[Block] = _differing(groups, names)
    if alone:
        found.append(Grid(["part", "what it was"], _parts(groups[0][0])))
    for name, group in zip(names, groups, strict=True):
        path = group[0].folder / "config.toml"
        if path.exists():
            title = "The whole configuration" if alone else f"Configuration of {name}"
            found.append(Folded(title, path.read_text(encoding="utf-8")))
    return found


def _parts(run: Recorded) -> list[list[str]]:
    rows = []
    for part in _PARTS:
        options = {name: value for name, value in run.config.get(part, {}).items() if value not in ("", [], None)}
        name = options.pop("name", "")
        if (name or options) and name != "none" and options.get("probability") != 0:
            rows.append([part, ": ".join(filter(None, (str(name), _listed(options))))])
    return [*rows, ["engine", _listed(run.plan)]]


def _differing(groups: Groups, names: Sequence[str]) -> list[Block]:
    """A table of what all settings have and differ in; what only some of them have is listed when asked for."""
    options = differences(groups)
    shared = {option for option, values in options.items() if None not in values or option.endswith(".name")}
    rows = [[option, *map(_plain, values)] for option, values in options.items() if option in shared]
    found: list[Block] = [Grid(["differs in", *names], rows)] if rows else []
    own = [{o: v[i] for o, v in options.items() if o not in shared and v[i] is not None} for i in range(len(names))]
    lines = [f"{name}: {_listed(has)}" for name, has in zip(names, own, strict=True) if has]
    return found + ([Folded("Options that only some have", "\n".join(lines))] if lines else [])


def _listed(options: dict[str, Any]) -> str:
    return ", ".join(f"{option} {_plain(value)}" for option, value in options.items())


def _plain(value: Any) -> str:
    if value is None or isinstance(value, float):
        return number(value, 6)
    text = json.dumps(value) if isinstance(value, list | bool) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


# -- how it went ----------------------------------------------------------------------------------------------


def learning(groups: Groups, names: Sequence[str]) -> list[Block]:
    """Loss, metrics, worst percentile and spread: of one setting on all data it was measured on, of several on one."""
    judged = curves.telling(groups[0][0].rounds())
    if judged is None:
        return [Words("Nothing has been evaluated yet.")]
    split, metric = judged
    measured = curves.splits(groups[0][0].rounds())
    drawn = [(name, name.capitalize(), name) for name in measured[split]]
    if split != "central":
        drawn.append((f"{metric}_worst_decile", WORST_PERCENTILE.capitalize(), f"{WORST_PERCENTILE} of {metric}"))
        drawn.append((f"{metric}_std", "Spread over clients", f"standard deviation of {metric}"))

    def figure(column: str, label: str, over: Over) -> Figure | None:
        if len(groups) > 1:
            return curves.chart(groups, names, f"{split}_{column}", label, over)
        return curves.lines_of(groups[0], {who: f"{who}_{column}" for who in measured}, label, over)

    notes = [f"Measured on {split} data."] if len(groups) > 1 else []
    if any(len(group) > 1 for group in groups):
        notes.append("Lines are means over seeds; bands reach from the smallest to the largest.")
    found: list[Block] = [Words(" ".join(notes))] if notes else []
    for column, title, label in drawn:
        over_time = figure(column, label, "time")
        if over_time is not None:
            found.append(Chart(title, over_time, by_rounds=figure(column, label, "rounds")))
    return found


def logs(runs: Sequence[Recorded], names: Sequence[str]) -> list[Block]:
    """What was logged; of several runs, where that is more than how they ended."""
    found: list[Block] = []
    for run, name in zip(runs, names, strict=True):
        lines = run.log()
        if len(lines) > (len(runs) > 1):
            half, left = _LOGGED // 2, len(lines) - _LOGGED
            shown = lines if left <= 0 else [*lines[:half], f"… {left:,} more …", *lines[-half:]]
            found.append(Folded(f"{name}: {len(lines):,} line{'s' * (len(lines) > 1)}", "\n".join(shown)))
    return found


# -- what it cost ---------------------------------------------------------------------------------------------

_PATTERNS = ("", "/", "x", "\\", "-", "|", ".")


def summed(*columns: str, unit: float = 1.0) -> Column:
    """The running sum of columns of the history; None where one is missing."""

    def running(rounds: Columns) -> FloatArray | None:
        if not all(name in rounds for name in columns):
            return None
        return np.asarray(np.cumsum(np.sum([np.nan_to_num(rounds[name]) for name in columns], axis=0)) / unit)

    return running


def costs(groups: Groups, names: Sequence[str]) -> list[Block]:
    """Traffic, energy, and the clients' time that came to nothing."""
    if len(groups) == len(groups[0]) == 1:
        down, up = summed("bytes_down", unit=1e6), summed("bytes_up", unit=1e6)
        traffic = lines_of(groups[0], {"to clients": down, "from clients": up}, "traffic so far (MB)")
        spent: dict[str, Column] = {"spent": summed("energy_wh"), "of it wasted": summed("wasted_wh")}
        energy, ways = lines_of(groups[0], spent, "energy so far (Wh)"), "both ways"
    else:
        traffic = chart(groups, names, summed("bytes_down", "bytes_up", unit=1e6), "traffic so far (MB)")
        energy, ways = chart(groups, names, summed("energy_wh"), "energy so far (Wh)"), "both ways together"
    return [
        _grid(groups, names),
        *charts("Traffic", traffic, f"Models sent, {ways}."),
        *charts("Energy", energy, "Of the clients' devices."),
        *charts("Where the clients' time went", _time_spent(groups, names), "By how the jobs ended."),
    ]


def _grid(groups: Groups, names: Sequence[str]) -> Grid:
    traffic = {"traffic to clients": "bytes_down", "traffic from clients": "bytes_up"}
    rows: dict[str, Callable[[Recorded], float | None]] = {
        "jobs begun": lambda run: run.total("work_assigned"),
        "work lost (jobs)": lambda run: run.total("work_lost"),
        "seconds a round": lambda run: run.summary.get("efficiency", {}).get("round_seconds"),
        "energy (Wh)": lambda run: run.total("energy_wh") if "energy_wh" in run.rounds() else None,
        "energy wasted (Wh)": lambda run: run.total("wasted_wh") if "wasted_wh" in run.rounds() else None,
    }
    sent = [
        [title, *(span([run.total(name) for run in group], megabytes) for group in groups)]
        for title, name in traffic.items()
    ]
    cells = [[title, *(several([value(run) for run in group]) for group in groups)] for title, value in rows.items()]
    return Grid(["", *names], sent + [row for row in cells if set(row[1:]) != {number(None)}])


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
