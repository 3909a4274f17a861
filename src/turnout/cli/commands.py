"""The command line: `turnout demo | run | resume | plan | tune | sweep | compare | list | show | inspect | attack |
unlearn | study | topology | streams | simulate-flower | deploy | replay`."""

from __future__ import annotations

import inspect as introspection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from turnout import data as datasets
from turnout.cli._command import Json, Overrides, Source, print_json, remark, sentences
from turnout.cli._display import err, out, paragraphs, show_outlook, show_paths, show_summary, show_tuned
from turnout.cli._watching import NOBODY, Live, MLflowUri, TensorBoardFolder, Watching
from turnout.cli.attack import attack
from turnout.cli.compare import compare_runs, sweep_options
from turnout.cli.deploy import deploy_app, replay
from turnout.cli.flower import is_flower, resume_flower, simulate_flower
from turnout.cli.report import report
from turnout.cli.run import carry_out, is_named, where
from turnout.cli.streams import streams_app
from turnout.cli.study import study_app
from turnout.cli.topology import topology_app
from turnout.cli.unlearn import unlearn
from turnout.clients.arriving import ARRIVALS
from turnout.clients.memories import MEMORIES
from turnout.config import config, registry
from turnout.config.options import options_of
from turnout.core.errors import UserError, unknown
from turnout.core.imports import distributions
from turnout.core.random import FloatArray
from turnout.core.version import VERSION
from turnout.data.partition import PARTITIONS
from turnout.local.sgd import LocalSGD
from turnout.plan import advice, tune
from turnout.record.detectors import DETECTORS
from turnout.record.progress import duration
from turnout.record.run_folder import check_is_run, examine
from turnout.report import read
from turnout.task.models import MODELS

app = typer.Typer(
    help="Federated learning with whoever shows up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
KINDS = (
    "algorithms", "samplers", "datasets", "streams", "memories", "availability", "adversaries", "behaviours",
    "detectors", "devices", "models", "partitions", "configs",
)  # fmt: skip


# Arguments that a configuration fills in from its other sections.
_FILLED_IN = {
    "algorithm": {"local", "sampler", "overlay", "network", "latency"},
    "partition": {"data", "clients", "seed", "part"},
    "availability": {"clients"},
    "devices": {"clients"},
    "detectors": {"limit", "start", "floor", "memory", "tolerance"},  # a section for all of them has its own
}


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(VERSION)
        raise typer.Exit


@app.command()
def demo(as_json: Json = False) -> None:
    """Train over a hundred unreliable clients on bundled data and show whose data counted.

    Example: turnout demo
    """
    with sentences():
        _run("digits", ["run.name=demo"], overwrite=True, resume=False, as_json=as_json)
        if not as_json:
            commands = ("turnout run digits algorithm.name=scaffold", "turnout list algorithms", "turnout show fedprox")
            out.print("\nNext: " + ", ".join(f"[bold]{command}[/bold]" for command in commands))


@app.command()
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
        _run(source, overrides or [], overwrite, resume, as_json, watching=watching)


@app.command()
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
            _run(str(folder / "config.toml"), overrides or [], False, True, as_json, folder, watching)


def _run(
    source: str,
    overrides: list[str],
    overwrite: bool,
    resume: bool,
    as_json: bool,
    folder: Path | None = None,
    watching: Watching = NOBODY,
) -> None:
    given = config.read(source, overrides) if folder is None else config.read_run(folder, overrides)
    experiment, settings, complete = config.build(given)
    if folder is None:
        resume = resume and (Path(settings.folder) / settings.name / "config.toml").exists()
        settings, folder = where(settings, complete, overwrite or resume or is_named(overrides))
    carry_out(experiment, settings, complete, folder, overwrite, resume, as_json, watching)


@app.command()
def plan(source: Source, overrides: Overrides = None, as_json: Json = False) -> None:
    """Compare waiting policies over a configuration's clients, before anything is trained.

    Example: turnout plan digits devices.sigma=1.2
    """
    with sentences():
        experiment, _, _ = config.build(config.read(source, overrides or []))
        local = getattr(experiment.algorithm, "local", None)
        if not isinstance(local, LocalSGD):
            raise UserError(f"algorithm.name: {type(experiment.algorithm).__name__} has no local work to plan for")
        size = experiment.task.size * experiment.plan.dtype.itemsize
        found = advice.outlook(experiment.population, local, size, experiment.seed)
        if as_json:
            print_json(found.as_dict())
        else:
            show_outlook(found)


@app.command("tune")
def tune_options(
    source: Source,
    overrides: Overrides = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUES", help="local.lr=1e-4..1 (a 1-2-5 grid) or local.batch_size=16,32; repeatable."
        ),
    ] = None,
    schemes: Annotated[str, typer.Option(help="Algorithms, as fedavg,fedfix; default: the configuration's own.")] = "",
    measure: Annotated[str, typer.Option(help="validation_loss, validation_accuracy, train_loss.")] = "validation_loss",
    budget: Annotated[int, typer.Option(help="Runs at most, for each scheme.")] = 20,
    seeds: Annotated[int, typer.Option(help="Runs for each value; their mean counts.")] = 1,
    as_json: Json = False,
) -> None:
    """Find the best learning rate, or other options, for each scheme, without looking at the test data.

    Example: turnout tune digits --option local.lr=1e-2..1 --schemes fedavg,fedfix
    """
    with sentences():
        tuning, found = tune.tune(
            source,
            overrides or [],
            options=option or (tune.DEFAULT,),
            schemes=[name.strip() for name in schemes.split(",") if name.strip()],
            measure=measure,
            budget=budget,
            seeds=seeds,
            report=lambda line: err.print(line, highlight=False, markup=False, soft_wrap=True),
        )
        if as_json:
            print_json(tune.as_dict(tuning, found))
        else:
            for tuned in found:
                show_tuned(tuning, tuned)
    if any(tuned.best is None for tuned in found):
        raise typer.Exit(1)


