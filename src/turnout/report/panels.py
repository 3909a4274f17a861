"""What only some methods have to show. Each panel looks at the record of a run and is empty where there is nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from html import escape

import numpy as np

from turnout.core.files import read_json
from turnout.core.names import called, listed
from turnout.core.random import FloatArray
from turnout.record.curves import COLOURS, GREY, INK
from turnout.record.views import Column, Columns, axis_of, lines_of
from turnout.report.blocks import Block, Chart, Grid, Picture, Words, charts, number
from turnout.report.read import Recorded

Panel = Callable[[Recorded], list[Block]]


def mixture(run: Recorded) -> list[Block]:
    """Which components the clients of a mixture are made of."""
    shares = _numbered(run.rounds(), "mass_")
    if not shares:
        return []
    drawn = lines_of([run], {f"component {name}": f"mass_{name}" for name in shares}, "share of the samples")
    about = "How much of the data of each round's clients every component explains."
    found = charts("Mixture components", drawn, about)
    clients = run.clients()
    weights = _numbered(clients, "weight_")
    if weights:
        rows = np.stack([clients[f"weight_{name}"] for name in weights])
        order = np.lexsort((-rows.max(0), rows.argmax(0)))
        heat = {"z": rows[:, order], "type": "heatmap", "colorscale": "Cividis", "zmin": 0, "zmax": 1}
        heat |= {"y": [f"component {name}" for name in weights], "colorbar": {"title": {"text": "weight"}}}
        told = [escape(called(run.names, i)) for i in clients["client"][order]]
        heat |= {"text": [told] * len(rows)} if rows.size < 5000 else {}
        axes = {"xaxis": axis_of("clients, by their main component"), "yaxis": {"automargin": True}}
        drawn = {"data": [heat], "layout": {**axes, "showlegend": False}}
        found.append(Chart("Mixture weights", drawn, "What each client is made of at the end: a column a client."))
    return found


def slack(run: Recorded) -> list[Block]:
    """The share of each region's clients that is expected to survive."""
    regions = _numbered(run.rounds(), "theta_")
    drawn = lines_of([run], {f"region {name}": f"theta_{name}" for name in regions}, "slack factor theta")
    about = "The share of a region's clients that bring their work to an end, as its edge estimates it."
    return charts("Slack factors", drawn, about)


def topology(run: Recorded) -> list[Block]:
    """Who talks to whom, and how far the silos' models are apart."""
    found: list[Block] = []
    path = run.folder / "overlay.svg"
    if path.exists():
        found.append(Picture("Topology", path.read_text(encoding="utf-8"), "The overlay the silos train over."))
    drawn = lines_of([run], {"consensus distance": "consensus_distance"}, "sum of squared distances")
    if drawn is not None:
        drawn["layout"]["yaxis"]["type"] = "log"
    return found + charts("Consensus", drawn, "How far the silos' models are from their mean.")


def privacy(run: Recorded) -> list[Block]:
    """What noise has hidden so far."""
    columns: dict[str, Column] = {"central noise": "epsilon", "local noise": "local_epsilon"}
    found = charts("Privacy", lines_of([run], columns, "epsilon spent"), "A smaller epsilon hides more.")
    rows = []
    for kind, facts in run.summary.get("privacy", {}).items():
        if facts.get("private"):
            rows.append([kind, number(facts["epsilon"]), number(facts["delta"]), str(facts["events"]), facts["of"]])
        else:
            found.append(Words(f"The {kind} noise is not private: {facts.get('why')}."))
    return found + ([Grid(["noise", "epsilon", "delta", "events", "of"], rows)] if rows else [])


def streams(run: Recorded) -> list[Block]:
    """What clients had in memory when they trained, where samples arrive."""
    jobs = run.jobs()
    if not run.config.get("stream") or not jobs:
        return []
    rounds, row = np.unique(jobs["round"], return_inverse=True)
    counts = np.bincount(row)
    low, high = np.full(len(rounds), np.inf), np.zeros(len(rounds))
    np.minimum.at(low, row, jobs["samples"])
    np.maximum.at(high, row, jobs["samples"])
    stored = {"mean": np.bincount(row, jobs["samples"]) / counts, "smallest": low, "largest": high}

    def of_rounds(values: FloatArray, table: Columns) -> FloatArray:
        known = np.append(values, np.nan)[np.searchsorted(rounds, table["round"])]
        return np.where(np.isin(table["round"], rounds), known, np.nan)

    columns: dict[str, Column] = {name: partial(of_rounds, values) for name, values in stored.items()}
    about = "Samples that clients had when their jobs of a round began."
    return charts("Memories of the stream", lines_of([run], columns, "samples in memory"), about)


