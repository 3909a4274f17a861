"""`turnout tune`: the best learning rate, or other options."""

from __future__ import annotations

from typing import Annotated

import typer

from turnout.cli._command import Json, Overrides, Source, print_json, sentences
from turnout.cli._display import err, show_tuned
from turnout.plan import tune


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
