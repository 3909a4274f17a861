"""What a page is made of. Every block is plain data; `page` turns it into HTML, and escapes all that is text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from turnout.record.views import Figure


class Chart(NamedTuple):
    """A chart; `by_rounds` is the same over rounds, where a reader may choose."""

    title: str
    figure: Figure
    about: str = ""
    by_rounds: Figure | None = None


class Answers(NamedTuple):
    """What a person would say, the answer first."""

    sentences: Sequence[str]


class Grid(NamedTuple):
    """A table; the first column names the rows, and the best cells stand out."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    about: str = ""
    best: Collection[tuple[int, int]] = ()  # row and column


class Words(NamedTuple):
    """A paragraph."""

    text: str


class Facts(NamedTuple):
    """Figures that stand out: a value, what it is, and something to compare it with."""

    values: Sequence[tuple[str, str, str]]


class Picture(NamedTuple):
    """An SVG, shown as an image: what is inside it cannot act."""

    title: str
    svg: str
    about: str = ""


class Folded(NamedTuple):
    """Text that is shown when asked for."""

    title: str
    text: str


class Timelines(NamedTuple):
    """Timelines of runs, of which one is shown."""

    runs: Sequence[dict[str, Any]]


Block = Answers | Chart | Grid | Words | Facts | Picture | Folded | Timelines


def charts(title: str, figure: Figure | None, about: str) -> list[Block]:
    """A chart, where there is something to draw."""
    return [] if figure is None else [Chart(title, figure, about)]


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
