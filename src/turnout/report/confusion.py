"""Which class is taken for which: the confusion matrix of a run's last model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnout.record.views import axis_of
from turnout.report.audit import Groups
from turnout.report.blocks import Block, Chart, Grid, number
from turnout.report.read import Recorded

IN_A_TABLE = 12  # classes; more are drawn


def confusion(groups: Groups, names: Sequence[str]) -> list[Block]:
    """Show a matrix for each setting whose runs have kept one, summed over its seeds."""
    found: list[Block] = []
    for name, group in zip(names, groups, strict=True):
        kept = [run for run in group if run.summary.get("confusion")]
        found += [_matrix(kept, name if len(groups) > 1 else "")] if kept else []
    return found


def _matrix(runs: Sequence[Recorded], name: str) -> Block:
    known = [run.summary["confusion"] for run in runs]
    counts = np.sum([one["counts"] for one in known], 0, dtype=float)
    title = "Confusion matrix" + (f" ({name})" if name else "")
    whose = f"Of {known[0]['split']} samples of all clients, as they are served" + (
        ", all seeds" if len(runs) > 1 else ""
    )
    about = f"{whose}: a row a class that is right, a column a class that the model says."
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1e-300)
    classes = [str(k) for k in range(len(counts))]
    if len(counts) > IN_A_TABLE:
        heat = {
            "type": "heatmap",
            "z": shares,
            "x": classes,
            "y": classes,
            "colorscale": "Viridis",
            "zmin": 0,
            "zmax": 1,
        }
        axes = {
            "xaxis": axis_of("said", type="category"),
            "yaxis": axis_of("right", type="category", autorange="reversed"),
        }
        return Chart(title, {"data": [heat], "layout": {**axes, "height": 560}}, f"{about} Shares of a row.")
    right = [f"{share:.1%}" if row.any() else number(None) for share, row in zip(np.diag(shares), counts, strict=True)]
    rows = [
        [label, *map(number, row.tolist()), share] for label, row, share in zip(classes, counts, right, strict=True)
    ]
    return Grid(["right", *(f"said {label}" for label in classes), "found"], rows, title, about)
