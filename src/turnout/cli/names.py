"""`turnout list` and `turnout show`: everything that has a name, and each option with a line of help."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.markup import escape

from turnout.cli._command import Json, print_json
from turnout.cli._display import out, say, show_table
from turnout.config import config
from turnout.config.kinds import KINDS, NAMED, PLAIN, REQUIRED, Kind, Made, Option, common_options, options
from turnout.config.sections import ABOUT
from turnout.core.errors import unknown
from turnout.core.imports import distributions

LISTED = (*KINDS, "configs", "sections")


def list_names(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help=", ".join(LISTED))] = None, as_json: Json = False
) -> None:
    """List what Turnout knows by name.

    Example: turnout list algorithms
    """
    if kind is not None and kind not in LISTED:
        raise unknown("list", kind, LISTED)
    listing = {name: listed(name) for name in LISTED if kind in (None, name)}
    if as_json:
        print_json(listing)
        return
    for name, things in listing.items():
        show_table([(f"[bold]{thing}[/bold]", escape(sentence)) for thing, sentence in things.items()], title=name)


def listed(name: str) -> dict[str, str]:
    """Each thing of a kind, and its sentence."""
    if name == "configs":
        return {built_in: _first_line(built_in) for built_in in config.builtin_names()}
    if name == "sections":
        return ABOUT
    kind = KINDS[name]
    return {thing: _sentence(kind, thing, made) for thing, made in kind.things().items()}


def _first_line(built_in: str) -> str:
    """What a built-in configuration says of itself: its first line."""
    return config.builtin_text(built_in).partition("\n")[0].lstrip("# ")


def _sentence(kind: Kind, name: str, made: Made) -> str:
    """The first line of what describes a thing: the file of one that has its own, else the thing; and whose it is."""
    theirs = distributions(kind.group, name) if kind.group else ""
    described = inspect.getmodule(made) if kind.group and not theirs else made
    line = (inspect.getdoc(described) or "").split("\n")[0]
    return f"{line} (of {theirs})" if theirs else line


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name that `turnout list` prints, or a section such as local.")
    ],
) -> None:
    """Explain one name or section: what it does, and each option with its type, its default and what it is for; of a
    section that makes one of several things also their names.

    Example: turnout show fedprox
    """
    known = {kind: kind.things() for kind in KINDS.values()}
    found = [(kind, things[name]) for kind, things in known.items() if name in things]
    if name in config.builtin_names():
        say(config.builtin_text(name))
    elif not found and name not in ABOUT:
        names = [thing for things in known.values() for thing in things]
        raise unknown("show", name, [*names, *ABOUT, *config.builtin_names()])
    if name in ABOUT:
        out.print(f"[bold]{escape(f'[{name}]')}[/bold] {escape(ABOUT[name])}\n", highlight=False, soft_wrap=True)
    for kind, made in found:
        if kind.group and not distributions(kind.group, name):  # a file of its own
            out.print(_paragraphs(inspect.getmodule(made)) + "\n", highlight=False, markup=False)
        _explain(kind.section.format(name), made)
    if name in NAMED and name not in PLAIN:
        _explain_choice(name, NAMED[name])
    if name in PLAIN:
        _explain(name, PLAIN[name])
        for kind in KINDS.values():  # what has options of its own there
            for thing, made in kind.things().items() if kind.section == f"{name}.{{}}" else ():
                out.print()
                _explain(kind.section.format(thing), made)


def _explain_choice(section: str, kind: Kind) -> None:
    """Print what a section makes one of, and the options that it has whatever it makes."""
    default = kind.default or ("required" if section in REQUIRED else "none")
    name = Option("name", "one of these, each with options of its own: turnout show NAME", default, "")
    _tell(section, [name, *common_options(section)])
    out.print()
    show_table(
        [(f"[bold]{thing}[/bold]", escape(_sentence(kind, thing, made))) for thing, made in kind.things().items()]
    )


def _explain(section: str, made: Made) -> None:
    """Print what a thing does, and of each option its name, default and type, and a line of help below."""
    out.print(f"{_paragraphs(made)}\n", highlight=False, markup=False)
    _tell(section, options(section, made))


def _tell(section: str, found: list[Option]) -> None:
    rows = [Option(f"[{section}] option", "takes", "default", ""), *found]
    name, default = (max(len(getattr(row, part)) for row in rows) for part in ("name", "default"))
    for row in rows if len(rows) > 1 else ():
        line = f"{row.name.ljust(name)}  {row.default.ljust(default)}  {row.takes}"
        out.print(f"[bold]{escape(line)}[/bold]", highlight=False, soft_wrap=True)
        if row.help:
            say(f"    {row.help}")


def _paragraphs(thing: object) -> str:
    """A docstring whose lines are as long as the terminal is wide; lists and formulas stay as they are."""
    parts = (inspect.getdoc(thing) or "").split("\n\n")
    flowing = (not any(line.startswith((" ", "-")) for line in part.split("\n")) for part in parts)
    return "\n\n".join(part.replace("\n", " ") if flows else part for part, flows in zip(parts, flowing, strict=True))
