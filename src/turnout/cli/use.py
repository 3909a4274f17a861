"""`turnout predict` and `turnout export`: what a finished run has learnt, for new rows and for other programs."""

from __future__ import annotations

import csv
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from turnout.cli._command import Json, RunFolder, print_json, remark
from turnout.cli._display import say
from turnout.core.errors import UserError
from turnout.core.files import write_text
from turnout.core.names import called
from turnout.data._columns import Column
from turnout.use import export as exporting
from turnout.use.served import SHARED, Predictions, Served

Client = Annotated[
    str | None, typer.Option(metavar="NAME", help="Take the model of this client; else of each row's own.")
]


def predict(
    folder: RunFolder,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV as the run's own table was, or Parquet.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write, as CSV.")] = Path(
        "predictions.csv"
    ),
    client: Client = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Take the model of all, where clients have their own.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict the target of each row of a table, as a run's clients are served, with the preprocessing that it kept.

    Example: turnout predict runs/wards new.csv --out predictions.csv
    """
    if client is not None and shared:
        raise UserError(f"--client: {client} with --shared, the model of all; give one of them")
    served = Served.open(folder)
    columns = served.table(table)
    whose, remarks = _whose(served, columns, client, shared)
    remark(remarks)
    found = served.predict(columns, whose)
    header, rows = _rows(served, columns, found)
    if as_json:
        print_json({"run": str(folder), "rows": [dict(zip(header, row, strict=True)) for row in rows]})
        return
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(out, text.getvalue())
    say(f"Written: {out}: {_summary(served, found)}")


def _whose(served: Served, columns: dict[str, Column], client: str | None, shared: bool) -> tuple[Any, list[str]]:
    if shared:
        return SHARED, []
    if client is not None:
        number = served.client("--client", client)
        return (SHARED if served.by == "shared" else number), []
    return served.whose(columns)


def _rows(served: Served, columns: dict[str, Column], found: Predictions) -> tuple[list[str], list[list[Any]]]:
    """A row for each of the table: where it stands, what identifies it, whose model spoke, and what it said."""
    fitted = served.table_fitted
    first = next(iter(columns.values()))
    parts: dict[str, list[Any]] = {first.line: first.lines.tolist()}
    told = [one.name for one in fitted.columns if one.kind == "id"] + ([fitted.client] if fitted.client else [])
    parts |= {name: [str(value) for value in columns[name].values] for name in told if name in columns}
    parts["model"] = [
        "shared" if number == SHARED else called(served.names, number, "{}") for number in found.models.tolist()
    ]
    goal = fitted.target["name"]
    if isinstance(found.labels, np.ndarray):
        wide = found.labels.shape[1] > 1
        for place in range(found.labels.shape[1]):
            parts[f"{goal}[{place}]" if wide else goal] = found.labels[:, place].tolist()
    else:
        parts[goal] = found.labels
        kind = "probability" if served.says_probabilities else "score"
        for place, name in enumerate(fitted.target["classes"]):
            parts[f"{kind} {name}"] = found.scores[:, place].round(6).tolist()
    return list(parts), [list(row) for row in zip(*parts.values(), strict=True)]


def _summary(served: Served, found: Predictions) -> str:
    goal = served.table_fitted.target["name"]
    if isinstance(found.labels, np.ndarray):
        low, high = found.labels.min(), found.labels.max()
        return f"{goal} of {len(found.labels)} rows, from {low:.6g} to {high:.6g}"
    counts = Counter(found.labels)
    known = [name for name in served.table_fitted.target["classes"] if counts[name]]
    return f"{goal} of {len(found.labels)} rows: {', '.join(f'{counts[name]} {name}' for name in known)}"


def export(
    folder: RunFolder,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"{', '.join(exporting.FORMATS)}.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Default: RUN/export/FORMAT.")] = None,
    client: Client = None,
) -> None:
    """Write a run's model for another program, with its preprocessing and its card.

    Example: turnout export runs/digits --to safetensors
    """
    served = Served.open(folder, "export")
    out = out or folder / "export" / (to if client is None else f"{to}-{client}")
    files = exporting.export(served, to, out, SHARED if client is None else served.client("--client", client))
    say(f"Written: {out}: {', '.join(files)}")
