"""Tests of chance, against plain counting and against scipy where it has the same."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from turnout.core import chance


def by_seed(*values: float, first: int = 0) -> dict[int | None, float]:
    return {first + place: value for place, value in enumerate(values)}


def test_seeds_that_pair_are_paired() -> None:
    ours, theirs = (0.91, 0.93, 0.95, 0.90), (0.90, 0.91, 0.94, 0.86)
    found = chance.difference(by_seed(*ours), by_seed(*theirs, 0.1))  # the fifth has no partner
    expected = stats.ttest_rel(ours, theirs)
    assert (found.seeds, found.paired, found.test) == (4, True, "paired t-test")
    assert found.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval()
    assert found.mean == pytest.approx((low + high) / 2)
    assert found.half_width == pytest.approx((high - low) / 2)


@pytest.mark.parametrize("first", [9, 2])  # of the others' seeds: none, or one, is of both
def test_other_seeds_are_two_samples(first: int) -> None:
    ours, theirs = (0.91, 0.93, 0.95), (0.80, 0.91, 0.94, 0.86)
    found = chance.difference(by_seed(*ours), by_seed(*theirs, first=first))
    expected = stats.ttest_ind(ours, theirs, equal_var=False)
    assert (found.seeds, found.paired, found.test) == (3, False, "Welch's t-test")
    assert found.p == pytest.approx(expected.pvalue)
    assert found.mean == pytest.approx(np.mean(ours) - np.mean(theirs))


def test_what_a_test_has_nothing_to_go_by() -> None:
    one = chance.difference(by_seed(0.9), by_seed(0.8))
    assert (one.seeds, one.half_width) == (1, math.inf)
    assert math.isnan(one.p) and not one.alike
    same = chance.difference(by_seed(0.9, 0.8, 0.7), by_seed(0.9, 0.8, 0.7))
    assert (same.mean, same.p) == (0.0, 1.0)
    shifted = chance.difference(by_seed(0.9, 0.8, 0.7), by_seed(0.8, 0.7, 0.6))  # equal but for rounding
    assert shifted.alike and shifted.mean == pytest.approx(0.1)
    fixed = chance.difference(by_seed(3.0, 3.0), by_seed(2.0, 2.0, first=5))
    assert fixed.alike and not fixed.paired


def test_holm_raises_what_is_asked() -> None:
    """By hand: 0.01 x 4, 0.02 x 3, 0.03 x 2 raised to what is before it, 0.9; what is no question is left alone."""
    assert chance.holm([0.03, 0.01, math.nan, 0.9, 0.02]) == pytest.approx(
        [0.06, 0.04, math.nan, 0.9, 0.06], nan_ok=True
    )
    assert chance.holm([]) == []


def test_seeds_needed_reach_the_power() -> None:
    """So many pairs find a difference of this size and spread four times in five, by the noncentral t."""
    values = by_seed(0.02, -0.01, 0.03, 0.0, 0.015)
    found = chance.difference(values, dict.fromkeys(values, 0.0))
    needed = found.seeds_needed()
    assert needed is not None

    def power(seeds: int) -> float:
        limit = stats.t.ppf(0.975, seeds - 1)
        return float(stats.nct.sf(limit, seeds - 1, found.mean / found.spread * math.sqrt(seeds)))

    assert power(needed - 2) < 0.8 < power(needed + 1)
    assert chance.difference(by_seed(1.0, -1.0), by_seed(0.0, 0.0)).seeds_needed() is None


def test_association_is_exact_for_few_clients() -> None:
    """Two of seven silent, and the two largest: one of the 21 pairs at either end."""
    heard, size = np.array([1, 1, 1, 1, 1, 0, 0.0]), np.array([5, 3, 8, 1, 2, 9, 11.0])
    found = chance.association(heard, size)
    assert found is not None
    assert found.rho == pytest.approx(stats.spearmanr(heard, size).statistic)
    ranks = stats.rankdata(size)
    all_of_them = [abs(np.dot(heard, order) - 5 * 4) for order in permutations(ranks.tolist())]
    expected = np.mean(np.array(all_of_them) >= abs(np.dot(heard, ranks) - 5 * 4) - 1e-9)
    assert found.p == pytest.approx(expected) == pytest.approx(2 / 21)


def test_association_of_many_clients_and_of_none() -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=40)
    found = chance.association(x, x + 0.5 * draws.normal(size=40))
    assert found is not None and found.p < 0.01 and found.clients == 40
    large = draws.normal(size=3000)
    far = chance.association(large, draws.normal(size=3000))
    assert far is not None and far.p > 0.01
    assert chance.association(np.ones(9), np.arange(9.0)) is None
    assert chance.association(np.arange(4.0), np.array([1, 2, np.nan, 3])) is None


def test_same_ones_counts_as_all_orders_would() -> None:
    """Two blocks of three, one out in each: of nine equally likely pairs three are of one client."""
    block, who = np.array([0, 0, 0, 5, 5, 5]), np.array([7, 8, 9, 9, 8, 7])
    out = np.array([True, False, False, False, False, True])
    expected = np.mean([a == b for a, b in product(range(3), repeat=2)])
    found = chance.same_ones(block, who, out)
    assert found is not None
    assert found[0] == pytest.approx(expected, abs=0.05)  # of 999 draws
    assert found[1] == 2


def test_same_ones_of_a_quorum_and_of_coins() -> None:
    block, who = np.repeat(np.arange(20), 7), np.tile(np.arange(7), 20)
    assert chance.same_ones(block, who, np.isin(who, (5, 6))) == (0.001, 20)
    draws = np.random.default_rng(1)
    values = [found[0] for _ in range(40) if (found := chance.same_ones(block, who, draws.random(140) < 0.3))]
    assert len(values) == 40
    assert stats.kstest(values, "uniform").pvalue > 0.01
    assert chance.same_ones(block, who, np.ones(140, bool)) is None
    nobody = np.zeros(0, np.int64)
    assert chance.same_ones(nobody, nobody, nobody > 0) is None


def test_of_long_records_a_part_tells() -> None:
    """A quarter of a million jobs: one client in a hundred is always out."""
    block, who = np.repeat(np.arange(500), 500), np.concatenate([np.arange(500) + 500 * (i % 4) for i in range(500)])
    draws = np.random.default_rng(3)
    noise = draws.random(len(who)) < 0.1
    found, biased = chance.same_ones(block, who, noise), chance.same_ones(block, who, noise | (who % 100 == 0))
    assert found is not None and found[0] > 0.02 and found[1] > 400
    assert biased is not None and biased[0] < 0.01


def test_who_is_asked_how_often_is_no_evidence() -> None:
    """Client 0 is asked in every round and fails as often as others do: that it fails most is not held against it."""
    draws = np.random.default_rng(2)
    who = np.concatenate([[0, *draws.choice(np.arange(1, 40), 3, replace=False)] for _ in range(200)])
    found = chance.same_ones(np.repeat(np.arange(200), 4), who, draws.random(800) < 0.3)
    assert found is not None and found[0] > 0.05


def test_left_out_by_equal_chances() -> None:
    expected, spread = chance.left_out(30, np.array([3, 5, 2]))
    draws = np.random.default_rng(0)
    seen = [
        30 - len(set().union(*(draws.choice(30, count, replace=False).tolist() for count in (3, 5, 2))))
        for _ in range(4000)
    ]
    assert expected == pytest.approx(np.mean(seen), abs=0.1)
    assert spread == pytest.approx(np.std(seen), abs=0.1)
