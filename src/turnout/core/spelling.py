"""An option that does not exist, or a value that is not allowed, is one sentence, in Python as in a configuration.

A class of options inherits `Spelt`, a function of options is decorated with `spelt`. Signatures stay what they are.
What an option may be is declared with it (`turnout.core.allowed`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, get_args, get_type_hints

from turnout.core.allowed import allowed_of, check_allowed
from turnout.core.errors import UserError, meant

Made = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")


class Spelt:
    """Classes whose constructors refuse an unknown option, or a value that is not allowed, in one sentence."""

    section: ClassVar[str] = ""  # of a configuration, in which their options stand; none: the name of the class
    gone: ClassVar[Mapping[str, Callable[[Any], UserError]]] = {}  # options that are no more, and what is said

    if not TYPE_CHECKING:  # a checker reads __init__

        def __new__(cls, *given: Any, **options: Any) -> Spelt:
            """Make the object; copies, and objects that are read back, have no options to check."""
            for name in options.keys() & cls.gone:
                raise cls.gone[name](options[name])
            if given or options:
                _check(cls.__name__, cls.section or cls.__name__, given, options, cls.__init__, cls)
            return super().__new__(cls)


def spelt(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that is to refuse an unknown option, or a value that is not allowed, in one sentence."""
    owned = next(iter(inspect.signature(function).parameters), "") in ("self", "cls")  # a method: no option of it
    name = getattr(function, "__qualname__", "options")  # of a partial function

    @wraps(function)
    def called(*given: P.args, **options: P.kwargs) -> R:
        _check(name, name.rpartition(".")[2], given[owned:], options, function, function)
        return function(*given, **options)

    return called


def _check(
    place: str, section: str, given: tuple[Any, ...], options: Mapping[str, Any], called: Made, declares: Made
) -> None:
    """Raise for an option of another name than those of `called`, or another value than `declares` allows."""
    known = _known(called)
    for name in options:
        if known is not None and name not in known:
            raise UserError(f"{place}: unknown option {name!r}; {meant(name, known)}")
    if allowed_of(declares):
        check_allowed(section, {**dict(zip(known or (), given, strict=False)), **options}, declares)


@cache
def _known(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """The options that a function takes; None: any."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:  # **options: Unpack[TypedDict], or anything
            typed = get_args(get_type_hints(function).get(parameter.name))
            if not typed:
                return None
            names += get_type_hints(typed[0])
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            names.append(parameter.name)
    return tuple(name for name in names if name not in ("self", "cls"))
