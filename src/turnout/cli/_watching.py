"""Who looks on while `turnout run` and `turnout resume` go: a progress bar or a dashboard, TensorBoard, MLflow."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli._display import err
from turnout.config.config import Settings
from turnout.record.progress import Dashboard, ProgressBar
from turnout.record.tracking import MLflow, TensorBoard
from turnout.server.observer import Observer

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

    def trackers(self, name: str, settings: Settings) -> list[Observer]:
        found: list[Observer] = []
        if self.tensorboard is not None:
            found.append(TensorBoard(self.tensorboard / name, settings))
        if self.mlflow is not None:
            found.append(MLflow(self.mlflow, settings, run_name=name))
        return found

    def screen(self) -> AbstractContextManager[ProgressBar | Dashboard | None]:
        return Dashboard(err) if self.live else ProgressBar(err) if err.is_terminal else nullcontext()


NOBODY = Watching()
