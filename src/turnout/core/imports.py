"""A user's own code, by dotted name, and packages that not everybody has."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from turnout.core.errors import UserError


def dotted(option: str, name: str) -> Any:
    """What `package.module:attribute` or `file.py:attribute` names; the working folder is looked at too."""
    module, _, attribute = name.partition(":")
    if module.endswith(".py") and Path(module).is_file():
        module = ".".join(Path(module).with_suffix("").parts)
    path = sys.path
    sys.path = [*path, str(Path.cwd())]
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of the user's own raises
        raise UserError(
            f"{option}: {name!r} cannot be imported ({_first_line(error)}); write it as package.module:function"
        ) from error
    finally:
        sys.path = path


@cache
def registered(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """What installed distributions register in a group of entry points, by name; more than one is a clash."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=group):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def load_registered(option: str, group: str, name: str, built_in: Iterable[str] = ()) -> Any:
    """What an installed distribution registers under a name that nobody else has."""
    entries, who = registered(group)[name], distributions(group, name)
    if name in built_in:
        raise UserError(f"{option}: {name} is built in, and {who} registers it too; rename or uninstall that one")
    if len(entries) > 1:
        raise UserError(f"{option}: {name} is registered by {who}; uninstall all but one")
    try:
        return entries[0].load()
    except Exception as error:  # whatever a module of somebody else's raises
        why = f"{entries[0].value} cannot be imported: {_first_line(error)}"
        raise UserError(f"{option}: {name} of {who} is broken ({why})") from error


def distributions(group: str, name: str) -> str:
    """Who registers a name: the installed distributions, in words; empty if nobody does."""
    return " and ".join(sorted(entry.dist.name if entry.dist else "?" for entry in registered(group).get(name, ())))


def optional(use: str, module: str, install: str) -> Any:
    """A module that only this use needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(use, module.rpartition(".")[2], install) from error


def missing(use: str, what: str, install: str) -> UserError:
    """The sentence that says how to get what only this use needs."""
    return UserError(f"{use}: {what} is not installed; pip install {install}")


def extra(name: str) -> str:
    """What `pip install` takes to bring a group of packages of `pyproject.toml`; Turnout is on no package index."""
    return f'-e ".[{name}]" in the checkout of Turnout brings it'


def name_of(function: Any) -> str:
    """How a user's own function is called in a sentence: its name, or that of its class."""
    return str(getattr(function, "__name__", type(function).__name__))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
