"""Configurations as they are written: TOML files that are read and overridden, written back, named by a fingerprint."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from turnout.algorithms._algorithm import Algorithm
from turnout.config import modifiers, registry, tasks
from turnout.config.options import options_of
from turnout.config.settings import FREE, LATER, SECTIONS, Settings
from turnout.core.errors import UserError, unknown

FORMER = "local as it was"  # beside the sections of a run's own configuration: what it wrote
_TABLES = ("csv_table", "parquet", "centres")  # whose dates and identifiers were words and numbers like others
HERE = "where it is"  # likewise: its folder
_BUILT_IN = resources.files("turnout.config") / "builtin"


def builtin_names() -> list[str]:
    return sorted(path.name.removesuffix(".toml") for path in _BUILT_IN.iterdir() if path.name.endswith(".toml"))


def builtin_text(name: str) -> str:
    return (_BUILT_IN / f"{name}.toml").read_text(encoding="utf-8")


def read(source: str, overrides: list[str] | None = None) -> Settings:
    """Read a file, or a built-in configuration by name; then apply `section.option=value` for each override."""
    return _overridden(toml(source), overrides)


def read_run(folder: Path, overrides: list[str] | None = None) -> Settings:
    """Read the configuration that a run has left in its folder, also one of version 0.1; then apply the overrides."""
    settings = toml(str(folder / "config.toml"))
    return _overridden(modernise(settings), overrides) | {FORMER: settings.get("local", {}), HERE: {"folder": folder}}


def modernise(settings: Settings) -> Settings:
    """Write complete settings of an earlier version as they are written now."""
    found = settings | ({"local": modifiers.modernise(settings["local"])} if "local" in settings else {})
    if settings.get("data", {}).get("name") in _TABLES and "dates" not in settings["data"]:
        found["data"] = settings["data"] | {name: LATER["data"][name] for name in ("dates", "identifiers")}
    return found


def _overridden(settings: Settings, overrides: list[str] | None) -> Settings:
    for override in overrides or []:
        apply(settings, override)
    _check_use(settings, overrides or [])
    for section in settings:
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS)
    return settings


def toml(source: str) -> Settings:
    """Read a file, or a built-in configuration by name, as it is written."""
    path = Path(source)
    if path.suffix == ".toml" or os.path.exists(path):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UserError(f"configuration {source}: cannot be read ({why})") from error
    elif source in builtin_names():
        text = builtin_text(source)
    else:
        raise unknown("configuration (neither a .toml file nor built in)", source, builtin_names())
    try:
        settings = tomllib.loads(text)
    except ValueError as error:  # also an integer of thousands of digits
        raise UserError(f"configuration {source}: not valid TOML ({error})") from error
    except RecursionError as error:
        raise UserError(f"configuration {source}: its lists and tables are nested too deep to be read") from error
    for section, values in settings.items():
        if not isinstance(values, dict):
            raise UserError(f"{section}: options stand in sections such as [run]; allowed: {', '.join(SECTIONS)}")
    return settings


def apply(settings: Settings, text: str) -> None:
    """Apply an override, `section.option=value`."""
    key, equals, value = text.partition("=")
    section, dot, option = key.strip().partition(".")
    if not equals or not dot:
        raise UserError(f"{text!r}: write an override as section.option=value, for example run.rounds=20")
    try:
        document = tomllib.loads(f"value = {value}")
        parsed = document["value"] if len(document) == 1 else value
    except ValueError:
        parsed = value  # a bare word is a string
    except RecursionError as error:
        raise UserError(f"{key.strip()}: its lists and tables are nested too deep to be read") from error
    options = settings.setdefault(section, {})
    *tables, option = option.split(".")
    for table in tables:
        options = options.setdefault(table, {})
        if not isinstance(options, dict):
            raise UserError(f"{key.strip()}: {table} is a value there, not a table of options")
    if option == "name" and section != "run" and options.get("name") != parsed:
        options.clear()  # another thing has other options
    options[option] = parsed


def _check_use(settings: Settings, overrides: list[str]) -> None:
    """Refuse what is asked for on the command line without a use; a file has sections for many algorithms."""
    name = settings.get("algorithm", {}).get("name")
    whys = {"sampler": "decides by itself who is invited", "network": "has a server, which clients reach over links"}
    for section, why in whys.items():
        asked = isinstance(name, str) and any(text.strip().startswith(f"{section}.") for text in overrides)
        if asked and not takes(registry.find("algorithm", str(name)), section):
            raise UserError(f"{section}: algorithm {name} {why}; leave the {section} out")


def takes(algorithm: type[Algorithm], section: str) -> bool:
    """Tell whether an algorithm has a use for what a section makes."""
    return section in options_of(algorithm) and section not in algorithm.no_use_for


def fingerprint(complete: Settings) -> str:
    """Name a configuration, apart from what may change when a run goes on."""
    fixed = {
        section: {name: value for name, value in options.items() if _counts(section, name, value)}
        for section, options in tasks.as_before(complete).items()
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()[:16]


def check_goes_on(folder: Path, complete: Settings, overrides: list[str]) -> None:
    """Raise where a run would go on with another configuration than it began with: say in which options."""
    before, after = modernise(toml(str(folder / "config.toml"))), tomllib.loads(as_toml(complete))
    asked = {text.partition("=")[0].strip() for text in overrides}
    told = [
        f"{section}.{name}={value} instead of {before.get(section, {}).get(name, 'none')}"
        for section, options in after.items()
        for name, value in options.items()
        if (_counts(section, name, value) or (section, name) == ("run", "start"))
        and value != before.get(section, {}).get(name)
        and (f"{section}.{name}" in asked or _known(before, section, name))
    ]
    if told:
        more = f" and {len(told) - 3} more" if len(told) > 3 else ""
        command = " ".join(["turnout run", str(folder / "config.toml"), "--from", str(folder), *overrides])
        raise UserError(
            f"resume: {', '.join(told[:3])}{more} is another configuration, and would change rounds that are done; to "
            f"begin a new run with this one's model: {command}"
        )


def _known(before: Settings, section: str, name: str) -> bool:
    """Say whether a run has written an option down; the threads of version 0.1 were those of its machine."""
    return name in before.get(section, {}) and (section, name, before[section][name]) != ("engine", "threads", 0)


def _counts(section: str, name: str, value: Any) -> bool:
    """Say whether an option names a configuration: it does not where it came later and is as if it were not there."""
    later, value = LATER.get(section, {}), [*value] if isinstance(value, tuple) else value
    return name not in FREE.get(section, ()) and not (name in later and value == later[name])


def as_toml(settings: Settings) -> str:
    """Write sections of plain values and tables of such; options without a value are left out."""
    lines = []
    for section, options in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{_key(name)} = {_value(value)}" for name, value in options.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(part) for part in value) + "]"
    if isinstance(value, dict):
        parts = (f"{_key(name)} = {_value(part)}" for name, part in value.items() if part is not None)
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # also nan, inf and -inf
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return quoted(str(value))


def _key(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else quoted(name)


def quoted(text: str) -> str:
    """JSON's escapes are TOML's too, except that TOML wants one character more of them."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
