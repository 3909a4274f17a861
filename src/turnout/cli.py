"""The command line: `turnout demo | run | resume | list | show | inspect`."""

from __future__ import annotations

import inspect as introspection
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnout import __version__, config, datasets, registry
from turnout.errors import UserError, unknown
from turnout.files import as_json_text
from turnout.models import MODELS
from turnout.observe.progress import ProgressBar, duration
from turnout.options import options_of
from turnout.population.partition import PARTITIONS
from turnout.run import execute

app = typer.Typer(
    help="Federated learning with whoever shows up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out, err = Console(), Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; progress goes to stderr.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[SECTION.OPTION=VALUE]...", show_default=False)]
KINDS = ("algorithms", "samplers", "datasets", "availability", "devices", "models", "partitions", "configs")


# Arguments that a configuration fills in from its other sections.
_FILLED_IN = {
    "algorithm": {"local", "sampler"},
    "partition": {"data", "clients", "seed", "part"},
    "devices": {"clients"},
}


@contextmanager
def _sentences() -> Iterator[None]:
    """A user's mistake is one sentence on stderr and exit code 2."""
    try:
        yield
    except UserError as error:
        err.print(f"[red]turnout:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from error


def _print_json(document: Any) -> None:
    sys.stdout.write(as_json_text(document))


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command()
def demo(as_json: Json = False) -> None:
    """Train over a hundred unreliable clients on bundled data and show whose data counted.

    Example: turnout demo
    """
    with _sentences():
        _run("digits", ["run.name=demo"], overwrite=True, resume=False, as_json=as_json)
        if not as_json:
            commands = ("turnout run digits algorithm.name=scaffold", "turnout list algorithms", "turnout show fedprox")
            out.print("\nNext: " + ", ".join(f"[bold]{command}[/bold]" for command in commands))


@app.command()
def run(
    source: Annotated[str, typer.Argument(metavar="CONFIG", help="A .toml file, or a built-in configuration by name.")],
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier run of the same name.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with the run of this name, if there is one.")] = False,
    as_json: Json = False,
) -> None:
    """Run a configuration.

    Example: turnout run digits algorithm.name=fedprox algorithm.mu=0.1 run.rounds=20 run.seed=1
    """
    with _sentences():
        _run(source, overrides or [], overwrite, resume, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/digits.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Go on with an interrupted run; the result has the same bits as if it had never stopped.

    Example: turnout resume runs/digits run.rounds=200
    """
    with _sentences():
        if not (folder / "config.toml").exists():
            raise UserError(f"resume: {folder} is not the folder of a run (it has no config.toml)")
        _run(str(folder / "config.toml"), overrides or [], False, True, as_json, folder)


def _run(
    source: str, overrides: list[str], overwrite: bool, resume: bool, as_json: bool, folder: Path | None = None
) -> None:
    experiment, settings, complete = config.build(config.read(source, overrides))
    folder = folder or Path(settings.folder) / settings.name
    with ProgressBar(err) if err.is_terminal else nullcontext() as bar:
        result = execute(
            experiment,
            folder,
            checkpoint_every=settings.checkpoint_every,
            resume=resume and (folder / "config.toml").exists(),
            overwrite=overwrite,
            configuration=config.as_toml(complete),
            observers=[bar] if bar else [],
        )
    if as_json:
        _print_json({"run": str(folder), **result.summary()})
    else:
        _show_summary(folder, {**result.summary(), "clients": _client_columns(result.audit)})
    if result.server.stopped and result.server.stopped.startswith("diverged"):
        raise typer.Exit(1)


def _client_columns(audit: Any) -> dict[str, list[float]]:
    return {name: getattr(audit, name).tolist() for name in ("intended", "realised", "contributions")}


def _show_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Where the run ended, and the turnout audit."""
    audit, measures = summary["audit"], summary["measures"]
    length = f"{summary['rounds']} rounds, {duration(summary['virtual_seconds'])} of virtual time"
    out.print(f"\n[bold]{folder}[/bold]: {length} (stopped: {summary['stopped']})")
    table = Table("measure", "weighted", "mean", "std", "worst decile", title="Over clients", title_justify="left")
    for name in sorted(name for name in measures if f"{name}_mean" in measures):
        columns = (measures[name], *(measures[f"{name}_{part}"] for part in ("mean", "std", "worst_decile")))
        table.add_row(name.replace("_", " "), *(f"{value:.4f}" for value in columns))
    for name in (name for name in measures if name.startswith("central_")):
        table.add_row(name.replace("_", " "), f"{measures[name]:.4f}", "", "", "")
    out.print(table)
    _show_audit(audit, summary["clients"])


def _show_audit(audit: dict[str, Any], clients: dict[str, list[float]]) -> None:
    table = Table(show_header=False, title="Turnout audit: whose data counted", title_justify="left")
    table.add_row("clients heard", f"{audit['clients'] - audit['never_heard']} of {audit['clients']}")
    table.add_row("updates used", str(audit["contributions"]))
    failures = ", ".join(f"{count} {reason}" for reason, count in sorted(audit["failures"].items())) or "none"
    table.add_row("jobs that brought nothing", failures)
    if audit["linear"] and audit["ratio_min"] is not None:
        table.add_row(
            "realised / intended share", f"{audit['ratio_min']:.2f} to {audit['ratio_max']:.2f} (1 = as intended)"
        )
        table.add_row("chi-square of the shares", f"{audit['chi_square']:.4f} (0 = as intended)")
        table.add_row("mean sum of weights", f"{audit['mean_weight']:.3f}")
        table.add_row("variance of weights", f"{audit['weight_variance']:.4f}")
        order = sorted(range(len(clients["intended"])), key=lambda i: clients["realised"][i] - clients["intended"][i])
        for label, picked in (("counted least", order[:3]), ("counted most", order[:-4:-1])):
            row = ", ".join(f"{i} ({clients['realised'][i]:.4f} for {clients['intended'][i]:.4f})" for i in picked)
            table.add_row(label, row)
    elif not audit["linear"]:
        table.add_row("weights", "the rule is not a weighted sum: selections are counted instead")
    staleness = audit["staleness"]
    if set(staleness) - {"0"}:
        table.add_row("staleness", ", ".join(f"{age}: {count}" for age, count in staleness.items()))
    for kind, count in audit["events"].items():
        table.add_row(kind.replace("_", " "), str(count))
    out.print(table)


def _listing() -> dict[str, dict[str, Any]]:
    def described(things: dict[str, Any]) -> dict[str, str]:
        return {name: (introspection.getdoc(thing) or "").split("\n")[0] for name, thing in things.items()}

    def modules(kind: str) -> dict[str, str]:
        found = {name: introspection.getmodule(registry.find(kind, name)) for name in registry.names(kind)}
        return described(found)

    return {
        "algorithms": modules("algorithm"),
        "samplers": modules("sampler"),
        "datasets": described({name: introspection.getmodule(datasets.loader(name)) for name in datasets.names()}),
        "availability": described(config.AVAILABILITY),
        "devices": described(config.DEVICES),
        "models": described(MODELS),
        "partitions": described(PARTITIONS),
        "configs": dict.fromkeys(config.builtin_names(), ""),
    }


@app.command("list")
def list_names(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help=", ".join(KINDS))] = None, as_json: Json = False
) -> None:
    """List what Turnout knows by name.

    Example: turnout list algorithms
    """
    with _sentences():
        if kind is not None and kind not in KINDS:
            raise unknown("list", kind, KINDS)
        listing = {name: things for name, things in _listing().items() if kind in (None, name)}
        if as_json:
            _print_json(listing)
            return
        for name, things in listing.items():
            table = Table(show_header=False, title=name, title_justify="left", box=None)
            for thing, sentence in things.items():
                table.add_row(f"[bold]{thing}[/bold]", escape(sentence))
            out.print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `turnout list` prints.")]) -> None:
    """Explain one name: what it does, its options and their defaults.

    Example: turnout show fedprox
    """
    with _sentences():
        kinds: dict[str, dict[str, Any]] = {
            "algorithm": {n: registry.find("algorithm", n) for n in registry.names("algorithm")},
            "sampler": {n: registry.find("sampler", n) for n in registry.names("sampler")},
            "data": {n: datasets.loader(n) for n in datasets.names()},
            "availability": config.AVAILABILITY,
            "devices": config.DEVICES,
            "model": MODELS,
            "partition": PARTITIONS,
        }
        if name in config.builtin_names():
            out.print(config.builtin_text(name), highlight=False, markup=False)
        found = {section: things[name] for section, things in kinds.items() if name in things}
        if not found and name not in config.builtin_names():
            raise unknown("show", name, [n for things in kinds.values() for n in things] + config.builtin_names())
        for section, thing in found.items():
            if section in ("algorithm", "sampler", "data"):
                out.print(
                    (introspection.getdoc(introspection.getmodule(thing)) or "") + "\n", highlight=False, markup=False
                )
            out.print(introspection.getdoc(thing) or "", highlight=False, markup=False)
            table = Table(escape(f"[{section}] option"), "type", "default", box=None)
            for option, (hint, default) in options_of(thing, _FILLED_IN.get(section)).items():
                shown = "required" if default is introspection.Parameter.empty else str(default)
                table.add_row(option, escape(introspection.formatannotation(hint)), escape(shown))
            if table.row_count:
                out.print(table)


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/digits.")],
    as_json: Json = False,
) -> None:
    """Show a run again: result and audit of a finished one, how far an unfinished one got.

    Example: turnout inspect runs/digits
    """
    with _sentences():
        if not (folder / "config.toml").exists():
            raise UserError(f"inspect: {folder} is not the folder of a run (it has no config.toml)")
        if (folder / "result.json").exists():
            summary = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        else:
            summary = {"unfinished": True, "last": _last_row(folder)}
        if as_json:
            _print_json({"run": str(folder), **summary})
        elif "unfinished" in summary:
            reached = f"round {summary['last']['round']}, {duration(summary['last']['time'])} of virtual time"
            out.print(f"{folder} is unfinished ({reached} recorded). Go on with: turnout resume {folder}")
        else:
            _show_summary(folder, summary)


def _last_row(folder: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    segments = sorted((folder / "history").glob("*.parquet"))
    row: dict[str, Any] = pq.read_table(segments[-1]).to_pylist()[-1] if segments else {"round": 0, "time": 0.0}
    return row
