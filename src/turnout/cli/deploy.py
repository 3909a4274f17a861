"""`turnout deploy init | server | client | local` and `turnout replay`: the same configuration over a real network."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnout.cli import deploy_sites
from turnout.cli._carry_out import is_named, show_end, where
from turnout.cli._command import Commands, Json, Overrides, Overwrite, Source, print_json, remark
from turnout.cli._display import err, say
from turnout.config import config
from turnout.core.errors import UserError
from turnout.core.files import read_json
from turnout.core.imports import extra, missing
from turnout.record.run_folder import READ, examine

if TYPE_CHECKING:
    from turnout.deploy.link import Child

deploy_app = Commands(
    help="Run an algorithm over real machines, through Flower's SuperLink.\n\n"
    "Example: turnout deploy local 3 digits run.rounds=5"
)
for _command in (deploy_sites.enrol, deploy_sites.admit, deploy_sites.check, deploy_sites.status):
    deploy_app.command()(_command)
_MADE_UP = ("availability", "crashes", "detection", "links")  # of simulated clients; real ones have their own
_HERE = ("127.0.0.1", "localhost")
TOLERANCE = 1e-6
ServerFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The server's folder, made by deploy init.")]


def _real(source: str, overrides: list[str]) -> config.Settings:
    """Read a configuration without what simulates clients."""
    settings = config.read(source, overrides)
    left_out = [section for section in _MADE_UP if settings.pop(section, None)]
    if left_out:
        err.print(f"Left out, since real clients have their own: {', '.join(left_out)}", highlight=False)
    return settings


def _read(source: str, overrides: list[str]) -> tuple[Any, config.RunSettings, config.Settings]:
    settings = _real(source, overrides)
    built, run, complete = config.build(settings)
    complete["engine"]["threads"] = settings.get("engine", {}).get("threads", 0)  # every machine has its own cores
    return built, run, complete


def _held(built: Any) -> str:
    """Say how many rows the server's folder holds."""
    from turnout.core import trees

    central = built.population.central
    if central is None:
        return ""
    return (
        f"\nserver/ holds {trees.rows(central[1])} rows, the central test set: data.test_fraction=0 holds none out, "
        "where the data bring none; with --schema no row is read at all"
    )


def _prepare(folder: Path, built: Any, complete: config.Settings, hosts: list[str], data: bool = True) -> None:
    from torch import Tensor

    from turnout.deploy.folder import prepare

    if built.started_from:
        raise UserError("run.start: a deployment begins with its own model; leave it out")
    targets = built.population.targets
    whole = isinstance(targets, Tensor) and not targets.is_floating_point()
    classes = int(targets.max()) + 1 if whole else None
    prepare(folder, built.population, classes, config.as_toml(complete), hosts, data)


