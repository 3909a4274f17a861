"""The turnout audit on a page: whose data counted, against whose data was meant to count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from turnout.core.names import called, listed
from turnout.core.random import FloatArray
from turnout.core.statistics import without_round_off
from turnout.record.views import COLOURS, Figure, Line, axis_of, banded, chart, colour, figure, telling
from turnout.report.blocks import Block, Chart, Grid, Words, charts, number
from turnout.report.read import Recorded

Groups = Sequence[Sequence[Recorded]]
_ROWS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "clients": lambda audit: audit["clients"],
    "clients never heard": lambda audit: audit["never_heard"],
    "updates used": lambda audit: audit["contributions"],
    "jobs that brought nothing": lambda audit: sum(audit["failures"].values()),
    "smallest realised / intended share": lambda audit: audit["ratio_min"],
    "largest realised / intended share": lambda audit: audit["ratio_max"],
    "bias: chi-square of the shares": lambda audit: without_round_off(audit["chi_square"]),
    "mean sum of weights": lambda audit: without_round_off(audit["mean_weight"]),
    "variance of weights": lambda audit: without_round_off(audit["weight_variance"]),
    "mean staleness": lambda audit: _mean_staleness(audit["staleness"]),
}


def audit(groups: Groups, names: Sequence[str]) -> list[Block]:
    """The section; runs that are not finished have no audit yet."""
    done = [[run for run in group if run.finished] for group in groups]
    found: list[Block] = []
    missing = sum(not run.finished for group in groups for run in group)
    if missing:
        found.append(Words(f"{missing} unfinished: the audit is added up when a run ends."))
    if any(done):
        found.append(_grid(done, names))
        found += _people(done[0][0]) if len(done) == len(done[0]) == 1 else []
        found += [_fairness(done, names), _ratios(done, names), *_staleness(done, names)]
    heard = chart(groups, names, "heard", "clients heard so far")
    found += charts("Clients heard", heard, "Clients whose update has counted at least once.")
    return found + (_served(done, names) if any(done) else [])


def _grid(groups: Groups, names: Sequence[str]) -> Grid:
    """A column a setting; of several seeds the mean, the smallest and the largest."""
    audits = [[run.summary["audit"] for run in group] for group in groups]
    counted = [
        ("failures", "jobs lost: {}"),
        ("events", "logged: {}, times"),
        ("event_clients", "logged: {}, different clients"),
    ]
    rows = [[title, *(several([value(one) for one in found]) for found in audits)] for title, value in _ROWS.items()]
    for part, words in counted:
        for kind in sorted({kind for found in audits for one in found for kind in one.get(part, ())}):
            title = words.format(kind.replace("_", " "))
            rows.append([title, *(several([one.get(part, {}).get(kind, 0) for one in found]) for found in audits)])
    linear = all(one["linear"] for found in audits for one in found)
    note = "" if linear else " Where the rule is not a weighted sum, weights are counts of selections."
    return Grid(["", *names], rows, about=f"A share of 1 is as intended; a chi-square of 0 too.{note}")


def several(values: Sequence[float | None]) -> str:
    """One value, or the mean of several with the smallest and the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return number(None)
    if min(known) == max(known):
        return number(known[0])
    return f"{number(float(np.mean(known)))} ({number(min(known))} to {number(max(known))})"


def _mean_staleness(histogram: dict[str, int]) -> float | None:
    ages = np.array([int(age) for age in histogram])
    return float(np.average(ages, weights=list(histogram.values()))) if len(ages) else None


def _people(run: Recorded) -> list[Block]:
    """One run, client by client."""
    clients = {name: np.asarray(values) for name, values in run.summary["clients"].items()}
    meant, got, count = clients["intended"], clients["realised"], clients["contributions"]
    silent = np.flatnonzero((meant > 0) & (count == 0))
    found: list[Block] = []
    if len(silent):
        found.append(Words(f"Never heard, though they were meant to count: {listed(run.names, silent)}."))
    top = float(max(meant.max(), got.max()))
    dots: dict[str, Any] = {"x": meant, "y": got, "type": "scatter", "mode": "markers", "name": "a client"}
    dots["marker"] = {"size": 7, "color": colour(0), "opacity": 0.7}
    told = (f"{called(run.names, i)}: {n} updates" for i, n in enumerate(count))
    dots["text"] = [escape(text) for text in told] if len(meant) <= 5000 else None
    equal: dict[str, Any] = {"x": [0, top], "y": [0, top], "type": "scatter", "mode": "lines", "name": "as intended"}
    equal |= {"line": {"color": colour(6), "dash": "dash", "width": 1.5}, "hoverinfo": "skip"}
    axes = {"xaxis": axis_of("intended weight a round"), "yaxis": axis_of("realised weight a round")}
    drawn = {"data": [equal, dots], "layout": {**axes, "hovermode": "closest", "showlegend": True}}
    found.append(Chart("Intended and realised weight", drawn, "A dot a client. Above the line it counted for more."))
    return found


