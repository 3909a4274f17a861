"""The server's side as a Flower `ServerApp`: it builds the experiment from the server's folder and carries it out over
the Grid. A run that was interrupted goes on from its checkpoint."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from turnout.config.deployment import Deploy
from turnout.core.errors import FailedError, UserError
from turnout.core.files import write_text
from turnout.deploy import shard
from turnout.deploy.app import why
from turnout.deploy.enrol import Enrolment
from turnout.deploy.presence import Timeline
from turnout.deploy.server import Deployment
from turnout.run.experiment import execute

FOLDER, RUN, OVERWRITE = "folder", "run", "overwrite"  # of the run's configuration
MISTAKE = "mistake.txt"  # in the server's folder: what the user must change
FAILURE = "failure.txt"  # in the server's folder: why the server could not go on

app = ServerApp()


def serve(grid: Grid, folder: Path, run: Path, overwrite: bool = False, **options: Any) -> None:
    """Carry out the experiment of a server's folder; the record goes to `run`, where an earlier one goes on, or is
    replaced. `options` are those of `Deployment`."""
    from turnout.config import config

    enrolment = Enrolment(folder / "clients.toml")
    settings = config.read_run(folder)
    sizes = [client.samples for client in enrolment.clients]
    importance = settings.get("clients", {}).get("importance", "samples")
    known = shard.read_outline(
        folder / "outline.safetensors",
        sizes,
        importance=importance,
        seed=settings["run"]["seed"],
        **enrolment.columns(),
    )
    experiment, running, complete = config.build(settings, known=known)
    deploy = Deploy(**settings.get("deploy", {}))
    if deploy.evaluate == "server" and experiment.population.central is None:
        raise UserError("deploy.evaluate: server, but it has no central test set; let the clients evaluate")
    execute(
        experiment,
        run,
        checkpoint_every=running.checkpoint_every,
        resume=(run / "plan.json").exists() and not overwrite,
        overwrite=overwrite,
        configuration=config.as_toml(complete),
        kind=partial(
            Deployment, grid=grid, enrolment=enrolment, settings=deploy, timeline=Timeline(run / "arrivals"), **options
        ),
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder, run = Path(str(context.run_config[FOLDER])), Path(str(context.run_config[RUN]))
    try:
        serve(grid, folder, run, bool(context.run_config.get(OVERWRITE)))
    except UserError as error:
        _tell(folder / MISTAKE, str(error))
        raise
    except Exception as error:
        sentence = str(error) if isinstance(error, FailedError) else f"the server failed: {why(error)}"
        _tell(folder / FAILURE, sentence)
        raise


def _tell(path: Path, sentence: str) -> None:
    with suppress(UserError):  # of a disk that is full, as the error may be
        write_text(path, sentence)
