"""What values an option may have, declared where it is: `mu: NotNegative = 0.1`, `mode: Literal["wait", "restart"]`.

Classes of options (`Spelt`) and functions of options (`spelt`) refuse other values in one sentence before anything is
made of them, and `turnout show` prints what is allowed. None is no value and is always let through; of an array or a
list every element is looked at. What depends on another option, or on the clients, is checked where both are known.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, Unpack, get_args, get_origin

import numpy as np

from turnout.core.errors import UserError, unknown


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, or `above` one and `below` another; `below` infinity: they are finite."""

    least: float = -math.inf
    most: float = math.inf
    above: float | None = None
    below: float | None = None
    words: str = ""  # what is said of it; none: its bounds
    whole: bool = False  # whether they are whole numbers

    def __str__(self) -> str:
        if self.words:
            return self.words
        if math.isfinite(self.least) and math.isfinite(self.most):
            return f"from {_shown(self.least)} to {_shown(self.most)}"
        lower = "" if self.least == -math.inf else f"at least {_shown(self.least)}"
        upper = "" if self.most == math.inf else f"at most {_shown(self.most)}"
        if self.above is not None:
            lower = f"above {_shown(self.above)}"
        if self.below is not None:
            upper = "finite" if self.below == math.inf else f"below {_shown(self.below)}"
        return " and ".join(filter(None, (lower, upper)))

    def check(self, option: str, value: Any) -> None:
        """Raise unless a number, or every one of many, is in the range."""
        try:
            numbers = value if isinstance(value, int | float) else np.asarray(value, np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"{option}: {str(value)[:60]!r} is not a number") from error
        if self.whole and np.asarray(value).dtype.kind not in "iu":
            raise UserError(f"{option}: {str(value)[:60]} must be a whole number {self}")
        fits = (self.least <= numbers) & (numbers <= self.most)
        if self.above is not None:
            fits &= numbers > self.above
        if self.below is not None:
            fits &= numbers < self.below
        if not np.all(fits):
            place = np.argwhere(~np.asarray(fits))[0].tolist()  # in a list: of which client, for instance
            wrong = np.asarray(numbers)[tuple(place)] if place else value
            raise UserError(f"{option}{place or ''}: {wrong} must be {self}")


@dataclass(frozen=True)
class OneOf:
    """One of a few names."""

    names: tuple[Any, ...]

    def __str__(self) -> str:
        return "one of " + ", ".join(self.names)

    def check(self, option: str, value: Any) -> None:
        """Raise where a name or other plain data is none of the names; a part in their place is let through."""
        if isinstance(value, str) and value not in self.names:
            raise unknown(option, value, self.names)
        if isinstance(value, int | float | list | tuple | Mapping) and value not in self.names:
            raise UserError(f"{option}: {value!r} is not {self}")


POSITIVE = Range(above=0, below=math.inf)
Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, Range(least=0)]
Finite = Annotated[float, Range(least=0, below=math.inf)]  # and not negative
Share = Annotated[float, Range(least=0, most=1)]
Fraction = Annotated[float, Range(above=0, most=1)]  # a share that is not nothing
Count = Annotated[int, Range(least=1, whole=True)]
WholeNumber = Annotated[int, Range(least=0, whole=True)]
Seconds = Annotated[float, Range(1e-6, 1e9, words="above 0: from a microsecond to 1e9 seconds")]  # as clocks can tell


def _shown(bound: float) -> str:
    return f"{bound:.0f}" if bound == round(bound) and abs(bound) <= 1e9 else f"{bound:g}".replace("e+", "e")


@cache
def allowed_of(function: Callable[..., Any]) -> dict[str, Range | OneOf]:
    """What the options of a class or function may be, for those that declare it."""
    places: list[Any] = [function]
    if inspect.isclass(function):
        places = []
        for owner in reversed(function.__mro__):
            own_init = vars(owner).get("__init__")
            places += [owner, own_init] if inspect.isfunction(own_init) and not is_dataclass(owner) else [owner]
    found: dict[str, Range | OneOf] = {}
    for place in places:
        for name, hint in _annotations(place).items():
            found.pop(name, None)
            if get_origin(hint) is Unpack:  # **options: Unpack[TypedDict]
                found |= allowed_of(get_args(hint)[0])
            elif (declared := _declared(hint)) is not None:
                found[name] = declared
    return found


def check_allowed(place: str, options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise where one of the options given to a class or function is not what it may be."""
    for name, allowed in allowed_of(function).items():
        if options.get(name) is not None:
            allowed.check(f"{place}.{name}", options[name])


def _annotations(place: Any) -> dict[str, Any]:
    """Its own annotations as objects; those that only type checkers can read declare nothing."""
    scope, found = vars(sys.modules.get(inspect.unwrap(place).__module__, math)), {}
    for name, hint in inspect.get_annotations(place).items():
        written = getattr(hint, "__forward_arg__", hint)  # of a TypedDict
        with suppress(Exception):
            found[name] = eval(written, scope) if isinstance(written, str) else written
    return found


def _declared(hint: Any) -> Range | OneOf | None:
    """What a hint declares: of a union, where all but one part is None."""
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        return _declared(parts[0]) if len(parts) == 1 else None
    if get_origin(hint) is Literal:
        return OneOf(get_args(hint))
    metadata = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((part for part in metadata if isinstance(part, Range | OneOf)), None)
