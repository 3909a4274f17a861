"""Carrying out a run from the command line: those who look on, a report at the end, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from turnout import config
from turnout.command import print_json
from turnout.display import client_columns, failed, show_summary
from turnout.report_cli import leave_report
from turnout.run import Experiment, execute
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.watching import NOBODY, Watching


def carry_out(
    experiment: Experiment,
    settings: config.RunSettings,
    complete: config.Settings,
    folder: Path,
    overwrite: bool,
    resume: bool,
    as_json: bool,
    watching: Watching = NOBODY,
    kind: Callable[..., Server] = Simulation,
) -> None:
    """Execute an experiment in a folder and show how it ended; exit code 1 if it diverged or nobody was heard."""
    trackers = watching.trackers(settings.name, complete)
    with watching.screen() as screen:
        result = execute(
            experiment,
            folder,
            checkpoint_every=settings.checkpoint_every,
            resume=resume,
            overwrite=overwrite,
            configuration=config.as_toml(complete),
            observers=[*trackers, *([screen] if screen else [])],
            kind=kind,
        )
    if settings.report:
        leave_report(folder, experiment)
    summary = result.summary()
    if as_json:
        print_json({"run": str(folder), **summary})
    else:
        show_summary(folder, {**summary, "clients": client_columns(result.audit)})
    if failed(summary):
        raise typer.Exit(1)
