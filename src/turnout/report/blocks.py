"""What a page is made of. Every block is plain data; `page` turns it into HTML, and escapes all that is text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnout.record.views import Figure


@dataclass(frozen=True)
class Chart:
    """A chart; `by_rounds` is the same over rounds, where a reader may choose."""

    title: str
    figure: Figure
    about: str = ""
    by_rounds: Figure | None = None


@dataclass(frozen=True)
class Grid:
    """A table; the first column names the rows."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    about: str = ""


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Figures that stand out: a value, what it is, and something to compare it with."""

    values: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Picture:
    """An SVG, shown as an image: what is inside it cannot act."""

    title: str
    svg: str
    about: str = ""


@dataclass(frozen=True)
class Folded:
    """Text that is shown when asked for."""

    title: str
    text: str


@dataclass(frozen=True)
class Timelines:
    """Timelines of runs, of which one is shown."""

    runs: Sequence[dict[str, Any]] = field(default_factory=list)


Block = Chart | Grid | Words | Facts | Picture | Folded | Timelines


def number(value: float | None, digits: int = 4) -> str:
    """A number for people, or a dash where there is none."""
    if value is None or value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) < 1e15 and value == round(value) else f"{value:,.{digits}g}"


def megabytes(count: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.0f} bytes"


def span(values: Sequence[float], words: Callable[[float], str]) -> str:
    """One value in words, or the smallest and the largest of several."""
    low, high = words(min(values)), words(max(values))
    return low if low == high else f"{low} to {high}"
