"""What the commands print for people: the end of a run, an outlook, the trials of a tuning."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnout.core.files import read_json
from turnout.core.statistics import OVER_CLIENTS
from turnout.plan import advice, tune
from turnout.record.progress import duration

out, err = Console(), Console(stderr=True)


def client_columns(audit: Any) -> dict[str, list[float]]:
    return {name: getattr(audit, name).tolist() for name in ("intended", "realised", "contributions")}


def show_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Where the run ended, and the turnout audit."""
    audit, measures = summary["audit"], summary["measures"]
    if summary.get("nobody_heard"):
        out.print("Nobody was ever heard: no client's update has counted, and the model is the one the run began with.")
    length = f"{summary['rounds']} rounds, {duration(summary['virtual_seconds'])} of virtual time"
    out.print(f"\n[bold]{folder}[/bold]: {length} (stopped: {summary['stopped']})")
    table = Table("measure", *OVER_CLIENTS.values(), title="Over clients", title_justify="left")
    for name in sorted(name for name in measures if f"{name}_mean" in measures):
        columns = (measures[f"{name}{part}"] for part in OVER_CLIENTS)
        table.add_row(name.replace("_", " "), *(f"{value:.4f}" for value in columns))
    for name in (name for name in measures if name.startswith("central_")):
        table.add_row(name.replace("_", " "), f"{measures[name]:.4f}", "", "", "")
    out.print(table)
    _show_audit(audit, summary["clients"])
    if "efficiency" in summary:
        _show_efficiency(summary["efficiency"], summary.get("deadline"))
    show_paths(folder)
    if (folder / "report.html").exists():
        out.print(f"Report: {folder / 'report.html'}", highlight=False, markup=False, soft_wrap=True)


def show_paths(folder: Path) -> None:
    """Print how local work was computed and why, and what was timed to choose; nothing of a run of version 0.1."""
    plan = read_json(folder / "plan.json") if (folder / "plan.json").exists() else {}
    paths, trial_seconds = plan.get("paths", []), plan.get("trial_seconds", {})
    said = [f"Path of {path['work']}: {path['name']}: {path['why']}." for path in paths]
    if trial_seconds:
        timed = {name: "failed" if s is None else f"{1e3 * s:.3g} ms" for name, s in trial_seconds.items()}
        said.append(f"Convolutions tried: {', '.join(f'{name} {text}' for name, text in timed.items())}.")
    for sentence in said:
        out.print(sentence, highlight=False, markup=False, soft_wrap=True)


def failed(summary: dict[str, Any]) -> bool:
    """Whether a run ended without a model that its clients have made."""
    return bool(summary["nobody_heard"]) or str(summary["stopped"]).startswith("diverged")


def times(count: int, clients: int | None) -> str:
    """How often something was logged, and of how many different clients."""
    often = "once" if count == 1 else f"{count} times"
    return often if clients is None else f"{often}, {clients} client{'s' if clients != 1 else ''}"


def paragraphs(thing: object) -> str:
    """A docstring whose lines are as long as the terminal is wide; lists and formulas stay as they are."""
    parts = (inspect.getdoc(thing) or "").split("\n\n")
    flowing = (not any(line.startswith((" ", "-")) for line in part.split("\n")) for part in parts)
    return "\n\n".join(part.replace("\n", " ") if flows else part for part, flows in zip(parts, flowing, strict=True))


def _show_efficiency(found: dict[str, float], deadline: float | None) -> None:
    table = Table(show_header=False, title="How the clients' work was used", title_justify="left")
    table.add_row("a round takes", duration(found["round_seconds"]))
    if deadline is not None:
        table.add_row("deadline, taken from the clients' times", duration(deadline))
    table.add_row("updates used, a client and round", f"{found['eur_with_bypass']:.3f}")
    table.add_row("models sent, a client and round", f"{found['sync_ratio']:.3f}")
    table.add_row("work lost", f"{found['futility']:.1%} of {found['work_assigned']:.0f} jobs")
    if "missing_share" in found:  # not in results of earlier versions
        table.add_row(
            "asked in vain, by importance", f"{found['missing_share']:.1%}, at most {found['missing_share_max']:.1%}"
        )
    if "energy_wh" in found:
        table.add_row("energy", f"{found['energy_wh']:.4g} Wh, {found['wasted_wh']:.4g} Wh of it wasted")
    table.add_row("traffic down, up", f"{found['bytes_down'] / 1e6:.4g} MB, {found['bytes_up'] / 1e6:.4g} MB")
    out.print(table)


