"""What the commands print for people: sentences, tables, the end of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from turnout.core.files import read_json
from turnout.core.names import called, listed
from turnout.core.statistics import OVER_CLIENTS
from turnout.record.progress import duration
from turnout.record.views import defined
from turnout.report import read, sentences

out, err = Console(), Console(stderr=True)


def say(text: str, to: Console = out) -> None:
    """Print a text as it is, in lines as long as they are."""
    to.print(text, highlight=False, markup=False, soft_wrap=True)


def show_answers(sentences: Sequence[str]) -> None:
    """Print what a person would say: the answer first, and standing out. One that ends with a command stays a line."""
    for place, sentence in enumerate(sentences):
        style = "bold" if place == 0 else ""
        out.print(Text(sentence, style), highlight=False, soft_wrap=not sentence.endswith("."))
    if sentences:
        out.print()


def show_table(
    rows: Iterable[Sequence[str]],
    headers: Sequence[str] = (),
    title: str | None = None,
    *,
    boxed: bool = False,
    numbers: bool = False,
) -> None:
    """Print rows of cells, which may have markup; with `numbers` every column but the first is flush right."""
    columns = [
        Column(header, justify="right" if numbers and place else "left", no_wrap=numbers, overflow="fold")
        for place, header in enumerate(headers)
    ]
    table = Table(*columns, title=title, title_justify="left", show_header=bool(columns))
    if not boxed:
        table.box = None
    if numbers:
        table.padding = (0, 1, 0, 0)  # so that ten columns fit into a terminal
    for row in rows:
        table.add_row(*row)
    out.print(table)


def show_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Where the run ended, and the turnout audit."""
    audit, measures = summary["audit"], summary["measures"]
    show_answers(sentences.of_run(read.recorded(folder)))
    length = f"{summary['rounds']} rounds, {duration(summary['virtual_seconds'])} of virtual time"
    out.print(f"[bold]{folder}[/bold]: {length} (stopped: {summary['stopped']})")
    if best := summary.get("best"):
        value = _decimals(best["measures"][best["judge"]])
        say(f"Best by {best['judge']}: {value} in round {best['round']}, kept in {folder / 'best.safetensors'}")
    rows = [
        (defined(name, measures), *(_decimals(measures[f"{name}{part}"]) for part in OVER_CLIENTS))
        for name in sorted(measures)
        if f"{name}_mean" in measures
    ]
    rows += [(name.replace("_", " "), _decimals(measures[name])) for name in measures if name.startswith("central_")]
    show_table(rows, ("measure", *OVER_CLIENTS.values()), "Over clients", boxed=True)
    _show_audit(audit, summary["clients"])
    if "efficiency" in summary:
        _show_efficiency(summary["efficiency"], summary.get("deadline"))
    show_paths(folder)
    if (folder / "report.html").exists():
        say(f"Report: {folder / 'report.html'}")


def _decimals(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"


def show_paths(folder: Path) -> None:
    """Print how local work was computed and why, and what was timed to choose; nothing of a run of version 0.1."""
    plan = read_json(folder / "plan.json") if (folder / "plan.json").exists() else {}
    paths, trial_seconds = plan.get("paths", []), plan.get("trial_seconds", {})
    for path in paths:
        say(f"Path of {path['work']}: {path['name']}: {path['why']}.")
    if trial_seconds:
        timed = {name: "failed" if s is None else f"{1e3 * s:.3g} ms" for name, s in trial_seconds.items()}
        say(f"Convolutions tried: {', '.join(f'{name} {text}' for name, text in timed.items())}.")


def failed(summary: dict[str, Any]) -> bool:
    """Whether a run ended without a model that its clients have made."""
    return bool(summary["nobody_heard"]) or str(summary["stopped"]).startswith("diverged")


def times(count: int, clients: int | None) -> str:
    """How often something was logged, and of how many different clients."""
    often = "once" if count == 1 else f"{count} times"
    return often if clients is None else f"{often}, {clients} client{'s' if clients != 1 else ''}"


def _show_efficiency(found: dict[str, float], deadline: float | None) -> None:
    rows = [("a round takes", duration(found["round_seconds"]))]
    if deadline is not None:
        rows.append(("deadline, taken from the clients' times", duration(deadline)))
    rows += [
        ("updates used, a client and round", f"{found['eur_with_bypass']:.3f}"),
        ("models sent, a client and round", f"{found['sync_ratio']:.3f}"),
        ("work lost", f"{found['futility']:.1%} of {found['work_assigned']:.0f} jobs"),
    ]
    if "missing_share" in found:  # not in results of earlier versions
        shares = f"{found['missing_share']:.1%}, at most {found['missing_share_max']:.1%}"
        rows.append(("asked in vain, by importance", shares))
    if "energy_wh" in found:
        rows.append(("energy", f"{found['energy_wh']:.4g} Wh, {found['wasted_wh']:.4g} Wh of it wasted"))
    rows.append(("traffic down, up", f"{found['bytes_down'] / 1e6:.4g} MB, {found['bytes_up'] / 1e6:.4g} MB"))
    show_table(rows, title="How the clients' work was used", boxed=True)


def _show_audit(audit: dict[str, Any], clients: dict[str, list[Any]]) -> None:
    failures = ", ".join(f"{count} {reason}" for reason, count in sorted(audit["failures"].items())) or "none"
    heard, names = f"{audit['clients'] - audit['never_heard']} of {audit['clients']}", clients.get("name")
    if names is not None and audit["never_heard"]:
        pairs = zip(clients["intended"], clients["contributions"], strict=True)
        heard += f", never: {listed(names, (i for i, (meant, used) in enumerate(pairs) if meant and not used), 8)}"
    rows = [
        ("clients heard", escape(heard)),
        ("updates used", str(audit["contributions"])),
        ("jobs that brought nothing", failures),
    ]
    if not audit["linear"]:
        rows.append(("weights", "the rule is not a weighted sum: selections are counted instead"))
    elif audit["ratio_min"] is not None:
        rows += [
            ("realised / intended share", f"{audit['ratio_min']:.2f} to {audit['ratio_max']:.2f} (1 = as intended)"),
            ("chi-square of the shares", f"{audit['chi_square']:.4f} (0 = as intended)"),
            ("mean sum of weights", f"{audit['mean_weight']:.3f}"),
            ("variance of weights", f"{audit['weight_variance']:.4f}"),
        ]
        order = sorted(range(len(clients["intended"])), key=lambda i: clients["realised"][i] - clients["intended"][i])
        for label, picked in (("counted least", order[:3]), ("counted most", order[:-4:-1])):
            shares = (
                f"{called(names, i, '{}')} ({clients['realised'][i]:.4f} for {clients['intended'][i]:.4f})"
                for i in picked
            )
            rows.append((label, escape(", ".join(shares))))
    if set(audit["staleness"]) - {"0"}:
        rows.append(("staleness", ", ".join(f"{age}: {count}" for age, count in audit["staleness"].items())))
    for kind, count in audit["events"].items():
        rows.append((f"logged: {kind.replace('_', ' ')}", times(count, audit.get("event_clients", {}).get(kind))))
    show_table(rows, title="Turnout audit: whose data counted", boxed=True)