def detectors(run: Recorded) -> list[Block]:
    """Whom detectors suspected."""
    table = run.detectors()
    if not table:
        return []
    told = Counter("counted" if decision == "counts" else decision for decision in table["decision"].tolist())
    words = ", ".join(f"{count:,} {decision.replace('_', ' ')}" for decision, count in told.most_common())
    accused = table["decision"] != "counts"
    clients, times = np.unique(table["client"][accused], return_counts=True)
    seen = np.bincount(table["client"])
    order = np.argsort(-times, kind="stable")[:10]
    rows = [[called(run.names, clients[i]), f"{times[i]:,}", f"{seen[clients[i]]:,}"] for i in order]
    found: list[Block] = [Words(f"Detectors looked at {len(accused):,} updates: {words}.")]
    return found + ([Grid(["suspected most", "times", "of updates"], rows, "Detectors")] if rows else [])


def unlearning(run: Recorded) -> list[Block]:
    """Who was forgotten, and what is left of the training history."""
    path = run.folder / "unlearning" / "log.jsonl"
    if not path.exists():
        return []
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    asked, planned, done = (
        {entry["request"]: entry for entry in entries if entry["event"] == event}
        for event in ("requested", "planned", "retrained")
    )
    rows = []
    for request, entry in asked.items():
        lineage = planned.get(request, {}).get("lineage", [])
        words = "; ".join(f"branch {branch} to round {cut}" for branch, cut in lineage)
        certificate = path.with_name(f"certificate{request}.json")
        proof = read_json(certificate) if certificate.exists() else {}
        clients = listed(run.names, entry["clients"])
        again = str(done[request]["rounds"]) if request in done else "not yet"
        rows.append([str(request), clients, words, again, number(proof.get("guarantee", {}).get("epsilon"))])
    headers = ["request", "clients forgotten", "what is left", "rounds retrained", "epsilon"]
    found: list[Block] = [Grid(headers, rows, "Unlearning")]
    lengths = {0: int(run.rounds()["round"].max(initial=0))} | {r: int(entry["rounds"]) for r, entry in done.items()}
    if planned:
        about = "Branch 0 is the training, the others retraining after requests. Solid rounds are the model's history."
        found.append(Picture("Lineage", _lineage(lengths, planned[max(planned)]["lineage"]), about))
    return found


def _lineage(lengths: dict[int, int], kept: list[list[int]]) -> str:
    """A bar a branch: what the model of now came through is solid, the rest is cut off."""
    alive = max(lengths)
    left = {int(branch): int(cut) for branch, cut in kept} | {alive: lengths[alive]}
    scale = 600 / max(1, *lengths.values())
    shapes = []
    for row, (branch, length) in enumerate(sorted(lengths.items())):
        y, solid = 26 + 44 * row, left.get(branch, 0)
        end, dashed = 90 + scale * length, f'stroke="{GREY}" stroke-width="2" stroke-dasharray="4 4"'
        shapes += [
            f'<text x="0" y="{y + 5}" font-size="14" fill="{INK}">branch {branch}</text>',
            f'<line x1="90" x2="{end:.1f}" y1="{y}" y2="{y}" {dashed}/>',
            f'<rect x="90" y="{y - 6}" width="{scale * solid:.1f}" height="12" fill="{COLOURS[0]}"/>',
            f'<text x="{end + 8:.1f}" y="{y + 5}" font-size="13" fill="{INK}">{solid} of {length} rounds</text>',
        ]
    height = 12 + 44 * len(lengths)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height}" font-family="sans-serif">'
    return "\n".join([head, *shapes, "</svg>"])


def _numbered(table: Columns, prefix: str) -> list[str]:
    """What columns with this prefix end in, where that is a number."""
    names = [name.removeprefix(prefix) for name in table if name.startswith(prefix)]
    return sorted((name for name in names if name.isdigit()), key=int)


PANELS: tuple[Panel, ...] = (mixture, slack, topology, streams, privacy, detectors, unlearning)


def panels(run: Recorded) -> list[Block]:
    """All that this run has."""
    return [block for panel in PANELS for block in panel(run)]
