"""`turnout inspect` and `turnout report`: a run again, and one HTML page of it, or of up to ten compared. Runs leave
one behind, too."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli._command import Json, RunFolder, print_json, remark
from turnout.cli._display import err, say, show_answers, show_paths, show_summary
from turnout.core.errors import UserError
from turnout.core.files import write_text
from turnout.peers.picture import draw
from turnout.record.run_folder import reseal
from turnout.report import page, read, sentences
from turnout.report.drawings import design_of
from turnout.run.experiment import Experiment
from turnout.use import card

MOST_DRAWN = 100  # silos of a map that can be read


def inspect(folder: RunFolder, as_json: Json = False) -> None:
    """Show a run again: result and audit of a finished one, how far an unfinished one got.

    Example: turnout inspect runs/digits
    """
    run = read.recorded(folder, "inspect", "config.toml")
    remark(run.remarks)
    summary = run.summary or {"unfinished": True, "last": _last_row(run)}
    if as_json:
        answers = {"run": str(folder), "answers": sentences.of_run(run)}
        print_json({**answers, **summary, "paths": run.plan.get("paths", [])})
    elif "unfinished" in summary:
        show_answers(sentences.of_run(run))
        show_paths(folder)
    else:
        show_summary(folder, summary)


def _last_row(run: read.Recorded) -> dict[str, Any]:
    rounds = run.rounds()
    return {name: values[-1].item() for name, values in rounds.items()} if rounds else {"round": 0, "time": 0.0}


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, up to ten.")],
    path: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Default: report.html, in the folder of one run, or here for several."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Write a report: curves, timeline, audit, costs; seeds of one setting become one line with a band.

    Example: turnout report runs/digits runs/fedfix --out compared.html
    """
    path = path or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    runs = [read.recorded(folder) for folder in read.below(folders)]
    remark(sentence for run in runs for sentence in run.remarks)
    page.write(runs, path)
    say(f"Written: {path}")
    if show:
        webbrowser.open(path.resolve().as_uri())


def leave_report(folder: Path, experiment: Experiment | None = None) -> None:
    """At the end of a run, with its card; what goes wrong is said, and spoils nothing."""
    try:
        if experiment is not None:
            draw_overlay(folder, experiment)
        card.write(folder)
        page.write([read.recorded(folder)], folder / "report.html")
    except (UserError, OSError) as error:
        err.print(f"[yellow]no report:[/yellow] {escape(str(error))}", soft_wrap=True, highlight=False)


def draw_overlay(folder: Path, experiment: Experiment) -> None:
    """A map of who talks to whom, where silos train without a server."""
    found = None if experiment.population.size > MOST_DRAWN else design_of(experiment)
    if found is None:
        return
    network, chosen = found
    title = f"{chosen.name}: {1e3 * chosen.cycle_time:.1f} ms a round"
    write_text(folder / "overlay.svg", draw(network, chosen, title))
    reseal(folder, "overlay.svg")
