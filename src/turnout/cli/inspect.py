"""`turnout inspect`: a run again, finished or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli._command import Json, print_json, remark, sentences
from turnout.cli._display import out, show_paths, show_summary
from turnout.record.progress import duration
from turnout.report import read


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/digits.")],
    as_json: Json = False,
) -> None:
    """Show a run again: result and audit of a finished one, how far an unfinished one got.

    Example: turnout inspect runs/digits
    """
    with sentences():
        run = read.recorded(folder, "inspect", "config.toml")
        remark(run.remarks)
        summary = run.summary or {"unfinished": True, "last": _last_row(run)}
        if as_json:
            print_json({"run": str(folder), **summary, "paths": run.plan.get("paths", [])})
        elif "unfinished" in summary:
            reached = f"round {summary['last']['round']}, {duration(summary['last']['time'])} of virtual time"
            show_paths(folder)
            out.print(f"{folder} is unfinished ({reached} recorded). Go on with: turnout resume {folder}")
        else:
            show_summary(folder, summary)


def _last_row(run: read.Recorded) -> dict[str, Any]:
    rounds = run.rounds()
    return {name: values[-1].item() for name, values in rounds.items()} if rounds else {"round": 0, "time": 0.0}
