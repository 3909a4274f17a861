"""Line charts, and the pictures of the weights for data streams, read back from their SVG."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.plan.stream_curves import pictures
from turnout.record.curves import BOTTOM, COLOURS, LEFT, RIGHT, TOP, decades, line_chart, ticks

SVG = "{http://www.w3.org/2000/svg}"
WORDS: dict[str, Any] = {"title": "A title", "x": "across", "y": "up"}


def lines(picture: str) -> list[FloatArray]:
    """`[points, 2]` pixels of each."""
    found = ElementTree.fromstring(picture).iter(f"{SVG}polyline")
    return [np.array([point.split(",") for point in line.attrib["points"].split()], float) for line in found]


def texts(picture: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_points_lie_where_the_ticks_say() -> None:
    (line,) = lines(line_chart({"a": ([0, 0.5, 2], [1, 3, 2])}, **WORDS))
    np.testing.assert_allclose(line[:, 0], [LEFT, LEFT + (RIGHT - LEFT) / 4, RIGHT], atol=0.06)
    np.testing.assert_allclose(line[:, 1], [BOTTOM, TOP, (BOTTOM + TOP) / 2], atol=0.06)


def test_a_logarithmic_axis_has_equal_factors() -> None:
    picture = line_chart({"a": ([0.1, 1, 10], [0, 1, 2])}, log_x=True, mark=(1, "here"), **WORDS)
    (line,) = lines(picture)
    assert line[:, 0].tolist() == [LEFT, (LEFT + RIGHT) / 2, RIGHT]
    assert {"0.1", "1", "10", "here"} <= set(texts(picture))
    assert f'x="{(LEFT + RIGHT) / 2:.1f}" y="{TOP - 13:.1f}" text-anchor="middle"' in picture


def test_words_and_colours() -> None:
    picture = line_chart({"p < q": ([0, 1], [0, 1]), "b": ([0, 1], [1, 0])}, **WORDS)
    assert {"A title", "across", "up", "p < q", "b"} <= set(texts(picture))
    assert [f'stroke="{colour}"' in picture for colour in COLOURS[:3]] == [True, True, False]


def test_a_value_that_is_not_finite_leaves_a_gap() -> None:
    found = lines(line_chart({"a": ([0, 1, 2, 3, 4], [math.nan, 1, math.inf, 2, 3])}, **WORDS))
    assert [len(line) for line in found] == [1, 2]
    assert found[1][-1].tolist() == [RIGHT, TOP]


def test_zero_is_drawn_where_values_lie_on_both_sides() -> None:
    both, above = (line_chart({"a": ([0, 1], [low, 1])}, **WORDS) for low in (-1, 0))
    assert both.count('stroke="#22262b" stroke-width="1"/>') == above.count('stroke="#22262b" stroke-width="1"/>') + 1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-0.1, 0.93, [-0.5, 0, 0.5, 1]),
        (0.003, 0.0382, [0, 0.01, 0.02, 0.03, 0.04]),
        (3, 3, [0, 5]),
        (0, 0, [0, 1]),
        (1200, 8900, [0, 2000, 4000, 6000, 8000, 10000]),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert len(np.unique(np.diff(found).round(12))) == 1
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_decades() -> None:
    np.testing.assert_allclose(decades(0.015, 3), [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2])
    np.testing.assert_allclose(decades(0.001, 1000), 10.0 ** np.arange(-3, 4))


def test_what_cannot_be_drawn() -> None:
    for empty in ({}, {"a": ([0.0], [math.nan])}):
        with pytest.raises(UserError, match="nothing to draw"):
            line_chart(empty, **WORDS)
    with pytest.raises(UserError, match="no place on a logarithmic axis"):
        line_chart({"a": ([0, 1], [0, 1])}, log_x=True, **WORDS)


# -- the pictures of the weights --------------------------------------------------------------------------------


def at_the_mark(picture: str) -> list[float]:
    """What each line shows at c2 / c1 = .15, on an axis from 0 to 1 that begins at .015 and ends at 3."""
    place = LEFT + math.log(10) / math.log(200) * (RIGHT - LEFT)
    heights = [float(np.interp(place, line[:, 0], line[:, 1])) for line in lines(picture)]
    return [(BOTTOM - height) / (BOTTOM - TOP) for height in heights]


def test_the_optimum_is_drawn() -> None:
    """Marfoq's thesis, figure G.22: M = 50, M_hist = 25, c2 / c1 = .15 marked; nu = .05, .2, .5, .8."""
    found = pictures()
    shares = np.array([0.1162, 0.4522, 0.9472, 1.0])
    nu = np.array([0.05, 0.2, 0.5, 0.8])
    assert at_the_mark(found["historical_share"]) == pytest.approx(shares, abs=3e-3)
    assert at_the_mark(found["noise"]) == pytest.approx(1 - shares, abs=3e-3)
    effective = 1 / (shares**2 / nu + (1 - shares) ** 2 / (1 - nu))
    assert at_the_mark(found["effective_samples"]) == pytest.approx(effective, abs=5e-3)


def test_the_differences_are_drawn() -> None:
    """Figure 4.3, as functions of nu from .05 to .95; the third line is c2 / c1 = .15."""
    found = pictures()
    assert "c2 / c1 = 0.15" in texts(found["uniform_over_optimum"])
    heights = {name: lines(found[name])[2] for name in found if "over" in name}
    nu = {name: 0.05 + 0.9 * (line[:, 0] - LEFT) / (RIGHT - LEFT) for name, line in heights.items()}
    uniform, old, both = (
        heights[name][:, 1] for name in ("uniform_over_optimum", "historical_over_optimum", "historical_over_uniform")
    )
    assert (np.diff(old) >= 0).all()  # down the page
    assert nu["uniform_over_optimum"][uniform.argmin()] == pytest.approx(0.5, abs=0.05)
    zero = TOP + (BOTTOM - TOP) * 5 / 6  # of an axis from -.2 to 1
    assert np.interp(zero, both[:60], nu["historical_over_uniform"][:60]) == pytest.approx(0.25, abs=0.01)


def test_other_numbers_of_clients_and_ratios() -> None:
    many = pictures(100, 0.075)  # c1 = sqrt(M_f) times a constant: four times the clients, half the ratio
    assert at_the_mark(many["historical_share"]) == pytest.approx(at_the_mark(pictures()["historical_share"]), abs=1e-3)
    with pytest.raises(UserError, match=r"streams.ratio: 0 must be above 0"):
        pictures(25, 0)
