"""Weights for data streams with a target of their own: data-streams.md, section 3.5, last paragraph."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, generator, key
from turnout.theory.streams import BoolArray, historical, optimal_importance, stream_bound
from turnout_studies.theory.stream_target import targeted_bound, targeted_importance


def problem(number: int, clients: int) -> tuple[np.random.Generator, FloatArray, BoolArray, FloatArray]:
    """n, who is fresh, and a target in which some clients do not count."""
    chance = generator(key(number, "targets"))
    n, target = chance.dirichlet(np.full(clients, 0.7), 2) + 1e-5
    target *= chance.uniform(size=clients) < 0.8
    target[0] += 0.1
    return chance, n / n.sum(), chance.uniform(size=clients) < 0.5, target / target.sum()


def test_the_bound() -> None:
    p, n, fresh = [0.5, 0.2, 0.3], [2, 1, 1], [False, True, True]
    inside = stream_bound(p, n, fresh, 0.1, 2, 3)
    assert targeted_bound(p, n, fresh, [0.4, 0.4, 0.2], 0.1, 2, 3, 0.5) == pytest.approx(inside + 2 * 0.5 * 0.4)


@pytest.mark.parametrize("number", range(40))
def test_no_other_weights_are_better(number: int) -> None:
    chance, n, fresh, target = problem(number, 2 + number % 7)
    c1, c2, disc = (float(value) for value in 10 ** chance.uniform((-1, -2, -2), (0.5, 0.3, 0)))
    c1 *= number % 5 > 0
    p = targeted_importance(n, fresh, target, c1, c2, disc)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert (p >= 0).all()

    def bounds(rows: FloatArray) -> FloatArray:
        roots = c1 * np.sqrt((rows[:, fresh] ** 2).sum(1)) + c2 * np.sqrt((rows**2 / n).sum(1))
        return np.asarray(roots + 2 * disc * np.abs(rows - target).sum(1))

    steps = chance.normal(size=(3000, len(n))) * 10 ** chance.uniform(-7, 0, (3000, 1))
    others = np.maximum(0, p + steps) + 1e-300
    others = np.concatenate([others / others.sum(1)[:, None], target[None]])
    assert bounds(p[None])[0] <= bounds(others).min() + 1e-12
    assert bounds(p[None])[0] == pytest.approx(targeted_bound(p, n, fresh, target, 0, c1, c2, disc))


@pytest.mark.parametrize("number", range(10))
def test_without_discrepancy_the_target_does_not_matter(number: int) -> None:
    _, n, fresh, target = problem(number, 9)
    for c1, c2 in ((1.0, 0.3), (1.0, 0.02), (0.0, 1.0)):
        ratio = c2 / c1 if c1 else math.inf
        expected = optimal_importance(n, fresh, ratio)
        np.testing.assert_allclose(targeted_importance(n, fresh, target, c1, c2, 0), expected, atol=1e-9)


def test_a_large_discrepancy_leaves_the_target() -> None:
    _, n, fresh, target = problem(1, 9)
    np.testing.assert_allclose(targeted_importance(n, fresh, target, 1, 0.1, 100), target, atol=1e-12)


def test_discrepancy_pulls_towards_the_target() -> None:
    _, n, fresh, target = problem(2, 9)
    distances = [
        np.abs(targeted_importance(n, fresh, target, 1, 0.3, disc) - target).sum() for disc in (0, 0.05, 0.2, 0.6, 5)
    ]
    assert (np.diff(distances) < 1e-9).all()
    assert distances[0] > 0.1
    assert distances[-1] < 1e-9


def test_historical_where_noise_weighs_most() -> None:
    _, n, fresh, _ = problem(3, 9)
    found = targeted_importance(n, fresh, n, 10, 0.01, 0)
    np.testing.assert_allclose(found, historical(n, fresh), atol=1e-12)


def test_a_client_without_samples_cannot_follow_its_target() -> None:
    p = targeted_importance([2, 0, 1], [False, False, True], [0.2, 0.5, 0.3], 0.5, 0.5, 0.1)
    assert p[1] == 0
    assert p.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": [0.5, 0.2]}, "must be 2 numbers of at least 0 that sum to 1"),
        ({"target": [1.0]}, "must be 2 numbers"),
        ({"target": [1.5, -0.5]}, "at least 0"),
        ({"c2": 0.0}, "c2: 0.0 must be above 0"),
        ({"c1": -1.0}, "c1 is -1.0 and disc 0.1; both must be at least 0"),
        ({"disc": math.inf}, "must be at least 0 and finite"),
    ],
)
def test_mistakes_are_sentences(changes: dict[str, object], words: str) -> None:
    values = {"target": [0.5, 0.5], "c1": 1.0, "c2": 1.0, "disc": 0.1, **changes}
    with pytest.raises(UserError, match=words):
        targeted_importance([1, 2], [False, True], **values)  # type: ignore[arg-type]
