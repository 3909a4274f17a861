"""The command line: `turnout demo | run | resume | plan | tune | sweep | compare | list | show | inspect | attack |
unlearn | study | topology | streams | simulate-flower | deploy | replay`."""

from __future__ import annotations

import inspect as introspection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from turnout import __version__, advice, config, datasets, registry, studies, tune
from turnout.attack_cli import attack
from turnout.command import Json, Overrides, Source, print_json, remark, sentences
from turnout.compare_cli import compare_runs, sweep_options
from turnout.deploy_cli import deploy_app, replay
from turnout.display import err, out, paragraphs, show_judgements, show_outlook, show_summary, show_tuned
from turnout.errors import UserError, unknown
from turnout.flower_cli import is_flower, resume_flower, simulate_flower
from turnout.local.sgd import LocalSGD
from turnout.models import MODELS
from turnout.observe.progress import duration
from turnout.options import options_of
from turnout.population.arriving import ARRIVALS
from turnout.population.memories import MEMORIES
from turnout.population.partition import PARTITIONS
from turnout.random import FloatArray
from turnout.report import read
from turnout.report_cli import report
from turnout.robustness.detectors import DETECTORS
from turnout.run_cli import carry_out, is_named, where
from turnout.run_folder import check_is_run, examine
from turnout.streams_cli import streams_app
from turnout.studies.study import FAILS
from turnout.topology_cli import topology_app
from turnout.unlearn_cli import unlearn
from turnout.watching import NOBODY, Live, MLflowUri, TensorBoardFolder, Watching

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
        out.print(__version__)
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
    experiment, settings, complete = config.build(config.read(source, overrides))
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

    def modules(kind: str) -> dict[str, str]:
        found = {name: introspection.getmodule(registry.find(kind, name)) for name in registry.names(kind)}
        return described(found)

    return {
        "algorithms": modules("algorithm"),
        "samplers": modules("sampler"),
        "datasets": described({name: introspection.getmodule(datasets.loader(name)) for name in datasets.names()}),
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
            print_json({"run": str(folder), **summary})
        elif "unfinished" in summary:
            reached = f"round {summary['last']['round']}, {duration(summary['last']['time'])} of virtual time"
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
study_app = typer.Typer(
    help="Published conclusions, tried here: setting, claim, measured, verdict.\n\nExample: turnout study list",
    no_args_is_help=True,
)
app.add_typer(study_app, name="study")
app.add_typer(topology_app, name="topology")
app.add_typer(streams_app, name="streams")
app.command()(unlearn)
app.command("simulate-flower")(simulate_flower)
app.add_typer(deploy_app, name="deploy")
app.command()(replay)
StudyName = Annotated[str, typer.Argument(metavar="NAME", help="A name that `turnout study list` prints.")]


@study_app.command("list")
def list_studies(as_json: Json = False) -> None:
    """List the studies.

    Example: turnout study list
    """
    found = {name: studies.find(name) for name in studies.names()}
    if as_json:
        print_json(
            {
                name: {"title": study.title, "source": study.source, "claims": [claim.name for claim in study.claims]}
                for name, study in found.items()
            }
        )
        return
    table = Table("study", "", "claims", box=None)
    for name, study in found.items():
        table.add_row(f"[bold]{name}[/bold]", escape(study.title), str(len(study.claims)))
    out.print(table)


@study_app.command("show")
def show_study(
    name: StudyName,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Judge the results that a run left there again.")
    ] = None,
) -> None:
    """Explain a study without running it: setting, sizes, claims; or show the results of an earlier run.

    Example: turnout study show asynchronous_bias
    """
    with sentences():
        study = studies.find(name)
        if folder is not None:
            results = study.read(folder)
            show_judgements(study, results, study.judge(results))
            return
        sizes = f"Sizes: {', '.join(study.sizes)}; small has {study.small_data}"
        for text in (study.title, study.source, f"{study.setting}\n\n{sizes}"):
            out.print(f"{text}\n", highlight=False, markup=False, soft_wrap=True)
        table = Table("claim", "published", "measured a seed", "holds if the interval is", show_lines=True)
        for claim in study.claims:
            table.add_row(*map(escape, (claim.name, f"{claim.sentence} ({claim.source})", claim.measured, claim.rule)))
        out.print(table)


Size = Annotated[str, typer.Option(help="small (seconds, stand-in data, no verdicts) or default.")]
Seeds = Annotated[int, typer.Option(help="Fewer than five decide nothing.")]
DataFolder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where the data lies; else the folder TURNOUT_DATA.")
]
Device = Annotated[str, typer.Option(help="cpu, or cuda.")]
Workers = Annotated[int, typer.Option(help="Processes that share the trials.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 3 if a claim does not hold; needs size default.")]


@study_app.command("run")
def run_study(
    name: StudyName,
    size: Size = "default",
    seeds: Seeds = 5,
    data: DataFolder = None,
    device: Device = "cpu",
    workers: Workers = 1,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="For trials and results; finished ones are reused.")
    ] = None,
    as_json: Json = False,
    strict: Strict = False,
) -> None:
    """Run a study and judge its claims; run it again to go on where it stopped.

    Example: turnout study run asynchronous_bias --size small
    """
    with sentences():
        _check_strict(strict, [name], size)
        document, failed = _study(name, size, seeds, data, device, workers, folder, as_json)
    if as_json:
        print_json(document)
    if strict and failed:
        raise typer.Exit(3)


@study_app.command("all")
def run_studies(
    size: Size = "default",
    seeds: Seeds = 5,
    data: DataFolder = None,
    device: Device = "cpu",
    workers: Workers = 1,
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="With a folder for each study.")] = Path(
        "runs"
    ),
    as_json: Json = False,
    strict: Strict = False,
) -> None:
    """Run every study, one after the other, and judge its claims.

    Example: turnout study all --size small
    """
    found = []
    with sentences():
        _check_strict(strict, studies.names(), size)
        for name in studies.names():
            found.append(_study(name, size, seeds, data, device, workers, folder / f"{name}-{size}", as_json))
    if as_json:
        print_json([document for document, _ in found])
    if strict and any(failed for _, failed in found):
        raise typer.Exit(3)


def _check_strict(strict: bool, names: list[str], size: str) -> None:
    for name in names if strict else ():
        study = studies.find(name)
        why = study.not_judged(size) if size in study.sizes else None
        if why is not None:
            raise UserError(f"--strict: {study.name} has no verdicts to be strict about: {why}")


def _study(
    name: str,
    size: str,
    seeds: int,
    data: Path | None,
    device: str,
    workers: int,
    folder: Path | None,
    as_json: bool,
) -> tuple[dict[str, Any], bool]:
    """Run one, and show it unless it goes into a document; whether a claim does not hold."""
    study = studies.find(name)
    folder = folder or Path("runs") / f"{name}-{size}"

    def say(line: str) -> None:
        err.print(line, highlight=False, markup=False, soft_wrap=True)

    results = study.run(size, range(seeds), folder, data=data, device=device, workers=workers, say=say)
    judgements = study.judge(results)
    if not as_json:
        show_judgements(study, results, judgements)
    about: dict[str, Any] = {
        "study": name,
        "size": size,
        "seeds": results.seeds,
        "folder": str(folder),
        "tuned": results.tuned,
    }
    about["not_judged"] = study.not_judged(size)
    document = {**about, "claims": [judgement.as_dict() for judgement in judgements]}
    return document, any(judgement.verdict == FAILS for judgement in judgements)
