"""`turnout attack`: what can be told of the training samples from the model that a run left behind."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli._command import Json, print_json
from turnout.cli._display import err, out, say, show_table
from turnout.trust.attacks import KINDS, Leakage
from turnout.trust.leakage import GROUPS, SHADOWS, Leaks, attack_run, finished

HEADERS = ("members", "others", "accuracy", "AUC", "TPR at 1 % FPR")


def attack(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run, such as runs/digits.")],
    kind: Annotated[str, typer.Option(help=f"{', '.join(KINDS)}; the last two train shadow models.")] = "loss",
    by: Annotated[str | None, typer.Option(help=f"Also of each {' or '.join(GROUPS)}.")] = None,
    shadows: Annotated[int, typer.Option(help="Runs to train shadow models in.")] = SHADOWS,
    seed: Annotated[int, typer.Option(help="Of the halves that are drawn, and of the shadows.")] = 0,
    as_json: Json = False,
) -> None:
    """Try to tell the samples a run was trained on from its test samples, by their losses.

    Example: turnout attack runs/digits --by class
    """
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        leaks = attack_run(*finished(folder), kind=kind, by=by, shadows=shadows, seed=seed)
    for remark in remarks:
        say(f"turnout: {remark.message}", err)
    if as_json:
        print_json({"run": str(folder), "kind": kind, "by": by, **leaks.as_dict()})
    else:
        _show(folder, kind, by, leaks)


def _show(folder: Path, kind: str, by: str | None, leaks: Leaks) -> None:
    test = ", ".join(f"test {name} {value:.4f}" for name, value in leaks.whole.test.items())
    out.print(f"\n[bold]{folder}[/bold]: {test}", highlight=False, soft_wrap=True)
    whole = {"training data": leaks.whole.train, "reference data": leaks.whole.reference}
    rows = [_cells(name, found) for name, found in whole.items() if found is not None]
    show_table(rows, ("", *HEADERS), f"What it leaks, by the {kind} attack", numbers=True)
    if by is not None:
        told = {name: found for name, found in leaks.groups.items() if found.known}
        order = sorted(told, key=lambda name: (-told[name].accuracy, name))
        show_table(
            [_cells(str(name), told[name]) for name in order], (by, *HEADERS), f"Of each {by}, most first", numbers=True
        )
    out.print("0.5 is a guess, and ± its standard error", highlight=False)


def _cells(name: str, found: Leakage) -> tuple[str, ...]:
    values = (f"{found.accuracy:.3f} ± {found.noise:.3f}", f"{found.auc:.3f}", f"{found.tpr:.3f}")
    return name, str(found.members), str(found.non_members), *(values if found.known else 3 * "-")
