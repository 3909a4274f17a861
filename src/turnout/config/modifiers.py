"""Modifiers of the local work in a configuration: `[local] modifiers = "proximal,clip"`, `[local.proximal] mu = 0.1`.

The options of a modifier stand in a table of [local] that is called as it is; one of the user's own is named
`file:Class`, its table by the class: `sharpness_aware` or `SharpnessAware`.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from turnout.config.options import Section, call, checked_value
from turnout.core.errors import UserError, unknown
from turnout.core.imports import dotted
from turnout.local.modifiers import Modifier
from turnout.local.sgd import LocalSGD
from turnout.local.transforms import MODIFIERS, former, former_chain, gone


def find(name: str) -> type[Modifier]:
    """The class of that name, or the user's own of `file:Class`."""
    if ":" not in name:
        if name not in MODIFIERS:
            raise unknown("local.modifiers", name, MODIFIERS)
        return MODIFIERS[name]
    found = dotted("local.modifiers", name)
    if not (inspect.isclass(found) and issubclass(found, Modifier)):
        raise UserError(f"local.modifiers: {name} is not a subclass of turnout.local.Modifier")
    return found


def make_local(given: Section) -> tuple[LocalSGD, Section]:
    """The local work of a section, and every option with the value it has."""
    if given.get("transform"):
        raise gone(given["transform"])
    if isinstance(given.get("modifiers"), dict):
        raise UserError("local.modifiers: it is a list of names, not a table; options are in [local.NAME]")
    options = {name: value for name, value in given.items() if name != "transform" and not isinstance(value, dict)}
    tables = {name: dict(value) for name, value in given.items() if isinstance(value, dict)}
    names = _names(options.pop("modifiers", []))
    made: dict[str, Modifier] = {}
    every: Section = {"modifiers": names}
    for name in names:
        kind = find(name)
        table = _table(name, kind)
        if table in made:
            raise UserError(f"local.modifiers: {table} stands there twice; each may act once")
        own = tables.pop(table, {}) | tables.pop(kind.__name__, {})
        made[table], every[table] = call(f"local.{table}", kind, own, {})
    for name in tables:
        known = f"write local.modifiers={name}" if name in MODIFIERS else f"allowed: {', '.join(made) or 'none'}"
        raise UserError(f"local.{name}: options of a modifier that local.modifiers does not name; {known}")
    work, complete = call("local", LocalSGD, options, {"modifiers": tuple(made.values())})
    return work, complete | every


def _names(value: Any) -> list[str]:
    """`a,b`, or a list of names."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    names: list[str] = checked_value("local.modifiers", value, list[str])
    return names


def _table(name: str, kind: type[Modifier]) -> str:
    """Where the options of a modifier stand: its name, or that of its class as names are written."""
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