def _fairness(groups: Groups, names: Sequence[str]) -> Chart:
    lines = _per_setting(groups, names, lorenz)
    ends = np.array([0.0, 1.0])
    lines.append(Line("as intended", ends, ends, style=3 * len(COLOURS) - 1))  # grey and dotted
    drawn = figure(lines, "share of what was intended, least served clients first", "share of what was realised")
    return Chart("Fairness", drawn, "The further below the diagonal, the more some clients counted at others' cost.")


def _weights(run: Recorded) -> tuple[FloatArray, FloatArray]:
    """Intended and realised, by client."""
    meant, got = (np.asarray(run.summary["clients"][name], np.float64) for name in ("intended", "realised"))
    return meant, got


def lorenz(run: Recorded) -> tuple[FloatArray, FloatArray]:
    """Clients by realised / intended, least first: how much was intended for them, and realised, of all."""
    meant, got = _weights(run)
    order = np.argsort(np.divide(got, meant, out=np.full(len(got), np.inf), where=meant > 0), kind="stable")
    x, y = (np.append(0.0, np.cumsum(values[order])) for values in (meant, got))
    return x / (x[-1] or 1.0), y / (y[-1] or 1.0)


def _ratios(groups: Groups, names: Sequence[str]) -> Chart:
    def ordered(run: Recorded) -> tuple[FloatArray, FloatArray]:
        meant, got = _weights(run)
        ratio = np.sort((got / (got.sum() or 1.0))[meant > 0] / meant[meant > 0])
        return np.linspace(0, 1, len(ratio)), ratio

    drawn = figure(_per_setting(groups, names, ordered), "share of the clients", "realised / intended share")
    return Chart("Bias", drawn, "Clients from the one that counted least to the one that counted most; 1 is intended.")


def _per_setting(
    groups: Groups, names: Sequence[str], values: Callable[[Recorded], tuple[FloatArray, FloatArray]]
) -> list[Line]:
    made = (banded(name, [values(run) for run in group]) for name, group in zip(names, groups, strict=True))
    return [replace(one, style=style) for style, one in enumerate(made) if one is not None]


def _staleness(groups: Groups, names: Sequence[str]) -> list[Chart]:
    """Of updates that counted; nothing to see where all were fresh."""
    bars = []
    for style, (name, group) in enumerate(zip(names, groups, strict=True)):
        total: Counter[int] = Counter()
        for run in group:
            total.update({int(age): count for age, count in run.summary["audit"]["staleness"].items()})
        if total:
            ages, counts = np.array(sorted(total.items())).T
            marker = {"color": colour(style), "pattern": {"shape": "/" if style >= len(COLOURS) else ""}}
            bar = {"x": ages, "y": counts / counts.sum(), "type": "bar", "name": escape(name), "marker": marker}
            bars.append(bar)
    if not any(len(bar["x"]) > 1 or bar["x"][0] for bar in bars):
        return []
    axes = {"xaxis": axis_of("staleness (versions)"), "yaxis": axis_of("share of the updates used", tickformat=".0%")}
    drawn: Figure = {"data": bars, "layout": {**axes, "barmode": "group", "showlegend": len(bars) > 1}}
    return [Chart("Staleness", drawn, "How many versions old the updates were that counted.")]


def _served(groups: Groups, names: Sequence[str]) -> list[Block]:
    """How well the model serves each client, where it was evaluated client by client."""
    tables = [run.clients() for group in groups for run in group]
    judged = telling(groups[0][0].rounds()) if groups and groups[0] else None
    said = ("_".join(judged),) if judged is not None and judged[1] != "loss" else ()
    columns = ("test_accuracy", "train_accuracy", *said, "test_loss", "train_loss")
    column = next((name for name in columns if tables and all(name in table for table in tables)), None)
    if column is None:
        return []

    def ordered(run: Recorded) -> tuple[FloatArray, FloatArray]:
        values = np.sort(run.clients()[column].astype(np.float64))
        values = values[np.isfinite(values)]
        return np.linspace(0, 1, len(values)), values

    words = column.replace("_", " ")
    drawn = figure(_per_setting(groups, names, ordered), "share of the clients", words)
    return [Chart("How well each client is served", drawn, f"The final {words} of every client, in order.")]
