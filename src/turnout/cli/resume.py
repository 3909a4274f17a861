"""`turnout resume`: go on with an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli._command import Json, Overrides, sentences
from turnout.cli._watching import Live, MLflowUri, TensorBoardFolder, Watching
from turnout.cli.flower import is_flower, resume_flower
from turnout.cli.run import run_configuration
from turnout.record.run_folder import check_is_run, examine


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/digits.")],
    overrides: Overrides = None,
    live: Live = False,
    tensorboard: TensorBoardFolder = None,
    mlflow: MLflowUri = None,
    as_json: Json = False,
) -> None:
    """Go on with an interrupted run; the result has the same bits as if it had never stopped.

    Example: turnout resume runs/digits run.rounds=200
    """
    with sentences():
        check_is_run("resume", folder)
        examine("resume", folder, ("config.toml",))
        watching = Watching(live, tensorboard, mlflow)
        if is_flower(folder):
            resume_flower(folder, overrides or [], as_json, watching)
        else:
            run_configuration(str(folder / "config.toml"), overrides or [], False, True, as_json, folder, watching)
