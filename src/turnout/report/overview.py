"""The first sections of a page: where runs ended, what was run, how it went; and the last, what was logged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from turnout.core.statistics import WORST_PERCENTILE
from turnout.record import views as curves
from turnout.record.progress import duration
from turnout.record.views import Figure, Over
from turnout.report.audit import Groups, several
from turnout.report.blocks import Block, Chart, Facts, Folded, Grid, Words, megabytes, number, span
from turnout.report.read import Recorded, differences

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
    return [Grid(["", *table], rows, about=about)]


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
