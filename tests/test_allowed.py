"""What an option may be is declared with it: other values are one sentence, and `turnout show` says what is allowed."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypedDict, Unpack

import numpy as np
import pytest

from turnout.config.kinds import KINDS, PLAIN, options
from turnout.config.options import call
from turnout.core.allowed import Count, Finite, NotNegative, OneOf, Positive, Range, Seconds, Share, allowed_of
from turnout.core.errors import UserError
from turnout.core.spelling import Spelt, spelt

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


@dataclass(frozen=True)
class Parent(Spelt):
    section: ClassVar[str] = "thing"

    mu: NotNegative = 0.1  # strength
    share: Share | None = None  # of clients
    mode: Literal["wait", "restart"] = "wait"  # what they do
    each: Annotated[Any, Range(above=0)] = 1.0  # one number, or one for each client
    free: float = 1.0  # anything
    other: Unknown = None  # a hint that only type checkers can read


@dataclass(frozen=True)
class Child(Parent):
    mu: Annotated[float, Range(least=0, below=1)] = 0.5  # strength
    share: float | None = None  # of clients; more than one as well


class More(TypedDict, total=False):
    rate: Positive  # per second


@spelt
def made(count: Count, seconds: Seconds = 1.0, **more: Unpack[More]) -> int:
    """Return the count."""
    return count if seconds or more else 0


class Plain(Spelt):
    def __init__(self, size: Finite = 1.0) -> None:
        self.size = size


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Parent(mu=-1), "thing.mu: -1 must be at least 0"),
        (lambda: Parent(-1), "thing.mu: -1 must be at least 0"),
        (lambda: Parent(mu=math.nan), "thing.mu: nan must be at least 0"),
        (lambda: Parent(mu="much"), "thing.mu: 'much' is not a number"),  # type: ignore[arg-type]
        (lambda: Parent(share=1.5), "thing.share: 1.5 must be from 0 to 1"),
        (lambda: Parent(mode="rest"), "thing.mode: unknown name 'rest'; did you mean restart?"),  # type: ignore[arg-type]
        (lambda: Parent(each=[1.0, 0.0]), "thing.each[1]: 0.0 must be above 0"),
        (lambda: Parent(each=np.array([[2.0], [-3.0]])), "thing.each[1, 0]: -3.0 must be above 0"),
        (lambda: replace(Parent(), mu=-2), "thing.mu: -2 must be at least 0"),
        (lambda: Child(mu=1), "thing.mu: 1 must be at least 0 and below 1"),
        (lambda: Child(mode="x"), "thing.mode: unknown name 'x'; allowed: restart, wait"),  # type: ignore[arg-type]
        (lambda: made(0), "made.count: 0 must be at least 1"),
        (lambda: made(1.5), "made.count: 1.5 must be a whole number at least 1"),  # type: ignore[arg-type]
        (lambda: made(True), "made.count: True must be a whole number at least 1"),
        (lambda: made(1, 0.0), "made.seconds: 0.0 must be above 0: from a microsecond to 1e9 seconds"),
        (lambda: made(1, rate=math.inf), "made.rate: inf must be above 0 and finite"),
        (lambda: Plain(math.inf), "Plain.size: inf must be at least 0 and finite"),
        (lambda: call("section", made, {"count": -1}, {}), "section.count: -1 must be at least 1"),
    ],
)
def test_another_value_is_one_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert str(refused.value) == sentence


def test_what_is_allowed_is_let_through() -> None:
    assert Parent(mu=math.inf, share=1, mode="restart", each=[1, 2], free=-1).free == -1
    assert Child(mu=0, share=7.0).share == 7.0
    assert made(1, 1e-6, rate=2.0) == 1


def _declared() -> list[tuple[str, str, Callable[..., Any], Range | OneOf]]:
    """Every option of the library that says what it may be, with its section and what has it."""
    things = [(kind.section.format(name), made) for kind in KINDS.values() for name, made in kind.things().items()]
    things += list(PLAIN.items())
    return [(section, name, made, kind) for section, made in things for name, kind in allowed_of(made).items()]


def test_every_default_is_allowed_and_shown() -> None:
    found = _declared()
    for section, name, made, allowed in found:
        for option in options(section, made):
            if option.name == name:
                assert str(allowed) in option.takes
                if option.default not in ("none", "required"):
                    written = option.default.replace("inf", "1e999")  # as a literal
                    value = option.default if isinstance(allowed, OneOf) else ast.literal_eval(written)
                    allowed.check(f"{section}.{name}", value)
