"""What an option may be is declared with it: other values are one sentence, and `turnout show` says what is allowed."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypedDict, Unpack, get_origin

import numpy as np
import pytest

from turnout.config.kinds import FILLED_IN, KINDS, PLAIN, options
from turnout.config.options import call, options_of
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
        (lambda: Parent(mode=3), "thing.mode: 3 is not one of wait, restart"),  # type: ignore[arg-type]
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


# Options of numbers or names that declare nothing, and why.
FREE = {
    **dict.fromkeys(
        ("run.seed", "data.seed", "data.sample_seed", "availability.seed", "local.noise.seed", "privacy.noise_seed"),
        "any whole number is a seed",
    ),
    **dict.fromkeys(("behaviour.factor", "behaviour.scale", "behaviour.z"), "liars send any multiple"),
    **dict.fromkeys(("run.target", "sampler.optima"), "values of a loss or a measure, which may be any number"),
    **dict.fromkeys(("algorithm.reference", "sampler.reference"), "inputs of a model, which may be any numbers"),
    **dict.fromkeys(
        ("run.name", "run.folder", "run.measure", "run.judge", "run.start", "engine.address"), "names of the user's own"
    ),
    **dict.fromkeys(("algorithm.head", "algorithm.layer", "sampler.layer", "serve.layer"), "layers of a model"),
    **dict.fromkeys(("data.client", "data.target", "availability.variant"), "columns or rows of a file"),
    **dict.fromkeys(
        ("data.function", *(f"task.{name}" for name in ("loss", "metrics", "prepare", "augment", "batchnorm"))),
        "a function of the user's own, module:function, as well",
    ),
    **dict.fromkeys(("network.underlay", "network.overlay", "network.center"), "a file, or a silo's name, as well"),
    **dict.fromkeys(("network.access", "network.core"), "rates with their units"),
    **dict.fromkeys(("algorithm.index", "serve.index"), "a string of faiss.index_factory as well"),
    **dict.fromkeys(("engine.device", "local.report"), "several words with a grammar of their own"),
    "algorithm.weighting": "a name, or a share",
    "run.seeds": "whole numbers with a grammar of their own",
    "data.separator": "any one character",
    **{
        f"task.{name}.ignore": "any number may stand where nothing counts"
        for name in ("cross_entropy", "nll", "focal", "next_token", "dice")
    },
}
NAMELESS = ("a number", "a whole number", "text")


def _things() -> list[tuple[str, str, Callable[..., Any]]]:
    """Section, name and maker of everything that has options."""
    named = [(kind.section.format(name), name, made) for kind in KINDS.values() for name, made in kind.things().items()]
    return [(section, name, made) for section, name, made in named if section != "detectors"] + [
        (section, "", made) for section, made in PLAIN.items()
    ]


def test_every_number_and_name_says_what_it_may_be() -> None:
    plain = {*NAMELESS, *(f"{one} or {other}" for one in NAMELESS for other in (*NAMELESS, "a list"))}
    silent = {
        f"{section}.{option.name}"
        for section, _, made in _things()
        for option in options(section, made)
        if option.takes in plain
    }
    assert silent - {"clients.importance"} == FREE.keys()


def _outside(allowed: Range | OneOf, hint: Any) -> list[Any]:
    """Values that are just not allowed."""
    if isinstance(allowed, OneOf):
        return ["no such name"]
    step = 1e-6 if "float" in str(hint) or "ndarray" in str(hint) else 1
    least = [allowed.least - step * max(1, abs(allowed.least))] if allowed.least != -math.inf else []
    most = [allowed.most + step * max(1, abs(allowed.most))] if allowed.most != math.inf else []
    open_ends = [end for end in (allowed.above, allowed.below) if end is not None and abs(end) != math.inf]
    return [*least, *most, *open_ends]


def _inside(hint: Any, allowed: Range | OneOf | None) -> Any:
    """A value for an option that must be given."""
    if isinstance(allowed, OneOf):
        return allowed.names[0]
    if allowed is not None:
        return next(x for x in (1, 0.5, 0, 2) if _fits(allowed, x))
    text = str(hint)
    return {} if "dict" in text else "x" if "str" in text else 1


def _fits(allowed: Range, value: float) -> bool:
    try:
        allowed.check("", value)
    except UserError:
        return False
    return True


def _written(hint: Any, value: Any) -> Any:
    """The value in the form that the option has: a list where it takes nothing else."""
    lists = get_origin(hint) in (tuple, list, Sequence)
    whole = float(value).is_integer() if isinstance(value, int | float) else False
    value = int(value) if whole and "float" not in str(hint) else value
    return [value] * (2 if get_origin(hint) is tuple else 1) if lists else value


def test_what_is_not_allowed_is_refused_in_a_configuration() -> None:
    """The sentence begins with the option, whatever part of the library declares it."""
    refused = 0
    for section, thing, made in _things():
        known, declared = options_of(made), allowed_of(made)
        filled = FILLED_IN.get(section, set())
        given = {name: None for name in known if name in filled}
        needed = {
            name: _written(hint, _inside(hint, declared.get(name)))
            for name, (hint, default) in known.items()
            if default is inspect.Parameter.empty and name not in filled
        }
        for name, allowed in declared.items():
            for value in _outside(allowed, known[name][0]) if name in known and name not in filled else ():
                options = needed | {name: _written(known[name][0], value)}
                with pytest.raises(UserError) as sentence:
                    call(section, made, options, given)
                assert re.match(rf"{re.escape(section)}\.{name}\W", str(sentence.value)), (thing, name, str(sentence))
                refused += 1
    assert refused > 700
