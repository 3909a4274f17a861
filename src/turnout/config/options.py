"""Options checked against signatures: an option exists exactly if the code takes it, with the type it declares."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from turnout.core.errors import UserError, meant, renamed, unknown

Section = dict[str, Any]
# What a value may be, wherever it is given.
MOST = 2**63 - 1  # the largest whole number: that of an int64
SMALLEST, LARGEST = 1e-300, 1e38  # numbers besides 0 and infinity, by magnitude: no product of two vanishes in float64,
# and float32 knows the largest
DEEPEST = 32  # lists and tables inside one another
_WHOLE = "whole numbers go from -2^63 to 2^63 - 1"


def options_of(function: Callable[..., Any], hidden: set[str] | None = None) -> dict[str, tuple[Any, Any]]:
    """Each option of a constructor or function: its type hint and its default (`inspect.Parameter.empty`: required)."""
    try:
        options = _signature(function)
    except (TypeError, ValueError, NameError, AttributeError) as error:  # of a user's own
        why = str(error)[:100]
        raise UserError(f"{shown(function)[:100]}: it has no options that can be read ({why})") from error
    return {name: option for name, option in options.items() if name not in (hidden or set())}


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    own_init = inspect.isclass(function) and not is_dataclass(function)  # inherited fields have other modules
    hints = get_type_hints(function.__init__ if own_init else function)
    options: dict[str, tuple[Any, Any]] = {}
    parts = {part.name for part in fields(function) if part.metadata.get("part")} if is_dataclass(function) else set()
    parts |= {*getattr(function, "held", ())}  # of modifiers: the server fills them in
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in parts:  # they have sections of their own
            continue
        if parameter.kind is parameter.VAR_KEYWORD:  # **options: Unpack[TypedDict]
            typed = get_args(hints.get(parameter.name))
            options |= {name: (hint, None) for name, hint in get_type_hints(typed[0]).items()} if typed else {}
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            options[parameter.name] = (hints.get(parameter.name, Any), parameter.default)
    return options


def check(section: str, function: Callable[..., Any], values: Section, hidden: set[str]) -> tuple[Section, Section]:
    """The given options, checked; and all options with the value each has, defaults as they would be read."""
    known = options_of(function, hidden)
    for name in values:
        if name not in known:
            raise UserError(f"{section}.{name}: unknown option; {meant(name, known)}")
    checked = {name: checked_value(f"{section}.{name}", value, known[name][0]) for name, value in values.items()}
    complete: Section = {}
    for name, (hint, default) in known.items():
        if name in checked:
            complete[name] = checked[name]
        elif default is inspect.Parameter.empty:
            raise UserError(f"{section}.{name}: missing; give it a value")
        elif default is None:
            complete[name] = None
        elif isinstance(default, str | bool | int | float | list | tuple):
            with suppress(UserError):  # a default that its own hint refuses could not be read: it is left to the code
                complete[name] = checked_value(f"{section}.{name}", default, hint)
                if type(complete[name]) is not type(default):
                    checked[name] = complete[name]
    return checked, complete


def call(section: str, function: Callable[..., Any], values: Section, given: Section) -> tuple[Any, Section]:
    """`function(**values, **given)` with checked values; also every option with the value it has."""
    checked, complete = check(section, function, values, set(given))
    with renamed({f"{getattr(function, '__name__', section)}.": f"{section}."}):
        return function(**checked, **given), complete


def checked_value(option: str, value: Any, hint: Any) -> Any:
    """The value as its hint has it: what is recorded, and what a file that records it is read as."""
    _check_size(option, value)
    kind = _plain(hint)
    try:
        if _has_bool(value) and not _takes(kind, bool):
            raise TypeError
        found = _validator(kind, str(kind)).validate_python(value)
    except (ValidationError, TypeError) as error:
        names = get_args(kind) if get_origin(kind) is Literal else ()
        if names and isinstance(value, str):
            raise unknown(option, value, names) from error
        raise UserError(f"{option}: {shown(value)} is not {in_words(kind)}") from error
    return _as_data(option, found)


@lru_cache(maxsize=1024)
def _validator(kind: Any, _order: str) -> TypeAdapter[Any]:
    """For a hint, and how it is written: unions are equal in any order, but the first that fits is taken."""
    return TypeAdapter(kind)


def shown(value: Any) -> str:
    """A value in a sentence, long ones cut."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    short.maxlist = short.maxtuple = short.maxdict = 8
    return short.repr(value)


def _check_size(option: str, value: Any, depth: int = 0) -> None:
    """Refuse what cannot even be looked at: whole numbers beyond every float, lists and tables nested for ever."""
    if isinstance(value, int) and value.bit_length() > 1024:
        raise UserError(f"{option}: a whole number of {value.bit_length()} bits is too large; {_WHOLE}")
    if depth > DEEPEST:
        raise UserError(f"{option}: lists and tables are nested more than {DEEPEST} deep")
    if isinstance(value, list | tuple | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            _check_size(option, part, depth + 1)


def _as_data(option: str, value: Any) -> Any:
    """The value in the types that a configuration file has, in which it reads back the same; else it is refused."""
    if hasattr(value, "tolist"):  # of numpy
        value = value.tolist()
    if isinstance(value, int) and not -MOST - 1 <= value <= MOST:
        raise UserError(f"{option}: {shown(value)} is too large; {_WHOLE}")
    if isinstance(value, float) and value and not SMALLEST <= abs(value) <= LARGEST and math.isfinite(value):
        raise UserError(f"{option}: {value} is out of range; allowed: 0, inf, and sizes from {SMALLEST} to {LARGEST}")
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UserError(f"{option}: {ascii(value)[:80]} is not text: some of its bytes are not UTF-8")
    if isinstance(value, list | tuple):
        parts = [_as_data(option, part) for part in value]
        if None in parts:
            raise UserError(f"{option}: a list holds nothing (None) at place {parts.index(None)}; give it a value")
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, Mapping):
        return {_as_data(option, name): _as_data(option, part) for name, part in value.items()}
    return value


def _has_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(_has_bool, value)))


def _plain(hint: Any) -> Any:
    """The hint as a person can write it in TOML: an array is a number or a list (or a file, where allowed)."""
    text = str(hint)
    if "PathLike" in text and "Array" in text:
        return float | list[float] | str
    if "Array" in text or "ndarray" in text or "Draw" in text:
        return float | list[float] | None if "None" in text else float | list[float]
    return hint


def _takes(kind: Any, wanted: type) -> bool:
    return kind in (wanted, Any, object) or any(_takes(part, wanted) for part in get_args(kind))


def in_words(hint: Any) -> str:
    """What an option of that hint takes: `a number`, `one of a, b`, `a list`."""
    hint = _plain(hint)
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a table"}
    if hint in words:
        return words[hint]
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(in_words(part) for part in get_args(hint) if part is not type(None))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        parts = get_args(hint)
        return "a list" if origin is not tuple or ... in parts else f"a list of {len(parts)} values"
    literals = get_args(hint)
    if literals and all(isinstance(part, str) for part in literals):
        return "one of " + ", ".join(literals)
    return getattr(hint, "__name__", str(hint))
