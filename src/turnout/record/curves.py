"""Lines in one picture, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.errors import UserError
from turnout.core.random import FloatArray

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 84, 590, 64, 376  # of the plot; the legend is to its right
INK, GREY, PALE = "#22262b", "#7a818b", "#e4e7eb"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#22262b")  # Okabe and Ito


def line_chart(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
    mark: tuple[float, str] | None = None,
) -> str:
    """`lines` are x and y by name; a value that is not finite leaves a gap. `mark` is a place on the x axis, and what
    it is called."""
    curves = {name: np.array(np.broadcast_arrays(*line), np.float64) for name, line in lines.items()}
    points = np.concatenate([np.zeros((2, 0)), *curves.values()], axis=1)
    points = points[:, np.isfinite(points).all(0)]
    if not points.size:
        raise UserError("curves: nothing to draw; give a line with a finite value")
    if log_x and not (points[0] > 0).all():
        raise UserError("curves: an x of 0 or less has no place on a logarithmic axis")
    ends = float(points[0].min()), float(points[0].max())
    across = _Axis(decades(*ends) if log_x else ticks(*ends), ends, (LEFT, RIGHT), log_x)
    heights = ticks(float(points[1].min()), float(points[1].max()))
    up = _Axis(heights, (heights[0], heights[-1]), (BOTTOM, TOP))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            _text(LEFT, 32, title, size=18),
            *(_line((LEFT, v), (RIGHT, v), PALE) + _text(LEFT - 9, v + 4, s, "end") for v, s in up.labels()),
            *(_line((u, BOTTOM), (u, BOTTOM + 5)) + _text(u, BOTTOM + 20, s, "middle") for u, s in across.labels()),
            *(_line((LEFT, v), (RIGHT, v)) for v in {BOTTOM, *up(heights[heights == 0]).tolist()}),
            _text((LEFT + RIGHT) / 2, HEIGHT - 18, x, "middle", 14),
            f'<g transform="translate(24 {(TOP + BOTTOM) / 2:g}) rotate(-90)">{_text(0, 0, y, "middle", 14)}</g>',
            *([] if mark is None else _marked(float(across(mark[0])), mark[1])),
            *_curves(curves, across, up),
            "</svg>\n",
        ]
    )


def ticks(low: float, high: float, about: int = 5) -> FloatArray:
    """Round numbers at equal steps, from the last at or below `low` to the first at or above `high`."""
    wide = (high - low) / about or abs(low) or 1.0
    size = 10.0 ** math.floor(math.log10(wide))
    step = next(step for step in (size, 2 * size, 5 * size, 10 * size) if step >= wide * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return np.asarray(np.arange(first, max(last, first + 1) + 1) * step)


def decades(low: float, high: float) -> FloatArray:
    """Powers of ten between the two, with 2 and 5 times them where these are few."""
    powers = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = np.outer(powers, (1, 2, 5) if high < 1000 * low else (1,)).ravel()
    return np.asarray(found[(found >= low * (1 - 1e-9)) & (found <= high * (1 + 1e-9))])


@dataclass(frozen=True)
class _Axis:
    """From values to pixels."""

    ticks: FloatArray
    ends: tuple[float, float]
    pixels: tuple[float, float]
    log: bool = False

    def __call__(self, values: ArrayLike) -> FloatArray:
        shown, (low, high) = (np.log(values), np.log(self.ends)) if self.log else (np.asarray(values), self.ends)
        first, last = self.pixels
        return np.asarray(first + (shown - low) / (high - low or 1) * (last - first))

    def labels(self) -> Iterator[tuple[float, str]]:
        inside = self.ticks[(self.ticks >= self.ends[0] - 1e-9) & (self.ticks <= self.ends[1] + 1e-9)]
        return zip(self(inside).tolist(), (f"{tick:.6g}" for tick in inside + 0.0), strict=True)


def _curves(curves: Mapping[str, FloatArray], across: _Axis, up: _Axis) -> Iterator[str]:
    """Each line with its row of the legend."""
    for number, (name, (x, y)) in enumerate(curves.items()):
        colour, row = COLOURS[number % len(COLOURS)], TOP + 10 + 24 * number
        known = np.isfinite(x) & np.isfinite(y)
        for part in np.split(np.arange(len(x)), np.flatnonzero(~known)):
            places = part[known[part]]
            if not places.size:
                continue
            path = " ".join(f"{u:.1f},{v:.1f}" for u, v in zip(across(x[places]), up(y[places]), strict=True))
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"/>'
        yield _line((RIGHT + 22, row), (RIGHT + 50, row), colour, 3) + _text(RIGHT + 58, row + 4, name)


def _marked(place: float, name: str) -> Iterator[str]:
    yield f'<g stroke-dasharray="5 4">{_line((place, TOP - 8), (place, BOTTOM), GREY, 1.4)}</g>'
    yield _text(place, TOP - 13, name, "middle", 12, GREY)


def _line(start: tuple[float, float], end: tuple[float, float], colour: str = INK, width: float = 1) -> str:
    (x1, y1), (x2, y2) = start, end
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}" stroke-width="{width:g}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13, colour: str = INK) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(text)}</text>'
