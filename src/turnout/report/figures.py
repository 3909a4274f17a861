"""Figures for a paper, as PDF, SVG or PNG: one style, the colours of the report, readable in grey, the same bytes for
the same runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from turnout.core.errors import UserError, unknown
from turnout.core.files import write_durably
from turnout.core.imports import extra, missing
from turnout.core.statistics import interval
from turnout.record import views
from turnout.record.views import COLOURS, Over
from turnout.report import read
from turnout.report.audit import Groups, lorenz
from turnout.report.compare import compare
from turnout.report.drawings import draw_timeline, draw_topology
from turnout.report.heard import clients_of
from turnout.report.read import Recorded
from turnout.report.sentences import judged_by

Kind = Literal["curves", "bars", "fairness", "timeline", "topology"]
SUFFIXES = (".pdf", ".svg", ".png")
WIDTHS = {"column": 3.4, "page": 7.0}  # inches
_ASPECT = 0.68
_STYLES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX*"
STYLE = {
    "font.family": "serif", "mathtext.fontset": "dejavuserif", "font.size": 8.5, "axes.labelsize": 8.5,
    "xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "legend.fontsize": 7.5, "axes.titlesize": 8.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.edgecolor": "#444444",
    "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.color": "#444444", "ytick.color": "#444444",
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e3e5e8", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "lines.linewidth": 1.4, "legend.frameon": False, "legend.handlelength": 2.2, "figure.constrained_layout.use": True,
    "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "turnout", "savefig.dpi": 300, "figure.dpi": 150,
}  # fmt: skip
_UNDATED = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {"Software": None}}


def matplotlib() -> Any:
    """The library that draws, without a screen; only figures need it."""
    try:
        import matplotlib as library
    except ImportError as error:
        raise missing("figure", "matplotlib", extra("paper")) from error
    library.use("agg")
    return library


def write(
    runs: Sequence[Recorded],
    path: Path,
    kind: str = "curves",
    *,
    measure: str | None = None,
    over: Over = "time",
    width: str = "column",
) -> str:
    """Draw these runs into a file; return what the figure shows, for its caption."""
    if kind not in get_args(Kind):
        raise unknown("--kind", kind, get_args(Kind))
    if over not in get_args(Over):
        raise unknown("--over", over, get_args(Over))
    if width not in WIDTHS:
        raise unknown("--width", width, WIDTHS)
    if path.suffix not in SUFFIXES:
        raise UserError(f"--out: {path} ends with none of {', '.join(SUFFIXES)}")
    library = matplotlib()
    from matplotlib.figure import Figure

    groups = read.settings(runs)
    with library.rc_context({**library.rcParamsDefault, **STYLE}):
        drawing = Figure(figsize=(WIDTHS[width], WIDTHS[width] * (_ASPECT if width == "column" else 0.42)))
        about = _DRAWN[kind](drawing, Asked(groups, read.labels(groups), measure, over))
        metadata: Any = _UNDATED[path.suffix]
        write_durably(path, lambda part: drawing.savefig(part, format=path.suffix[1:], metadata=metadata))
    return about


def colour(style: int) -> str:
    return COLOURS[style % len(COLOURS)]


def _judged(groups: Groups, measure: str | None) -> str:
    """The measure to draw."""
    known = {name for group in groups for run in group for name in run.rounds()}
    if measure is None:
        measure = judged_by(compare([run for group in groups for run in group]))
        if measure is None:
            raise UserError("figure: these runs have no measure in common; name one with --measure")
    if measure not in known:
        raise unknown("--measure", measure, known)
    return measure


def _words(measure: str) -> str:
    return measure.replace("_", " ")


def _legend(axes: Any, entries: int, names: Sequence[str]) -> None:
    """Below the picture where it would cover the lines."""
    if entries > 1:
        room = int(
            axes.figure.get_figwidth() / (0.5 + max(map(len, names)) / 16)
        )  # inches of a line, and of so many letters
        axes.figure.legend(loc="outside lower center", ncols=max(1, min(entries, room)))


@dataclass(frozen=True)
class Asked:
    """What is to be drawn."""

    groups: Groups
    names: Sequence[str]  # of the settings
    measure: str | None
    over: Over


def curves(drawing: Any, asked: Asked) -> str:
    """A line a setting, over virtual time or rounds."""
    groups, over, measure = asked.groups, asked.over, _judged(asked.groups, asked.measure)
    unit, title = views.axis([run for group in groups for run in group], over)
    axes = drawing.subplots()
    drawn = 0
    for style, (name, group) in enumerate(zip(asked.names, groups, strict=True)):
        line = views.line(name, group, measure, over, unit)
        if line is None:
            continue
        drawn += 1
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour(style), alpha=0.16, linewidth=0)
        dashes = _STYLES[style % len(_STYLES)]
        axes.plot(line.x, line.y, dashes, color=colour(style), label=name, marker="o" if len(line.x) == 1 else None)
    axes.set(xlabel=title, ylabel=_words(measure))
    axes.margins(x=0)
    _legend(axes, drawn, asked.names)
    seeds = max(map(len, groups))
    bands = f"; lines are means over {seeds} seeds, bands reach from the smallest to the largest" if seeds > 1 else ""
    return f"{_words(measure).capitalize()} over {'virtual time' if over == 'time' else 'rounds'}{bands}."


def bars(drawing: Any, asked: Asked) -> str:
    """A bar a setting: where it ended, with its interval, and a dot a seed."""
    names, measure = asked.names, _judged(asked.groups, asked.measure)
    rows = compare([run for group in asked.groups for run in group])
    values = [row.quantities[measure].known if measure in row.quantities else [] for row in rows]
    axes = drawing.subplots()
    every = [value for row in values for value in row]
    spread = (max(every) - min(every)) or abs(max(every)) or 1.0
    far = min(every) > 3 * spread  # from zero: bars would hide the differences, and cut ones would lie about them
    for place, row in enumerate(values):
        mean, half = interval(row)
        error = half if 0 < half < np.inf else 0.0
        if far:
            axes.hlines(mean, place - 0.3, place + 0.3, color=colour(place), linewidth=1.8)
        else:
            axes.bar(place, mean, 0.62, color=colour(place), alpha=0.32, edgecolor=colour(place), linewidth=0.9)
        axes.errorbar(place - 0.14, mean, error, color="#22262b", capsize=3, linewidth=1.0, capthick=1.0)
        shifts = np.linspace(0.0, 0.26, len(row)) if len(row) > 1 else np.full(len(row), 0.13)
        marker = _MARKERS[place % len(_MARKERS)]
        axes.scatter(place + shifts, row, 11, color=colour(place), marker=marker, linewidth=0, zorder=3)
    axes.set(ylabel=_words(measure))
    long = max(map(len, names)) > 12 or len(names) > 6
    axes.set_xticks(range(len(names)), names, rotation=25 if long else 0, ha="right" if long else "center")
    axes.set_xlim(-0.6, len(names) - 0.4)
    if not far:
        axes.set_ylim(bottom=min(0.0, *every))
    axes.tick_params(axis="x", length=0)
    seeds = max(map(len, values))
    what = (
        f"; {'lines' if far else 'bars'} are means over {seeds} seeds with 95% Student intervals, dots are seeds"
        if seeds > 1
        else ""
    )
    return f"Final {_words(measure)}{what}."


def fairness(drawing: Any, asked: Asked) -> str:
    """Whose data counted, and how well each client is served."""
    done = [[run for run in group if run.finished] for group in asked.groups]
    if not all(done):
        raise UserError("figure: the audit is added up when a run ends; leave out runs that are unfinished")
    narrow = drawing.get_figwidth() < 5
    drawing.set_figheight(1.75 * drawing.get_figwidth() if narrow else drawing.get_figheight())
    left, right = drawing.subplots(2, 1) if narrow else drawing.subplots(1, 2)
    what = ""
    for style, (name, group) in enumerate(zip(asked.names, done, strict=True)):
        line = views.banded(name, [lorenz(run) for run in group])
        served = [people for people in map(clients_of, group) if np.isfinite(people.served).any()]
        parts = [np.sort(people.served[np.isfinite(people.served)]) for people in served]
        found = views.banded(name, [(np.linspace(0, 1, len(part)), part) for part in parts])
        what = served[0].measure if served else what
        for axes, one in ((left, line), (right, found)):
            if one is None:
                continue
            if one.low is not None and one.high is not None:
                axes.fill_between(one.x, one.low, one.high, color=colour(style), alpha=0.16, linewidth=0)
            dashes = _STYLES[style % len(_STYLES)]
            axes.plot(one.x, one.y, dashes, color=colour(style), label=name if axes is left else None)
    left.plot([0, 1], [0, 1], color="#9aa0a8", linewidth=0.8, linestyle=(0, (2, 2)), label="as intended")
    left.set(xlabel="share of what was intended", ylabel="share of what counted", aspect="equal")
    left.set(xlim=(0, 1), ylim=(0, 1))
    right.set(xlabel="share of the clients", ylabel=_words(what) or "not measured", xlim=(0, 1))
    _legend(left, len(done) + 1, asked.names)
    return (
        "First: whose data counted, clients from the one that counted least for what was intended; the diagonal is as "
        f"intended. Second: {_words(what)} of each client, in order."
    )


def timeline(drawing: Any, asked: Asked) -> str:
    return draw_timeline(drawing, _only(asked.groups, "timeline"))


def topology(drawing: Any, asked: Asked) -> str:
    return draw_topology(drawing, _only(asked.groups, "topology"))


def _only(groups: Groups, kind: str) -> Recorded:
    runs = [run for group in groups for run in group]
    if len(runs) != 1:
        raise UserError(f"--kind: {kind} is of one run; {len(runs)} are given")
    return runs[0]


_DRAWN: dict[str, Callable[[Any, Asked], str]] = {
    "curves": curves,
    "bars": bars,
    "fairness": fairness,
    "timeline": timeline,
    "topology": topology,
}
