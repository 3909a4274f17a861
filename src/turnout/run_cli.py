"""Carrying out a run from the command line: those who look on, a report at the end, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from turnout import config
from turnout.command import print_json
from turnout.display import client_columns, out, show_summary
from turnout.report_cli import leave_report
from turnout.run import Experiment, execute
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.unlearning.ended import log_of
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
    """Execute an experiment in a folder and show how it ended; exit code 1 if it diverged."""
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
    if as_json:
        print_json({"run": str(folder), **result.summary()})
    else:
        show_summary(folder, {**result.summary(), "clients": client_columns(result.audit)})
        if result.sensitivity is not None:
            hint = f"Last hash of what the run left, for turnout.unlearning.verify --head: {log_of(folder).head}"
            out.print(hint, highlight=False, markup=False, soft_wrap=True)
    if result.server.stopped and result.server.stopped.startswith("diverged"):
        raise typer.Exit(1)
