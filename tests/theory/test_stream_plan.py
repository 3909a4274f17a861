"""The plan of a stream: strategies side by side, and when to warn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.theory.streams import (
    FAR,
    STRATEGIES,
    crossover_ratio,
    historical_threshold,
    optimal_importance,
    stream_bound,
    stream_plan,
)
from turnout_studies.stream_weights import equal_groups

SAMPLES, FRESH = [30, 10, 20, 60], [False, False, True, True]


def test_rows() -> None:
    plan = stream_plan(SAMPLES, FRESH, 0.5)
    rows = {row.name: row for row in plan.strategies}
    assert tuple(rows) == ("optimal", *STRATEGIES)
    np.testing.assert_allclose(rows["optimal"].importance, optimal_importance(SAMPLES, FRESH, 0.5))
    for name, strategy in STRATEGIES.items():
        np.testing.assert_allclose(rows[name].importance, strategy(SAMPLES, FRESH))
    for row in plan.strategies:
        assert row.bound == pytest.approx(stream_bound(row.importance, SAMPLES, FRESH, 0, 1, 0.5))
        assert row.bound >= rows["optimal"].bound
        assert row.historical_share == pytest.approx(row.importance[:2].sum())
    assert rows["uniform"].effective_samples == pytest.approx(120)
    assert rows["historical"].effective_samples == pytest.approx(40)
    assert rows["historical"].noise == 0
    assert rows["fresh"].noise == pytest.approx(np.sqrt(2 * (0.25**2 + 0.75**2)))
    assert plan.historical_samples == pytest.approx(1 / 3)
    assert plan.threshold == pytest.approx(historical_threshold(SAMPLES, FRESH))
    assert plan.crossover == pytest.approx(crossover_ratio(SAMPLES, FRESH))


@pytest.mark.parametrize(
    ("nu", "ratio", "warned"),
    [(0.05, 0.15, ["historical"]), (0.2, 0.1, ["uniform"]), (0.2, 0.13, ["uniform", "historical"]), (0.9, 0.15, [])],
)
def test_warnings_in_the_world_of_the_figures(nu: float, ratio: float, warned: list[str]) -> None:
    plan = stream_plan(*equal_groups(nu, 25, 25), ratio)
    best, above = plan.strategies[0], {row.name: row.bound / plan.strategies[0].bound - 1 for row in plan.strategies}
    assert [name for name in ("uniform", "historical") if above[name] > FAR] == warned
    assert [sentence.split(":")[0] for sentence in plan.warnings] == warned
    for name, sentence in zip(warned, plan.warnings, strict=True):
        assert f"{above[name]:.0%} above the least one" in sentence
        assert f"should count {best.historical_share:.2f} together" in sentence


def test_strategies_that_cannot_be_are_left_out() -> None:
    assert [row.name for row in stream_plan([1, 2], [True, True], 1.0).strategies] == ["optimal", "uniform", "fresh"]
    old = stream_plan([1, 2], [False, False], 1.0)
    assert [row.name for row in old.strategies] == ["optimal", "uniform", "historical"]
    assert old.warnings == []


def test_it_can_be_written_as_json() -> None:
    document = stream_plan(SAMPLES, FRESH, 0.5).as_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["strategies"][1]["name"] == "uniform"


def test_a_ratio_that_decides_nothing() -> None:
    with pytest.raises(UserError, match=r"streams.ratio: 0 must be above 0"):
        stream_plan(SAMPLES, FRESH, 0)
