"""Options checked against signatures: an option exists exactly if the code takes it, with the type it declares."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from turnout.errors import UserError

Section = dict[str, Any]


def options_of(function: Callable[..., Any], hidden: set[str] | None = None) -> dict[str, tuple[Any, Any]]:
    """Each option of a constructor or function: its type hint and its default (`inspect.Parameter.empty`: required)."""
    own_init = inspect.isclass(function) and not is_dataclass(function)  # inherited fields have other modules
    hints = get_type_hints(function.__init__ if own_init else function)
    options: dict[str, tuple[Any, Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:  # **options: Unpack[TypedDict]
            typed = get_args(hints[parameter.name])[0]
            options |= {name: (hint, None) for name, hint in get_type_hints(typed).items()}
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            options[parameter.name] = (hints.get(parameter.name, Any), parameter.default)
    return {name: option for name, option in options.items() if name not in (hidden or set())}


def check(section: str, function: Callable[..., Any], values: Section, hidden: set[str]) -> tuple[Section, Section]:
    """The given options, checked; and all options with the value each has."""
    known = options_of(function, hidden)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(known) or 'none'}"
            raise UserError(f"{section}.{name}: unknown option; {hint}")
    checked = {name: _checked(f"{section}.{name}", value, known[name][0]) for name, value in values.items()}
    complete = dict(checked)
    for name, (_, default) in known.items():
        if name not in checked:
            if default is inspect.Parameter.empty:
                raise UserError(f"{section}.{name}: missing; give it a value")
            if default is None or isinstance(default, str | bool | int | float | list | tuple):
                complete[name] = default
    return checked, complete


def call(section: str, function: Callable[..., Any], values: Section, given: Section) -> tuple[Any, Section]:
    """`function(**values, **given)` with checked values; also every option with the value it has."""
    checked, complete = check(section, function, values, set(given))
    return function(**checked, **given), complete


def _checked(option: str, value: Any, hint: Any) -> Any:
    kind = _plain(hint)
    try:
        if isinstance(value, bool) and not _takes(kind, bool):
            raise TypeError
        return TypeAdapter(kind).validate_python(value)
    except (ValidationError, TypeError) as error:
        raise UserError(f"{option}: {value!r} is not {_in_words(kind)}") from error


def _plain(hint: Any) -> Any:
    """The hint as a person can write it in TOML: an array is a number or a list (or a file, where allowed)."""
    text = str(hint)
    if "PathLike" in text and "Array" in text:
        return float | list[float] | str
    if "Array" in text or "ndarray" in text or "Draw" in text:
        return float | list[float] | None if "None" in text else float | list[float]
    return hint


def _takes(kind: Any, wanted: type) -> bool:
    return kind in (wanted, Any) or any(_takes(part, wanted) for part in get_args(kind))


def _in_words(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a table"}
    if hint in words:
        return words[hint]
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(_in_words(part) for part in get_args(hint) if part is not type(None))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        return "a list" if origin is not tuple else f"a list of {len(get_args(hint))} values"
    literals = get_args(hint)
    if literals and all(isinstance(part, str) for part in literals):
        return "one of " + ", ".join(literals)
    return getattr(hint, "__name__", str(hint))
