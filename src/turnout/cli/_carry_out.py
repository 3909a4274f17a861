"""Carrying out a run from the command line: those who look on, a report at the end, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import typer

from turnout.cli._command import print_json, remark
from turnout.cli._display import client_columns, failed, out, show_summary
from turnout.cli._watching import NOBODY, Watching
from turnout.cli.report import leave_report
from turnout.config import config
from turnout.record.run_folder import free_name
from turnout.record.signed import log_of
from turnout.run.experiment import Experiment, execute
from turnout.server.observer import Event, Observer
from turnout.server.server import Server
from turnout.server.simulation import Simulation


def is_named(overrides: list[str] | None) -> bool:
    """Whether the command line says what a run is called."""
    return any(text.strip().startswith("run.name=") for text in overrides or [])


def where(settings: config.RunSettings, complete: config.Settings, named: bool) -> tuple[config.RunSettings, Path]:
    """Choose the folder of a new run: the next free one, unless its name was given."""
    folder = Path(settings.folder) / settings.name
    if not named:
        folder = free_name(folder)
        complete["run"]["name"] = folder.name
    return replace(settings, name=folder.name), folder


class Remarks(Observer):
    """Say on stderr what was found damaged, beside the log."""

    def on_event(self, server: Server, event: Event) -> None:
        if event.kind in ("damaged_checkpoint", "damaged_file", "restarted"):
            remark(str(fact) for fact in event.facts.values())


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
            observers=[Remarks(), *trackers, *([screen] if screen else [])],
            kind=kind,
        )
    if settings.report:
        leave_report(folder, experiment)
    summary = result.summary()
    if as_json:
        print_json({"run": str(folder), **summary})
    else:
        show_summary(folder, {**summary, "clients": client_columns(result.audit)})
        if result.sensitivity is not None:
            hint = f"Last hash of what the run left, for turnout.trust.verify --head: {log_of(folder).head}"
            out.print(hint, highlight=False, markup=False, soft_wrap=True)
    if failed(summary):
        raise typer.Exit(1)
