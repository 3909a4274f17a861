"""`turnout plan` and `turnout tune`: what waiting policies would do, and the best learning rate, or other options."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape

from turnout.cli._command import Json, Overrides, Source, listed, print_json
from turnout.cli._display import err, out, say, show_answers, show_table
from turnout.config import config
from turnout.core.errors import UserError
from turnout.local.sgd import LocalSGD
from turnout.plan import advice, tune
from turnout.record.progress import duration
from turnout.report import sentences
from turnout.run.experiment import Experiment


def plan(source: Source, overrides: Overrides = None, as_json: Json = False) -> None:
    """Compare waiting policies over a configuration's clients, before anything is trained.

    Example: turnout plan digits devices.sigma=1.2
    """
    experiment, _, _ = config.build(config.read(source, overrides))
    size = experiment.task.size * experiment.plan.dtype.itemsize
    found = advice.outlook(experiment.population, local_work(experiment), size, experiment.seed)
    if as_json:
        print_json(asdict(found))
        return
    speeds = f"jobs take {duration(found.fastest_seconds)} to {duration(found.slowest_seconds)} in the mean"
    out.print(f"\n[bold]{found.clients} clients[/bold]; {speeds}", highlight=False)
    show_answers(found.advice)
    show_table([advice.cells(row) for row in found.policies if row.refused is None], advice.HEADERS, numbers=True)
    out.print(f"\n{advice.LEGEND}", highlight=False, markup=False)


def local_work(experiment: Experiment) -> LocalSGD:
    """The local work of the algorithm, where it has some to look at."""
    local = getattr(experiment.algorithm, "local", None)
    if not isinstance(local, LocalSGD):
        raise UserError(f"algorithm.name: {type(experiment.algorithm).__name__} has no local work to plan for")
    return local


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
    tuning, found = tune.tune(
        source,
        overrides or [],
        options=option or (tune.DEFAULT,),
        schemes=listed(schemes),
        measure=measure,
        budget=budget,
        seeds=seeds,
        report=partial(say, to=err),
    )
    told = sentences.of_tuning(tuning, found)
    if as_json:
        print_json({"answers": told, **tune.as_dict(tuning, found)})
    else:
        show_answers(told)
        for tuned in found:
            _show_tuned(tuning, tuned)
    if any(tuned.best is None for tuned in found):
        raise typer.Exit(1)


def _show_tuned(tuning: tune.Tuning, tuned: tune.Tuned) -> None:
    best, rows = tuned.best, []
    for trial in tuning.in_order(tuned.trials):
        last = trial.runs[-1]
        value = "diverged" if trial.value is None else f"{trial.value:.4f}"
        taken = str(last.rounds), duration(last.virtual_seconds)
        rows.append((*map(escape, trial.point), value, *taken, "best" if trial is best else ""))
    headers = (*(choice.option for choice in tuning.choices), tuning.measure.replace("_", " "), "rounds", "time", "")
    show_table(rows, headers, f"{tuned.scheme}: {len(tuned.trials)} values tried", boxed=True)
    if best is not None:
        say(f"{tuning.command(tuned.scheme, best.point)}\n")
