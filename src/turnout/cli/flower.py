"""`turnout simulate-flower`: a Flower app, unmodified, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from turnout.cli._carry_out import NOBODY, Watching, carry_out
from turnout.cli._command import Json, Overrides
from turnout.config import config
from turnout.config.config import ClientSettings, RunSettings, Settings
from turnout.config.options import call
from turnout.core.errors import UserError
from turnout.core.imports import extra, missing
from turnout.record.run_folder import free_name
from turnout.run.experiment import Experiment

_WHO = ("clients", "devices", "links", "power", "availability", "crashes", "detection")
_HOW = ("run", "algorithm", "sampler", "local", "evaluation", "engine", "detectors", "privacy")
_ROUNDS = "num-server-rounds"  # what apps call it
_UNLIMITED = 1 << 53


@dataclass(frozen=True)
class FlowerSettings:
    """The app, values of its own configuration, and how many samples each client has (they are asked if not given)."""

    app: str
    run_config: dict[str, bool | int | float | str] | None = None
    samples: list[int] | None = None


@dataclass(frozen=True)
class AmountSettings:
    """How much a job is, for devices that are so fast a step or a sample."""

    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32


def simulate_flower(
    app: Annotated[Path, typer.Argument(metavar="APP", help="The folder of a Flower app, with its pyproject.toml.")],
    overrides: Overrides = None,
    population: Annotated[
        str,
        typer.Option(
            metavar="CONFIG",
            help="Who takes part: the sections clients, devices, links, power, availability, crashes and detection of "
            "a .toml file, or of a built-in configuration.",
        ),
    ] = "digits",
    algorithm: Annotated[
        str | None, typer.Option(help="One of Turnout's, in the place of the app's own ServerApp and strategy.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Default: as many as the app says.")] = None,
    seed: Annotated[int | None, typer.Option(help="Default: 0.")] = None,
    run_config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of the app's own configuration; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Of the run; default: runs/ and its name.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier run in the folder.")] = False,
    as_json: Json = False,
) -> None:
    """Run a Flower app, as it is, in virtual time: devices, links, availability and crashes decide who answers when.

    Its own ServerApp leads, unless an algorithm of Turnout is named. Go on with an interrupted run by: turnout resume.

    Example: turnout simulate-flower examples/flower-quickstart --population digits --algorithm fedbuff
    """
    world = config.read(population)  # who takes part; all else is as the app has it, or as given
    settings: Settings = {"flower": {"app": str(app)}} | {name: world[name] for name in _WHO if name in world}
    given = [] if algorithm is None else [f"algorithm.name={algorithm}"]
    given += overrides or []
    given += [f"run.{name}={value}" for name, value in (("rounds", rounds), ("seed", seed)) if value is not None]
    given += [f"flower.run_config.{text}" for text in run_config or []]
    for text in given:
        config.apply(settings, text)
    folder = out or Path("runs") / app.resolve().name
    folder = folder if out or overwrite else free_name(folder)
    settings.setdefault("run", {})["name"] = folder.name
    _simulate(settings, folder, overwrite=overwrite, resume=False, as_json=as_json)


def resume_flower(folder: Path, overrides: list[str], as_json: bool, watching: Watching) -> None:
    """Go on with the run of an app."""
    settings = config.toml(str(folder / "config.toml"))
    for override in overrides:
        config.apply(settings, override)
    _simulate(settings, folder, overwrite=False, resume=True, as_json=as_json, watching=watching)


def is_flower(folder: Path) -> bool:
    """Whether a run is that of an app."""
    return "flower" in config.toml(str(folder / "config.toml"))


def _simulate(
    settings: Settings, folder: Path, *, overwrite: bool, resume: bool, as_json: bool, watching: Watching = NOBODY
) -> None:
    experiment, run, complete, simulation = build(settings)
    carry_out(experiment, run, complete, folder, overwrite, resume, as_json, watching, simulation)


def build(settings: Settings) -> tuple[Experiment, RunSettings, Settings, Callable[..., Any]]:
    """The experiment, its complete settings, and the simulation whose clients are the app's."""
    if find_spec("flwr") is None:
        raise missing("flower.app", "Flower", extra("flower"))
    import turnout.deploy.flower_parts  # noqa: F401  first: it says which Flower is needed
    from turnout.deploy.app import App, Clients
    from turnout.deploy.opening import opening
    from turnout.deploy.server_app import GridSimulation, ServerAppLeads
    from turnout.deploy.virtual import AppSimulation, AppTask, AppWork, enrol, samples_of

    for section in settings:
        if section not in ("flower", *_WHO, *_HOW):
            raise UserError(f"{section}: a Flower app brings its own; allowed: {', '.join((*_WHO, *_HOW))}")
    given = {section: dict(options) for section, options in settings.items()}
    run = given.setdefault("run", {})
    flower: FlowerSettings = call("flower", FlowerSettings, given.pop("flower"), {})[0]
    amount: AmountSettings = call("local", AmountSettings, given.pop("local", {}), {})[0]
    own = {name: value for name, value in given["clients"].items() if not name.endswith("_fraction")}
    given["clients"] = own | {"test": "none"}
    counted: ClientSettings = call("clients", ClientSettings, given["clients"], {})[0]

    app_config = dict(flower.run_config or {})
    app = App.load(Path(flower.app), app_config)
    if _ROUNDS in app.run_config and "rounds" in run:
        app = replace(app, run_config={**app.run_config, _ROUNDS: run["rounds"]})
    leading = "algorithm" not in given
    people, seed = Clients(app, counted.count), int(run.get("seed", 0))
    first = opening(app, people, seed, leading)
    known = first.known or not leading
    task, local = AppTask(first.arrays if known else None), AppWork(**vars(amount))
    people.sized = bool(flower.samples) or counted.importance != "samples"
    samples = flower.samples
    if not people.sized and known:
        try:
            samples, people.sized = enrol(people, first, seed).tolist(), True
        except UserError:
            if not leading:
                raise
    if samples is not None and (len(samples) != counted.count or min(samples) < 1):
        raise UserError(f"flower.samples: a number above 0 for each of {counted.count} clients is needed")

    given.setdefault("engine", {}).setdefault("precision", str(task.layout.dtype))
    own_rounds = app.run_config.get(_ROUNDS)
    run.setdefault("rounds", _UNLIMITED if leading or not isinstance(own_rounds, int) else own_rounds)
    if leading:
        given["algorithm"] = {"name": "fedavg"}  # stands in until the app leads
    data = samples_of(np.ones(counted.count, np.int64) if samples is None else np.asarray(samples, np.int64))
    experiment, made, complete = config.build(given, config.Brought(data, task, local))
    complete = {name: complete[name] for name in (*_WHO, *_HOW) if complete.get(name)}
    if leading:
        experiment.algorithm = ServerAppLeads(local)
        del complete["algorithm"]
    complete["local"] = vars(amount)
    decisive = {name: value for name, value in app.run_config.items() if name != _ROUNDS}
    source = {"source": app.digest, "run_config": decisive, "samples": samples}
    experiment.fingerprint = config.fingerprint({**complete, "flower": source})
    if complete["run"]["rounds"] == _UNLIMITED:
        complete["run"]["rounds"] = None
    complete["flower"] = {"app": str(app.folder), "run_config": app_config or None, "samples": samples}
    return experiment, made, complete, partial(GridSimulation if leading else AppSimulation, people, first)
