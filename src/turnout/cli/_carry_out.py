"""Carrying out a run from the command line: those who look on, a report at the end, and how it ended."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Annotated, Any

import typer

from turnout.cli._command import INTERRUPTED, print_json, remark
from turnout.cli._display import err, failed, say, show_summary
from turnout.cli.report import leave_report
from turnout.config import config
from turnout.record.progress import Dashboard, ProgressBar
from turnout.record.run_folder import free_name
from turnout.record.signed import log_of
from turnout.record.tracking import MLflow, TensorBoard
from turnout.run.experiment import Experiment, execute
from turnout.server.checkpoint import Checkpoints
from turnout.server.observer import Event, Observer
from turnout.server.server import Server
from turnout.server.simulation import Simulation

Live = Annotated[bool, typer.Option("--live", help="Show a dashboard; not on a terminal: a line now and then.")]
TensorBoardFolder = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="FOLDER", help="Log to FOLDER/NAME, for tensorboard --logdir.")
]
MLflowUri = Annotated[
    str | None, typer.Option("--mlflow", metavar="URI", help="Log to a server, http://HOST:PORT, or sqlite:///FILE.")
]


@dataclass(frozen=True)
class Watching:
    """Nothing of this is part of the result."""

    live: bool = False
    tensorboard: Path | None = None
    mlflow: str | None = None

    def trackers(self, name: str, settings: config.Settings) -> list[Observer]:
        found: list[Observer] = []
        if self.tensorboard is not None:
            found.append(TensorBoard(self.tensorboard / name, settings))
        if self.mlflow is not None:
            found.append(MLflow(self.mlflow, settings, run_name=name))
        return found

    def screen(self) -> AbstractContextManager[ProgressBar | Dashboard | None]:
        """A progress bar, or a dashboard."""
        return Dashboard(err) if self.live else ProgressBar(err) if err.is_terminal else nullcontext()


NOBODY = Watching()


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


class Leaving(Observer, AbstractContextManager["Leaving"]):
    """Ctrl-C lets the round under way end and be saved; another one stops at once."""

    def __init__(self) -> None:
        self._before: Any = None  # who answered Ctrl-C

    def on_start(self, server: Server) -> None:
        checkpoints = server.checkpoints
        if checkpoints is None or current_thread() is not main_thread():  # only that one is told of signals
            return

        def leave(*_: object) -> None:
            checkpoints.leaving = True
            self._restore()
            say("finishing this round to save it; Ctrl-C again stops at once", err)

        self._before = signal.signal(signal.SIGINT, leave)

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def __exit__(self, *_: object) -> None:
        self._restore()


def _say_how_to_go_on(folder: Path, rounds: int | None) -> None:
    """Say after Ctrl-C what is saved of a run, and the command that goes on with it."""
    newest = Checkpoints(folder / "checkpoints").newest
    if newest is None:
        say("interrupted before the first round: nothing was written", err)
        return
    saved = f"{folder} is saved up to round {newest}{'' if rounds is None else f' of {rounds}'}"
    say(f"interrupted: {saved}; go on with: {shlex.join(['turnout', 'resume', str(folder)])}", err)


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
    """Execute an experiment in a folder and show how it ended."""
    trackers = watching.trackers(settings.name, complete)
    try:
        with Leaving() as leaving, watching.screen() as screen:
            result = execute(
                experiment,
                folder,
                checkpoint_every=settings.checkpoint_every,
                resume=resume,
                overwrite=overwrite,
                configuration=config.as_toml(complete),
                observers=[leaving, Remarks(), *trackers, *([screen] if screen else [])],
                kind=kind,
            )
    except KeyboardInterrupt:
        _say_how_to_go_on(folder, settings.rounds)
        raise typer.Exit(INTERRUPTED) from None
    if settings.report:
        leave_report(folder, experiment)
    summary = result.summary()
    hint = ""
    if result.sensitivity is not None:
        hint = f"Last hash of what the run left, for turnout.trust.verify --head: {log_of(folder).head}"
    show_end(folder, summary if as_json else {**summary, "clients": result.audit.by_client()}, as_json, hint)


def show_end(folder: Path, summary: dict[str, Any], as_json: bool, hint: str = "") -> None:
    """Show how a run ended; exit code 1 if it diverged or nobody was heard."""
    if as_json:
        print_json({"run": str(folder), **summary})
    else:
        show_summary(folder, summary)
        if hint:
            say(hint)
    if failed(summary):
        raise typer.Exit(1)
