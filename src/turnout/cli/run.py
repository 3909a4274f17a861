"""`turnout run`: carry out a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli._carry_out import carry_out, is_named, where
from turnout.cli._command import Json, Overrides, Source, sentences
from turnout.cli._watching import NOBODY, Live, MLflowUri, TensorBoardFolder, Watching
from turnout.config import config


def run(
    source: Source,
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier run of the same name.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with the run of this name, if there is one.")] = False,
    live: Live = False,
    tensorboard: TensorBoardFolder = None,
    mlflow: MLflowUri = None,
    as_json: Json = False,
) -> None:
    """Run a configuration.

    Example: turnout run digits algorithm.name=fedprox algorithm.mu=0.1 run.rounds=20 run.seed=1
    """
    with sentences():
        watching = Watching(live, tensorboard, mlflow)
        run_configuration(source, overrides or [], overwrite, resume, as_json, watching=watching)


def run_configuration(
    source: str,
    overrides: list[str],
    overwrite: bool,
    resume: bool,
    as_json: bool,
    folder: Path | None = None,
    watching: Watching = NOBODY,
) -> None:
    """Read a configuration and carry it out, in the folder given or in one of its own name."""
    given = config.read(source, overrides) if folder is None else config.read_run(folder, overrides)
    experiment, settings, complete = config.build(given)
    if folder is None:
        resume = resume and (Path(settings.folder) / settings.name / "config.toml").exists()
        settings, folder = where(settings, complete, overwrite or resume or is_named(overrides))
    carry_out(experiment, settings, complete, folder, overwrite, resume, as_json, watching)
