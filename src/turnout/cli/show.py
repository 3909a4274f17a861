"""`turnout show`: one name, or one section, with a line of help for each option."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.markup import escape

from turnout.cli._command import sentences
from turnout.cli._display import out, paragraphs
from turnout.config import config
from turnout.config.kinds import KINDS, PLAIN, Made, Option, options
from turnout.core.errors import unknown
from turnout.core.imports import distributions


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name that `turnout list` prints, or a section such as local.")
    ],
) -> None:
    """Explain one name or section: what it does, and each option with its type, its default and what it is for.

    Example: turnout show fedprox
    """
    with sentences():
        known = {kind: kind.things() for kind in KINDS.values()}
        found = [(kind, things[name]) for kind, things in known.items() if name in things]
        if name in config.builtin_names():
            out.print(config.builtin_text(name), highlight=False, markup=False)
        elif not found and name not in PLAIN:
            names = [thing for things in known.values() for thing in things]
            raise unknown("show", name, [*names, *PLAIN, *config.builtin_names()])
        for kind, made in found:
            if kind.group and not distributions(kind.group, name):  # a file of its own
                out.print(paragraphs(inspect.getmodule(made)) + "\n", highlight=False, markup=False)
            _explain(kind.section.format(name), made)
        if name in PLAIN:
            _explain(name, PLAIN[name])


def _explain(section: str, made: Made) -> None:
    """Print what a thing does, and of each option its name, default and type, and a line of help below."""
    out.print(f"{paragraphs(made)}\n", highlight=False, markup=False)
    heading = Option(f"[{section}] option", "takes", "default", "")
    rows = [heading, *options(section, made)]
    name, default = (max(len(getattr(row, part)) for row in rows) for part in ("name", "default"))
    for row in rows if len(rows) > 1 else ():
        line = f"{row.name.ljust(name)}  {row.default.ljust(default)}  {row.takes}"
        out.print(f"[bold]{escape(line)}[/bold]", highlight=False, soft_wrap=True)
        if row.help:
            out.print(f"    {row.help}", highlight=False, markup=False, soft_wrap=True)