def _listing() -> dict[str, dict[str, Any]]:
    def described(things: dict[str, Any]) -> dict[str, str]:
        return {name: (introspection.getdoc(thing) or "").split("\n")[0] for name, thing in things.items()}

    def found(group: str, things: dict[str, Any]) -> dict[str, str]:
        """Ours are described by their files, others by themselves."""
        theirs = {name: distributions(group, name) for name in things}
        lines = described(
            {name: made if theirs[name] else introspection.getmodule(made) for name, made in things.items()}
        )
        return {name: f"{line} (of {theirs[name]})" if theirs[name] else line for name, line in lines.items()}

    def classes(kind: str) -> dict[str, str]:
        return found(registry.GROUPS[kind], {name: registry.find(kind, name) for name in registry.names(kind)})

    return {
        "algorithms": classes("algorithm"),
        "samplers": classes("sampler"),
        "datasets": found(datasets.GROUP, {name: datasets.loader(name) for name in datasets.names()}),
        "streams": described(ARRIVALS),
        "memories": described(MEMORIES),
        "availability": described(config.AVAILABILITY),
        "adversaries": described(config.ADVERSARIES),
        "behaviours": described(config.BEHAVIOURS),
        "detectors": described(DETECTORS),
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
    with sentences():
        if kind is not None and kind not in KINDS:
            raise unknown("list", kind, KINDS)
        listing = {name: things for name, things in _listing().items() if kind in (None, name)}
        if as_json:
            print_json(listing)
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
    with sentences():
        kinds: dict[str, dict[str, Any]] = {
            "algorithm": {n: registry.find("algorithm", n) for n in registry.names("algorithm")},
            "sampler": {n: registry.find("sampler", n) for n in registry.names("sampler")},
            "data": {n: datasets.loader(n) for n in datasets.names()},
            "stream": ARRIVALS,
            "memory": MEMORIES,
            "availability": config.AVAILABILITY,
            "adversary": config.ADVERSARIES,
            "behaviour": config.BEHAVIOURS,
            "detectors": DETECTORS,
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
                out.print(paragraphs(introspection.getmodule(thing)) + "\n", highlight=False, markup=False)
            out.print(paragraphs(thing), highlight=False, markup=False)
            table = Table(escape(f"[{section}] option"), "type", "default", box=None)
            for option, (hint, default) in options_of(thing, _FILLED_IN.get(section)).items():
                shown = "required" if default is introspection.Parameter.empty else str(default)
                kind = introspection.formatannotation(hint).replace(introspection.formatannotation(FloatArray), "array")
                table.add_row(option, escape(kind), escape(shown))
            if section == "availability":
                table.add_row("groups", "int | array | None", "None")
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
    with sentences():
        run = read.recorded(folder, "inspect", "config.toml")
        remark(run.remarks)
        summary = run.summary or {"unfinished": True, "last": _last_row(run)}
        if as_json:
            print_json({"run": str(folder), **summary, "paths": run.plan.get("paths", [])})
        elif "unfinished" in summary:
            reached = f"round {summary['last']['round']}, {duration(summary['last']['time'])} of virtual time"
            show_paths(folder)
            out.print(f"{folder} is unfinished ({reached} recorded). Go on with: turnout resume {folder}")
        else:
            show_summary(folder, summary)


def _last_row(run: read.Recorded) -> dict[str, Any]:
    rounds = run.rounds()
    return {name: values[-1].item() for name, values in rounds.items()} if rounds else {"round": 0, "time": 0.0}


app.command("compare")(compare_runs)
app.command("sweep")(sweep_options)
app.command()(attack)
app.command()(report)
app.add_typer(study_app(), name="study")
app.add_typer(topology_app, name="topology")
app.add_typer(streams_app, name="streams")
app.command()(unlearn)
app.command("simulate-flower")(simulate_flower)
app.add_typer(deploy_app, name="deploy")
app.command()(replay)
