"""`turnout streams weights | ratio | curves`: how much clients with old and with new data should count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import typer

from turnout.cli._command import Commands, Json, Overrides, Source, listed, print_json
from turnout.cli._display import out, say, show_table
from turnout.cli.plan import local_work
from turnout.config import config
from turnout.core.errors import UserError
from turnout.core.files import write_text
from turnout.engine.probe import probe_ratio
from turnout.plan.stream_curves import pictures
from turnout.theory.streams import OPTIMAL, StreamPlan, stream_plan

streams_app = Commands(
    help="Weights for clients that keep their data and clients that keep only the newest.\n\n"
    "Example: turnout streams weights --samples 100,200,400,400 --fresh 2,3 --ratio 0.15"
)
Number = TypeVar("Number", int, float)


@streams_app.command("weights")
def show_weights(
    samples: Annotated[str, typer.Option(help="That each client will have collected by the end, as 100,200,400.")],
    ratio: Annotated[float, typer.Option(help="c2 / c1 of the bound; `turnout streams ratio` estimates it.")],
    fresh: Annotated[str, typer.Option(help="Clients that store only the latest, as 2,3; counted from 0.")] = "",
    as_json: Json = False,
) -> None:
    """Compare strategies by their bound on the error, and print the weights that minimise it.

    Example: turnout streams weights --samples 100,200,400,400 --fresh 2,3 --ratio 0.15
    """
    counts = _numbers("--samples", samples, float, "numbers of samples, such as 100,200")
    chosen = _numbers("--fresh", fresh, int, "clients, such as 2,3")
    if strangers := set(chosen) - set(range(len(counts))):
        raise UserError(f"--fresh: there is no client {min(strangers)}; there are {len(counts)}, counted from 0")
    plan = stream_plan(counts, np.isin(np.arange(len(counts)), chosen), ratio)
    if as_json:
        print_json(plan.as_dict())
    else:
        _show(plan)


@streams_app.command("ratio")
def show_ratio(
    source: Source,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="Local steps that every historical client takes.", min=1)] = 10,
    as_json: Json = False,
) -> None:
    """Estimate c2 / c1 before training, from a few local steps of the historical clients.

    Example: turnout streams ratio digits stream.name=spread stream.fresh=0.5
    """
    built, _, _ = config.build(config.read(source, overrides))
    local = local_work(built)
    found = probe_ratio(built.task, built.population, local, steps=steps, plan=built.plan, seed=built.seed)
    stream = built.population.stream
    assert stream is not None
    plan = stream_plan(built.population.train.counts, stream.fresh, found.ratio)
    share = plan.strategies[0].historical_share
    if as_json:
        print_json({**asdict(found), "historical_share": share})
        return
    figures = f"B = {found.loss:.4g}, D = {found.diameter:.4g}, G = {found.slope:.4g}"
    out.print(f"c2 / c1 = {found.ratio:.4g} ({figures})", highlight=False)
    say(
        f"Historical clients have {plan.historical_samples:.3f} of the samples and should count {share:.3f}: "
        f"algorithm.name=stream_fedavg algorithm.weighting=optimal algorithm.ratio={found.ratio:.4g}"
    )


@streams_app.command("curves")
def draw_curves(
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Gets six SVG files.")],
    fresh_clients: Annotated[int, typer.Option(help="That collect equally much.")] = 25,
    ratio: Annotated[float, typer.Option(help="c2 / c1, marked.")] = 0.15,
    as_json: Json = False,
) -> None:
    """Draw the optimal weights, effective samples, noise and bounds over c2 / c1 and the share of old samples.

    Example: turnout streams curves --out streams
    """
    files = {folder / f"{name}.svg": text for name, text in pictures(fresh_clients, ratio).items()}
    for path, text in files.items():
        write_text(path, text)
    if as_json:
        print_json({"files": [str(path) for path in files]})
    else:
        say(f"Written: {', '.join(map(str, files))}")


def _numbers(option: str, text: str, kind: Callable[[str], Number], allowed: str) -> list[Number]:
    try:
        return [kind(word) for word in listed(text)]
    except ValueError as error:
        raise UserError(f"{option}: {text!r} is not a list of {allowed}") from error


def _show(plan: StreamPlan) -> None:
    rows = []
    for row in plan.strategies:
        name = f"[bold]{row.name}[/bold]" if row.name == OPTIMAL else row.name
        figures = f"{row.historical_share:.3f}", f"{row.bound:.4f}", f"{row.effective_samples:.1f}", f"{row.noise:.3f}"
        rows.append((name, *figures))
    headers = ("strategy", "historical share", "bound / c1", "effective samples", "noise / sigma0")
    show_table(rows, headers, numbers=True)
    weights = ", ".join(f"{weight:.10g}" for weight in plan.strategies[0].importance)
    lines = [f"c2 / c1 = {plan.ratio:g}", *plan.warnings, f"optimal importance: {weights}"]
    if 0 < plan.threshold < np.inf:
        lines[0] += f"; historical is optimal up to {plan.threshold:.4g}, better than uniform to {plan.crossover:.4g}"
    for line in ("", *lines):
        say(line)
