"""Parts of the local work in a configuration: `[local] modifiers = "proximal,clip"`, `[local.proximal] mu = 0.1`.

The options of a modifier, an optimiser or a schedule stand in a table of [local] that is called as it is; one of the
user's own is named `file:Class`, its table by the class: `sharpness_aware` or `SharpnessAware`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from turnout.config.options import Section, call, checked_value
from turnout.core.errors import UserError, unknown
from turnout.core.imports import dotted
from turnout.local.modifiers import Modifier
from turnout.local.optimisers import OPTIMISERS, Optimiser
from turnout.local.schedules import SCHEDULES, Schedule
from turnout.local.sgd import LocalSGD
from turnout.local.transforms import MODIFIERS, former, former_chain, gone


class Part(NamedTuple):
    """What an option of [local] names."""

    base: type[Any]
    known: Mapping[str, type[Any]]
    words: str


PARTS = {
    "modifiers": Part(Modifier, MODIFIERS, "a modifier"),
    "optimiser": Part(Optimiser, OPTIMISERS, "an optimiser"),
    "schedules": Part(Schedule, SCHEDULES, "a schedule"),
}


def find(option: str, name: str) -> Any:
    """The class of that name, or the user's own of `file:Class`; a function, too, in the place of an optimiser."""
    part = PARTS[option]
    if ":" not in name:
        if name not in part.known:
            raise unknown(f"local.{option}", name, part.known)
        return part.known[name]
    found = dotted(f"local.{option}", name)
    if inspect.isclass(found) and issubclass(found, part.base):
        return found
    if option == "optimiser" and inspect.isfunction(found):
        return found
    or_function = " and no function" if option == "optimiser" else ""
    raise UserError(f"local.{option}: {name} is not a subclass of turnout.local.{part.base.__name__}{or_function}")


def make_local(given: Section) -> tuple[LocalSGD, Section]:
    """The local work of a section, and every option with the value it has."""
    if given.get("transform"):
        raise gone(given["transform"])
    options = {name: value for name, value in given.items() if name != "transform"}
    every: Section = {option: _names(option, options.pop(option, None)) for option in PARTS}
    every["schedules"] = _without_constant(every["schedules"])
    tables = {name: dict(value) for name, value in options.items() if isinstance(value, dict)}
    options = {name: value for name, value in options.items() if name not in tables}
    made: dict[str, Any] = {}
    parts: dict[str, list[Any]] = {option: [] for option in PARTS}
    for option, names in list(every.items()):
        for name in names:
            kind = find(option, name)
            table = _table(name, kind)
            if table in made:
                raise UserError(f"local.{option}: {table} stands there twice; each may act once")
            own = tables.pop(table, {}) | tables.pop(kind.__name__, {})
            made[table], options_of_it = call(f"local.{table}", kind, own, {}) if inspect.isclass(kind) else (kind, {})
            parts[option].append(made[table])
            if options_of_it or option != "optimiser":
                every[table] = options_of_it
    for name in tables:
        raise _unnamed(name, made)
    (optimiser,), (every["optimiser"],) = parts["optimiser"], every["optimiser"]
    chains = {"modifiers": tuple(parts["modifiers"]), "schedules": tuple(parts["schedules"])}
    work, complete = call("local", LocalSGD, options, chains | {"optimiser": optimiser})
    return work, complete | every


def _unnamed(name: str, made: Mapping[str, Any]) -> UserError:
    """Say that a table is there for a part that is not."""
    for option, part in PARTS.items():
        if name in part.known:
            why = f"options of {part.words} that local.{option} does not name; write local.{option}={name}"
            return UserError(f"local.{name}: {why}")
    allowed = ", ".join(table for table in made if table != "sgd") or "none"
    return UserError(f"local.{name}: options of a part that [local] does not name; allowed: {allowed}")


def _names(option: str, value: Any) -> list[str]:
    """`a,b`, or a list of names; of an optimiser, one name."""
    if isinstance(value, dict):
        kind = "a name" if option == "optimiser" else "a list of names"
        raise UserError(f"local.{option}: it is {kind}, not a table; options are in [local.NAME]")
    if option == "optimiser":
        return [checked_value("local.optimiser", "sgd" if value is None else value, str)]
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    names: list[str] = checked_value(f"local.{option}", [] if value is None else value, list[str])
    return names


def _without_constant(names: list[str]) -> list[str]:
    """Take out the name of no schedule at all."""
    if "constant" in names and len(names) > 1:
        raise UserError("local.schedules: constant stands alone; leave it out beside others")
    return [name for name in names if name != "constant"]


def _table(name: str, kind: Any) -> str:
    """Where the options of a part stand: its name, or that of its class as names are written."""
    return name if ":" not in name else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def modernise(local: Section) -> Section:
    """A section of version 0.1, in which `transform` was a text such as `clip:1.0,top_k:0.01`."""
    chain = former(local.get("transform", ""))
    kept = {name: value for name, value in local.items() if name != "transform"}
    if "transform" not in local:
        return kept
    tables = {name: {o: v for o, v in vars(made).items() if v is not None} for name, made in chain.items()}
    return {"modifiers": list(chain)} | kept | tables


def demodernise(complete: Section, work: LocalSGD, chain: str) -> Section | None:
    """The complete section as version 0.1 wrote it, `chain` if that says the same; None where it knew no such work."""
    if work.active or any(":" in name for name in complete["modifiers"]):
        return None
    tables = {"modifiers", *complete["modifiers"]}
    same = tuple(former(chain).values()) == work.transforms
    text = chain if same else former_chain(work.transforms)
    return {name: value for name, value in complete.items() if name not in tables} | {"transform": text}
