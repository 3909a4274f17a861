"""Every option has one line of help, which `turnout show` prints: the comment behind it, in its class or function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import catalogue
import pytest

from turnout.config import config, kinds
from turnout.config.help import help_of

THINGS: dict[tuple[str, str], Callable[..., Any]] = {
    (kind.section.format(name), name): made for kind in kinds.KINDS.values() for name, made in kind.things().items()
} | {(section, ""): made for section, made in kinds.PLAIN.items()}
LINES = {
    (section, name): {option.name: option.help for option in kinds.options(section, made)}
    for (section, name), made in THINGS.items()
}


def test_every_option_has_a_line() -> None:
    options = {(option.section, option.thing, option.name) for option in catalogue.options()}
    options |= {(*thing, name) for thing, lines in LINES.items() for name in lines}
    assert len(options) > 800
    assert not [option for option in sorted(options) if not LINES[option[:2]].get(option[2])]


def test_a_line_is_a_line() -> None:
    for thing, lines in LINES.items():
        for option, line in lines.items():
            assert 3 < len(line) < 100 and not line.endswith("."), (*thing, option, line)


def test_lines_of_one_thing_differ() -> None:
    """A line that was copied and not changed."""
    for thing, lines in LINES.items():
        assert len(set(lines.values())) == len(lines), thing


def test_every_section_is_known() -> None:
    assert {section.partition(".")[0] for section, _ in THINGS} == set(config.SECTIONS)


@dataclass
class Parent:
    first: int = 1  # how many
    second: float = field(
        default=0.5,
    )  # seconds
    third: int = 3


@dataclass
class Child(Parent):
    first: int = 2  # how many of the child


class Plain:
    def __init__(
        self,
        size: int,  # rows
    ) -> None:
        self.size = size


class More(TypedDict, total=False):
    each: str  # client or job


def function(
    one: int,  # the first
    *,
    two: float = 2.0,  # the second
    **more: Unpack[More],
) -> None:
    """Do nothing."""


def together(one: int, two: int) -> None:  # of neither
    """Do nothing."""


def alone(one: int) -> None:  # the only one
    """Do nothing."""


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        (Parent, {"first": "how many", "second": "seconds"}),
        (Child, {"first": "how many of the child", "second": "seconds"}),
        (Plain, {"size": "rows"}),
        (function, {"one": "the first", "two": "the second", "each": "client or job"}),
        (together, {}),
        (alone, {"one": "the only one"}),
        (len, {}),
    ],
)
def test_where_a_line_is_read(made: Callable[..., Any], lines: dict[str, str]) -> None:
    assert help_of(made) == lines
