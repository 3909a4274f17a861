"""`turnout run`, `turnout demo` and `turnout resume`: carry out a configuration, or go on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli._carry_out import (
    NOBODY,
    Live,
    MLflowUri,
    TensorBoardFolder,
    Watching,
    carry_out,
    is_named,
    where,
)
from turnout.cli._command import Json, Overrides, Overwrite, RunFolder, Source, remark
from turnout.cli._display import out
from turnout.cli.compare import carry_out_all
from turnout.cli.flower import is_flower, resume_flower
from turnout.config import config
from turnout.config.written import check_goes_on
from turnout.core.errors import UserError
from turnout.plan.sweep import repeated
from turnout.record.run_folder import check_is_run, examine


def demo(as_json: Json = False) -> None:
    """Train over a hundred unreliable clients on bundled data and show whose data counted.

    Example: turnout demo
    """
    run_configuration("digits", ["run.name=demo"], overwrite=True, resume=False, as_json=as_json)
    if not as_json:
        commands = ("turnout run digits algorithm.name=scaffold", "turnout list algorithms", "turnout show fedprox")
        out.print("\nNext: " + ", ".join(f"[bold]{command}[/bold]" for command in commands))


def run(
    source: Source,
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    resume: Annotated[bool, typer.Option(help="Go on with the run of this name, if there is one.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN", help="Begin with the model of that run: its folder, or a .safetensors file."
        ),
    ] = None,
    live: Live = False,
    tensorboard: TensorBoardFolder = None,
    mlflow: MLflowUri = None,
    as_json: Json = False,
) -> None:
    """Run a configuration; with run.seeds=0..4 once for each of these, and sum up with intervals.

    Example: turnout run digits algorithm.name=fedprox algorithm.mu=0.1 run.rounds=20 run.seed=1
    """
    overrides = [*(overrides or []), *([] if start is None else [f"run.start={json.dumps(start)}"])]
    if config.read(source, overrides).get("run", {}).get("seeds"):
        asked = {"--overwrite": overwrite, "--live": live, "--tensorboard": tensorboard, "--mlflow": mlflow}
        for option in (option for option, value in asked.items() if value):
            raise UserError(f"{option}: it is for one run, and run.seeds asks for several; leave one of them out")
        carry_out_all("run", source, repeated(source, overrides), as_json=as_json)
        return
    watching = Watching(live, tensorboard, mlflow)
    run_configuration(source, overrides, overwrite, resume, as_json, watching=watching)


def resume(
    folder: RunFolder,
    overrides: Overrides = None,
    live: Live = False,
    tensorboard: TensorBoardFolder = None,
    mlflow: MLflowUri = None,
    as_json: Json = False,
) -> None:
    """Go on with an interrupted run; the result has the same bits as if it had never stopped.

    Example: turnout resume runs/digits run.rounds=200
    """
    check_is_run("resume", folder)
    examine("resume", folder, ("config.toml",))
    watching = Watching(live, tensorboard, mlflow)
    if is_flower(folder):
        resume_flower(folder, overrides or [], as_json, watching)
    else:
        run_configuration("", overrides, False, True, as_json, folder, watching)


def run_configuration(
    source: str,
    overrides: list[str] | None,
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
        remark(f"data: {sentence}" for sentence in getattr(experiment.population.origin, "said", ()))
    if resume:
        check_goes_on(folder, complete, overrides or [])
    carry_out(experiment, settings, complete, folder, overwrite, resume, as_json, watching)