@contextmanager
def _flower() -> Iterator[None]:
    """Flower must be there; and a polite end is an exit like any other: whoever was started is stopped."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except ImportError as error:
        raise missing("deploy", "Flower", extra("flower")) from error
    finally:
        signal.signal(signal.SIGTERM, before)


@deploy_app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the server's and clients' own.")],
    source: Source,
    overrides: Overrides = None,
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the server; repeatable.")] = None,
    data: Annotated[bool, typer.Option(help="Deal the configuration's data to the clients' folders.")] = True,
    schema: Annotated[
        Path | None, typer.Option(metavar="SCHEMA", help="A schema.toml: sites have tables of their own, none is read.")
    ] = None,
    site: Annotated[list[str] | None, typer.Option(help="A site's name, with --schema; repeatable.")] = None,
) -> None:
    """Make the folders of a server and its clients: certificates, and node keys unless sites make their own.

    Example: turnout deploy init hospital digits clients.count=3 --host learn.example.org
    """
    with _flower():
        if schema is not None:
            deploy_sites.prepare(folder, _real(source, overrides or []), schema, site or [], [*(host or []), *_HERE])
            say(
                f"Made {folder}/server and {folder}/sites/{', '.join(site or [])}, without a row of anybody's: carry "
                "each to its machine. Then, at each site: turnout deploy enrol FOLDER --data TABLE"
            )
            return
        if site:
            raise UserError(f"--site: {site[0]}: sites have tables of their own, so it goes with --schema")
        built, _, complete = _read(source, overrides or [])
        _prepare(folder, built, complete, [*(host or []), *_HERE], data)
        say(
            f"Made {folder}/server and {folder}/clients/0 to {built.population.size - 1}: carry each to its machine. "
            f"Then: turnout deploy server {folder}/server, and at each client: turnout deploy client FOLDER "
            f"--superlink HOST:PORT{_held(built)}"
        )


@deploy_app.command("server")
def server(
    folder: ServerFolder,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Where to listen; 0: any free port.")] = 9092,
    as_json: Json = False,
) -> None:
    """Start a SuperLink with TLS and node keys and carry out the configuration; an interrupted run goes on.

    Example: turnout deploy server hospital/server
    """
    with _flower():
        from turnout.deploy.link import Link

        deploy_sites.check_admitted(folder)
        settings = config.RunSettings(**config.read_run(folder).get("run", {}))
        run = Path(settings.folder) / settings.name
        with Link(folder, host, port) as link:
            err.print(f"The SuperLink listens at {link.address}", highlight=False)
            link.carry_out(run)
        show_end(run, read_json(run / "result.json"), as_json)


@deploy_app.command("client")
def client(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The client's folder, made by deploy init.")],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server listens.")],
    supernode: Annotated[
        bool, typer.Option("--supernode", help="Use Flower's own SuperNode, which starts a process for every message.")
    ] = False,
) -> None:
    """Take part with the data in a client's folder, until interrupted: model and data stay loaded.

    Example: turnout deploy client hospital/clients/0 --superlink learn.example.org:9092
    """
    with _flower():
        from turnout.deploy.link import node, stop_all

        child = node(folder, superlink, supernode)
        try:
            while child.running():
                time.sleep(0.5)
            raise UserError(f"deploy: the client has ended:\n{child.tail()}")
        finally:
            stop_all([child])


@deploy_app.command("local")
def local(
    clients: Annotated[int, typer.Argument(metavar="N", min=1, help="How many clients, each with its own shard.")],
    source: Source,
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Carry out a configuration on this machine over a real network: a SuperLink and N clients on loopback.

    Example: turnout deploy local 3 digits run.rounds=5
    """
    with _flower():
        import flwr  # noqa: F401  before anything is made

        built, settings, complete = _read(source, [*(overrides or []), f"clients.count={clients}"])
        run = where(settings, complete, overwrite or is_named(overrides))[1]
        if run.exists() and any(run.iterdir()) and not overwrite:
            raise UserError(f"run.name: {run} already holds a run; choose another run.name, or pass --overwrite")
        with tempfile.TemporaryDirectory(prefix="turnout-deploy-") as folder:
            _prepare(Path(folder) / "all", built, complete, list(_HERE))
            _carry_out(Path(folder) / "all", clients, run, overwrite)
        show_end(run, read_json(run / "result.json"), as_json)


def _carry_out(folder: Path, clients: int, run: Path, overwrite: bool) -> None:
    from turnout.deploy.link import Link, node, stop_all

    nodes: list[Child] = []
    with Link(folder / "server") as link:
        try:
            for number in range(clients):
                nodes.append(node(folder / "clients" / str(number), link.address))
            link.carry_out(run, overwrite)
        finally:
            stop_all(nodes)


def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a deployed run, such as runs/digits.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Simulate a deployed run with its recorded arrivals, and compare the models; this machine needs all data.

    Example: turnout replay runs/digits
    """
    from turnout.deploy.replay import difference

    remark(examine("replay", folder, (*READ, "jobs", "arrivals", "model.safetensors")))
    if not (folder / "arrivals").is_dir() or not (folder / "result.json").exists():
        raise UserError(f"replay: {folder} is not the folder of a deployed run that has ended")
    built, _, _ = config.build(config.read_run(folder, overrides))
    found = difference(built, folder)
    if as_json:
        print_json({"run": str(folder), **found, "tolerance": TOLERANCE})
    else:
        verdict = "at most" if found["difference"] <= TOLERANCE else "more than"
        say(
            f"{found['rounds']} rounds, {found['jobs']} jobs replayed: the models differ by "
            f"{found['difference']:.3g}, {verdict} the {TOLERANCE:g} of rounding"
        )
    if found["difference"] > TOLERANCE:
        raise typer.Exit(1)
