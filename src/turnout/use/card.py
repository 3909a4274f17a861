"""A model card: what a run's model is, of whose data it was made, how well it serves whom, what nobody knows of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.files import read_json, write_text
from turnout.core.names import called, listed
from turnout.core.statistics import OVER_CLIENTS
from turnout.core.version import VERSION
from turnout.data.preprocess import Preprocess
from turnout.record.progress import duration
from turnout.record.run_folder import CARD, reseal
from turnout.record.views import telling
from turnout.report.read import Recorded, recorded

_ROWS = 50  # clients in a table


def write(folder: Path) -> Path:
    """Write the card of a finished run into its folder."""
    write_text(folder / CARD, text(recorded(folder)))
    reseal(folder, CARD)
    return folder / CARD


def text(run: Recorded) -> str:
    """Write the card of a finished run as Markdown."""
    path = run.folder / "preprocess.json"
    fitted = Preprocess.load(read_json(path)) if path.exists() else None
    parts = {
        "Data": _data(run, fitted),
        "Clients": _clients(run, fitted),
        "Audit": _audit(run),
        "Measures": _measures(run),
        "Privacy": _privacy(run),
        "Limits": _limits(run, fitted),
    }
    head = [f"# Model card: {_plain(run.name)}", "", _about(run), ""]
    return "\n".join(head + [line for title, lines in parts.items() for line in (f"## {title}", "", *lines, "")])


def _about(run: Recorded) -> str:
    section, summary = run.config.get("model", {}), run.summary
    model = f", a model `{section['name']}`" if "name" in section else ""
    seed = "" if run.seed is None else f", seed {run.seed}"
    length = f"{summary['rounds']} rounds, {duration(summary['virtual_seconds'])} of virtual time"
    by = f"Trained by `{run.algorithm}`" if run.algorithm else "Trained"
    return f"{by} over {summary['audit']['clients']} clients{model}{seed}: {length}. Made by Turnout {VERSION}."


def _data(run: Recorded, fitted: Preprocess | None) -> list[str]:
    name = run.config.get("data", {}).get("name", "the caller's own")
    if fitted is None:
        return [f"Dataset: `{name}`."]
    target = fitted.target
    what = f"one of {', '.join(map(_plain, target['classes']))}" if "classes" in target else "a number"
    rows = [[one.name, one.kind, "" if one.kind in ("id", "ignore") else one.missing] for one in fitted.columns]
    return [
        f"Dataset: `{name}`. Target: {_plain(target['name'])}, {what}. {len(fitted.features)} features, scaled "
        f"(`{fitted.normalise}`) by {fitted.fitted_on.get('rows')} training rows. Columns `id` and `ignore` are none.",
        "",
        *_grid(["column", "kind", "where missing"], rows),
        "",
        *(f"- {_plain(sentence)}." for sentence in fitted.said),
    ]


def _clients(run: Recorded, fitted: Preprocess | None) -> list[str]:
    """A row for each client: what it was meant to count, what it did, how it is served."""
    own, found, judged = run.summary["clients"], run.clients(), telling(run.rounds())
    header, names = ["client"], range(min(_ROWS, len(own["intended"])))
    columns = [[called(run.names, i) for i in names]]
    if fitted is not None and (counts := dict(fitted.fitted_on.get("clients", ()))):
        header.append("training rows")
        columns.append([str(counts.get(called(run.names, i, "{}"), "")) for i in names])
    header += ["intended", "realised", "updates"]
    columns += [[f"{own[name][i]:.4f}" for i in names] for name in ("intended", "realised")]
    columns.append([str(own["contributions"][i]) for i in names])
    if judged and (measure := "_".join(judged)) in found:
        served = dict(zip(found["client"].tolist(), found[measure].tolist(), strict=True))
        header.append(measure.replace("_", " "))
        columns.append([_number(served.get(i)) for i in names])
    rows = [*zip(*columns, strict=True)]
    left = len(own["intended"]) - len(rows)
    more = ["", f"And {left} more, in `clients.parquet`."] if left else []
    how = {"own models": "Each client is served a model of its own.", "shared": "All are served the same model."}
    how |= dict.fromkeys(("own rules", "too many", "far away"), "Each client is served by a model or rule of its own.")
    told = how.get(run.summary.get("served", ""), "")
    return [*([told, ""] if told else []), *_grid(header, rows), *more]


def _audit(run: Recorded) -> list[str]:
    audit = run.summary["audit"]
    silent = _silent(run)
    lines = [f"- Clients heard: {audit['clients'] - audit['never_heard']} of {audit['clients']}."]
    if silent:
        lines.append(f"- Never heard, though they were meant to count: {_plain(listed(run.names, silent))}.")
    if audit["linear"] and audit["ratio_min"] is not None:
        shares = f"{audit['ratio_min']:.2f} to {audit['ratio_max']:.2f}"
        lines.append(f"- Realised share over intended share: {shares} (1 is as intended).")
    failures = ", ".join(f"{count} {why}" for why, count in sorted(audit["failures"].items())) or "none"
    return [*lines, f"- Jobs that brought nothing: {failures}."]


def _silent(run: Recorded) -> list[int]:
    own = run.summary["clients"]
    return np.flatnonzero((np.array(own["intended"]) > 0) & (np.array(own["contributions"]) == 0)).tolist()


def _measures(run: Recorded) -> list[str]:
    measures = run.summary["measures"]
    rows = [
        [name.replace("_", " "), *(_number(measures[f"{name}{part}"]) for part in OVER_CLIENTS)]
        for name in sorted(measures)
        if f"{name}_mean" in measures
    ]
    rows += [
        [name.replace("_", " "), _number(measures[name]), "", "", ""]
        for name in measures
        if name.startswith("central_")
    ]
    return _grid(["measure", *OVER_CLIENTS.values()], rows) if rows else ["Nothing was measured."]


def _privacy(run: Recorded) -> list[str]:
    found = run.summary.get("privacy", {})
    if not found:
        return [
            "No noise was added: nothing is promised of what the model, or what lies beside it, shows of single rows."
        ]
    lines = []
    for kind, facts in found.items():
        if facts.get("private"):
            of = f"of {facts['of']}, {facts['events']} events"
            lines.append(f"- {kind} noise: epsilon {facts['epsilon']:.4g} at delta {facts['delta']:g} ({of}).")
        else:
            lines.append(f"- {kind} noise is not private: {facts.get('why')}.")
    return lines


def _limits(run: Recorded, fitted: Preprocess | None) -> list[str]:
    """What follows from the record, and what no record says."""
    config, summary = run.config, run.summary
    lines = ["One run of one seed: how much chance is in it, only more seeds tell."]
    silent = _silent(run)
    if silent:
        lines.append(f"{_plain(listed(run.names, silent))} never counted: it may serve them badly.")
    if str(summary["stopped"]).startswith("diverged"):
        lines.append("The training diverged.")
    if not any(name.startswith(("test_", "central_")) for name in summary["measures"]):
        lines.append("It was measured on training data only.")
    if fitted is not None:
        lines.append(
            "Means, scales and words were fitted on the pooled training rows, each client's own test rows among them."
        )
        lines.append("Words that training never saw are refused; numbers far from those of training are not.")
    if config.get("clients", {}).get("unseen_fraction", 0.0) == 0.0:
        lines.append("No client was kept from training: how it serves new ones was not measured.")
    lines.append(
        "Nothing here says that it is safe or useful for decisions about people; that takes a study of its own."
    )
    return [f"- {line}" for line in lines]


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(map(_plain, line))} |" for line in lines]


def _plain(text: Any) -> str:
    """A text that is no markup."""
    found = " ".join(str(text).split())
    for letter in "\\|<>*_`[]":
        found = found.replace(letter, f"\\{letter}") if letter != "<" else found.replace("<", "&lt;")
    return found


def _number(value: Any) -> str:
    return "" if value is None or not np.isfinite(value) else f"{value:.4f}"
