"""`turnout list`: everything that has a name, and what it is in one sentence."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from turnout.cli._command import Json, print_json, sentences
from turnout.cli._display import out
from turnout.config import config
from turnout.config.kinds import KINDS, Kind, Made
from turnout.core.errors import unknown
from turnout.core.imports import distributions

LISTED = (*KINDS, "configs")


def list_names(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help=", ".join(LISTED))] = None, as_json: Json = False
) -> None:
    """List what Turnout knows by name.

    Example: turnout list algorithms
    """
    with sentences():
        if kind is not None and kind not in LISTED:
            raise unknown("list", kind, LISTED)
        listing = {name: _listed(name) for name in LISTED if kind in (None, name)}
        if as_json:
            print_json(listing)
            return
        for name, things in listing.items():
            table = Table(show_header=False, title=name, title_justify="left", box=None)
            for thing, sentence in things.items():
                table.add_row(f"[bold]{thing}[/bold]", escape(sentence))
            out.print(table)


def _listed(name: str) -> dict[str, str]:
    """Each thing of a kind, and its sentence."""
    if name == "configs":
        return dict.fromkeys(config.builtin_names(), "")
    kind = KINDS[name]
    return {thing: _sentence(kind, thing, made) for thing, made in kind.things().items()}


def _sentence(kind: Kind, name: str, made: Made) -> str:
    """The first line of what describes a thing: the file of one that has its own, else the thing; and whose it is."""
    theirs = distributions(kind.group, name) if kind.group else ""
    described = inspect.getmodule(made) if kind.group and not theirs else made
    line = (inspect.getdoc(described) or "").split("\n")[0]
    return f"{line} (of {theirs})" if theirs else line