def _show_audit(audit: dict[str, Any], clients: dict[str, list[float]]) -> None:
    table = Table(show_header=False, title="Turnout audit: whose data counted", title_justify="left")
    table.add_row("clients heard", f"{audit['clients'] - audit['never_heard']} of {audit['clients']}")
    table.add_row("updates used", str(audit["contributions"]))
    failures = ", ".join(f"{count} {reason}" for reason, count in sorted(audit["failures"].items())) or "none"
    table.add_row("jobs that brought nothing", failures)
    if audit["linear"] and audit["ratio_min"] is not None:
        table.add_row(
            "realised / intended share", f"{audit['ratio_min']:.2f} to {audit['ratio_max']:.2f} (1 = as intended)"
        )
        table.add_row("chi-square of the shares", f"{audit['chi_square']:.4f} (0 = as intended)")
        table.add_row("mean sum of weights", f"{audit['mean_weight']:.3f}")
        table.add_row("variance of weights", f"{audit['weight_variance']:.4f}")
        order = sorted(range(len(clients["intended"])), key=lambda i: clients["realised"][i] - clients["intended"][i])
        for label, picked in (("counted least", order[:3]), ("counted most", order[:-4:-1])):
            row = ", ".join(f"{i} ({clients['realised'][i]:.4f} for {clients['intended'][i]:.4f})" for i in picked)
            table.add_row(label, row)
    elif not audit["linear"]:
        table.add_row("weights", "the rule is not a weighted sum: selections are counted instead")
    staleness = audit["staleness"]
    if set(staleness) - {"0"}:
        table.add_row("staleness", ", ".join(f"{age}: {count}" for age, count in staleness.items()))
    for kind, count in audit["events"].items():
        table.add_row(f"logged: {kind.replace('_', ' ')}", times(count, audit.get("event_clients", {}).get(kind)))
    out.print(table)


def show_outlook(found: advice.Outlook) -> None:
    speeds = f"jobs take {duration(found.fastest_seconds)} to {duration(found.slowest_seconds)} in the mean"
    out.print(f"\n[bold]{found.clients} clients[/bold]; {speeds}", highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for number, header in enumerate(advice.HEADERS):
        table.add_column(header, justify="right" if number else "left", no_wrap=True)
    for row in (row for row in found.policies if row.refused is None):
        table.add_row(*advice.cells(row))
    out.print(table)
    for text in (advice.LEGEND, *found.advice):
        out.print(f"\n{text}", highlight=False, markup=False)


def show_tuned(tuning: tune.Tuning, tuned: tune.Tuned) -> None:
    best = tuned.best
    options = [choice.option for choice in tuning.choices]
    table = Table(*options, tuning.measure.replace("_", " "), "rounds", "time", "", title_justify="left")
    table.title = f"{tuned.scheme}: {len(tuned.trials)} values tried"
    for trial in tuning.in_order(tuned.trials):
        last = trial.runs[-1]
        value = "diverged" if trial.value is None else f"{trial.value:.4f}"
        cells = [escape(text) for text in trial.point]
        table.add_row(*cells, value, str(last.rounds), duration(last.virtual_seconds), "best" if trial is best else "")
    out.print(table)
    if best is None:
        out.print("Every value diverged: try smaller ones.\n")
        return
    for sentence in tuning.ends(best):
        out.print(f"{sentence}.", highlight=False, markup=False)
    out.print(f"{tuning.command(tuned.scheme, best.point)}\n", highlight=False, markup=False, soft_wrap=True)
