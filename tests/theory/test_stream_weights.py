"""Weights for data streams: oracles 1 to 8 and 14 of data-streams.md."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, generator, key
from turnout.theory import streams as theory
from turnout.theory.streams import BoolArray, optimal_historical_share, optimal_importance
from turnout_studies.stream_weights import equal_groups

NU = (0.05, 0.2, 0.5)
RATIO = 0.15
World = tuple[FloatArray, BoolArray]


def draws(number: int) -> np.random.Generator:
    return generator(key(number, "streams"))


def unequal(chance: np.random.Generator, clients: int = 12) -> World:
    """Shares of all sizes; at least one client of each kind."""
    fresh = chance.permutation(np.arange(clients) < chance.integers(1, clients))
    return chance.dirichlet(np.full(clients, 0.5)) + 1e-6, fresh


def bounds(p: FloatArray, n: FloatArray, fresh: BoolArray, ratio: float) -> FloatArray:
    """psi / c1 of the rows of p, as the formula says."""
    n = n / n.sum()
    return np.asarray(np.sqrt((p[:, fresh] ** 2).sum(1)) + ratio * np.sqrt((p**2 / n).sum(1)))


def gaps(nu: float) -> tuple[float, float]:
    """psi_hist - psi* and psi_unif - psi*, c1 = 1, in the world of the figures."""
    n, fresh = equal_groups(nu, 25, 25)
    best, *others = (
        theory.stream_bound(p, n, fresh, 0.3, 1, RATIO)
        for p in (optimal_importance(n, fresh, RATIO), theory.historical(n, fresh), theory.uniform(n, fresh))
    )
    return others[0] - best, others[1] - best


# -- O1: the published weights --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "nu", "share"),
    [
        *zip(3 * [0.150], NU, (0.1162, 0.4522, 0.9472), strict=True),
        *zip(3 * [0.284], NU, (0.0839, 0.3174, 0.6881), strict=True),
        (0.1, 0.2, 0.7333),
    ],
)
def test_o1_published_weights(ratio: float, nu: float, share: float) -> None:
    n, fresh = equal_groups(nu, 25, 25)
    assert optimal_importance(n, fresh, ratio)[~fresh].sum() == pytest.approx(share, abs=5e-5)
    assert optimal_historical_share(nu, ratio, 25) == pytest.approx(share, abs=5e-5)


def test_the_closed_form_is_the_solver() -> None:
    nu, ratio = np.meshgrid(np.linspace(0, 1, 11), [0.0, 0.01, 0.1, 0.3, 2.0, 50.0, math.inf])
    closed = optimal_historical_share(nu, ratio, 7)
    for place in np.ndindex(nu.shape):
        n, fresh = equal_groups(float(nu[place]), 3, 7)
        solved = optimal_importance(n, fresh, float(ratio[place]))
        assert solved[~fresh].sum() == pytest.approx(closed[place], abs=1e-12)
        assert np.ptp(solved[fresh]) == pytest.approx(0, abs=1e-15)


# -- O2: the threshold of Historical --------------------------------------------------------------------------


def test_o2_thresholds_by_number() -> None:
    found = [theory.historical_threshold(*equal_groups(nu, 25, 25)) for nu in NU]
    assert found == pytest.approx([0.0447, 0.0894, 0.1414], abs=5e-5)


@pytest.mark.parametrize("number", range(10))
def test_o2_historical_up_to_the_threshold_for_any_shares(number: int) -> None:
    n, fresh = unequal(draws(number))
    threshold = theory.historical_threshold(n, fresh)
    assert threshold == pytest.approx(math.sqrt(n[~fresh].sum() / n.sum() / fresh.sum()))
    for ratio in (0.0, threshold / 2, threshold * (1 - 1e-12)):
        found = optimal_importance(n, fresh, ratio)
        assert not found[fresh].any()
        np.testing.assert_allclose(found, theory.historical(n, fresh), rtol=1e-14)
    assert optimal_importance(n, fresh, threshold * 1.001)[fresh].min() > 0


def test_just_beyond_the_threshold_the_answer_is_close() -> None:
    n, fresh = unequal(draws(0))
    for excess in (1e-15, 1e-12, 1e-8):
        p = optimal_importance(n, fresh, theory.historical_threshold(n, fresh) * (1 + excess))
        np.testing.assert_allclose(p, theory.historical(n, fresh), atol=1e4 * excess)


# -- O3: the limit Uniform ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(5))
def test_o3_uniform_in_the_limit_and_more_historical_before(number: int) -> None:
    n, fresh = unequal(draws(number))
    n = n / n.sum()
    distances = [np.abs(optimal_importance(n, fresh, ratio) - n).sum() for ratio in (1.0, 10.0, 100.0, 1e4, 1e300)]
    assert (np.diff(distances) < 0).all()
    assert distances[-1] < 1e-15
    np.testing.assert_allclose(optimal_importance(n, fresh, math.inf), n, rtol=1e-14)
    for ratio in (0.1, 1.0, 10.0, 1e4):
        assert optimal_importance(n, fresh, ratio)[~fresh].sum() > n[~fresh].sum()


# -- O4: where Historical and Uniform are equally good --------------------------------------------------------


def test_o4_crossover() -> None:
    found = [theory.crossover_ratio(*equal_groups(nu, 25, 25)) for nu in NU]
    assert found == pytest.approx([0.0547, 0.1294, 0.2414], abs=5e-5)
    assert found == pytest.approx([math.sqrt(nu) * (1 + math.sqrt(nu)) / 5 for nu in NU])


@pytest.mark.parametrize("number", range(5))
def test_o4_the_two_bounds_meet_there_for_any_shares(number: int) -> None:
    n, fresh = unequal(draws(number))
    meet = theory.crossover_ratio(n, fresh)
    old, alike = theory.historical(n, fresh), theory.uniform(n, fresh)

    def ahead(ratio: float) -> float:
        return theory.stream_bound(alike, n, fresh, 0, 1, ratio) - theory.stream_bound(old, n, fresh, 0, 1, ratio)

    assert ahead(meet) == pytest.approx(0, abs=1e-12)
    assert ahead(0.99 * meet) > 0 > ahead(1.01 * meet)


def test_o4_bounds_of_the_two_and_the_share_from_which_historical_wins() -> None:
    for nu in (0.1, 0.24, 0.26, 0.6):
        n, fresh = equal_groups(nu, 25, 25)
        old = theory.stream_bound(theory.historical(n, fresh), n, fresh, 0.3, 2, 0.3)
        alike = theory.stream_bound(theory.uniform(n, fresh), n, fresh, 0.3, 2, 0.3)
        assert old == pytest.approx(0.3 + 0.3 / math.sqrt(nu))
        assert alike == pytest.approx(0.3 + 2 * (1 - nu) / 5 + 0.3)
        assert (old < alike) == (nu > 0.25)


# -- O5: how the optimum moves --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(3))
def test_o5_monotone(number: int) -> None:
    """With shares inside the groups that do not move."""
    old, new = draws(number).dirichlet(np.ones(8), 2)
    fresh = np.arange(16) >= 8
    found = np.array(
        [
            [
                optimal_importance(np.concatenate([nu * old, (1 - nu) * new]), fresh, ratio)[~fresh].sum()
                for ratio in np.geomspace(0.01, 10, 12)
            ]
            for nu in np.linspace(0.02, 0.98, 12)
        ]
    )
    assert (np.diff(found, axis=1) < 1e-12).all()
    assert (np.diff(found, axis=0) > -1e-12).all()


def test_o5_distances_of_the_two_from_the_optimum() -> None:
    assert [gaps(nu)[1] for nu in (0.05, 0.2, 0.5, 0.8)] == pytest.approx([0.0065, 0.0231, 0.0382, 0.0223], abs=5e-5)
    old, alike = np.array([gaps(nu) for nu in np.linspace(0.02, 0.98, 25)]).T
    assert (np.diff(old) < 1e-12).all()
    rising = np.diff(alike) > 0
    assert rising[0]
    assert not rising[-1]
    assert np.count_nonzero(np.diff(rising)) == 1


# -- O6, O7: convexity and optimality -------------------------------------------------------------------------


def test_o6_convex_and_homogeneous() -> None:
    chance = draws(6)
    n, fresh = unequal(chance)
    for one, other in chance.dirichlet(np.ones(12), (200, 2)):
        part = float(chance.uniform())
        mixed, *ends = (
            theory.stream_bound(p, n, fresh, 0.7, 1.3, 0.4) for p in (part * one + (1 - part) * other, one, other)
        )
        assert mixed <= part * ends[0] + (1 - part) * ends[1] + 1e-12
        scaled = theory.stream_bound(3 * one, n, fresh, 0.7, 1.3, 0.4)
        assert scaled - 0.7 == pytest.approx(3 * (ends[0] - 0.7))


@pytest.mark.parametrize("number", range(100))
def test_o7_no_other_weights_are_better(number: int) -> None:
    chance = draws(number)
    n, fresh = unequal(chance, int(chance.integers(2, 15)))
    ratio = float(10 ** chance.uniform(-2, 1.5))
    p = optimal_importance(n, fresh, ratio)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert (p >= 0).all()
    steps = chance.normal(size=(2000, len(n))) * 10 ** chance.uniform(-6, 0, (2000, 1))
    others = np.maximum(0, p + steps) + 1e-300
    others = np.concatenate([others / others.sum(1)[:, None], chance.dirichlet(np.full(len(n), 0.3), 500)])
    assert bounds(p[None], n, fresh, ratio)[0] <= bounds(others, n, fresh, ratio).min() + 1e-13
    assert bounds(p[None], n, fresh, ratio)[0] == pytest.approx(theory.stream_bound(p, n, fresh, 0, 1, ratio))


# -- O8, O14 --------------------------------------------------------------------------------------------------


def test_o8_effective_samples() -> None:
    counts, fresh = np.array([30.0, 10.0, 40.0, 120.0]), np.array([False, False, True, True])
    assert theory.effective_samples(theory.uniform(counts, fresh), counts) == pytest.approx(200)
    assert theory.effective_samples(theory.historical(counts, fresh), counts) == pytest.approx(40)
    assert theory.effective_samples([0, 1, 0]) == 1
    assert theory.effective_samples([1 / 200] * 200) == pytest.approx(200)
    for p in draws(8).dirichlet(np.ones(4), 200):
        assert theory.effective_samples(p, counts) < 200
        each = np.repeat(p / counts, counts.astype(int))
        assert theory.effective_samples(each) == pytest.approx(theory.effective_samples(p, counts))
    assert theory.effective_samples([0.5, 0.5], [10, 0]) == 0


def test_o14_the_distance_from_the_shares() -> None:
    """|p - n|_1 <= sqrt(sum p^2 / n - 1); the printed sqrt(sum p^2 / n) - 1 is no bound."""
    chance = draws(14)
    p, n = chance.dirichlet(np.full(5, 0.4), (2, 10_000)) + 1e-9
    p, n = p / p.sum(1)[:, None], n / n.sum(1)[:, None]
    spread = np.array([1 / theory.effective_samples(one, shares) for one, shares in zip(p, n, strict=True)])
    assert (np.abs(p - n).sum(1) <= np.sqrt(np.maximum(spread - 1, 0)) + 1e-7).all()
    printed = math.sqrt(1 / theory.effective_samples([1, 0], [0.5, 0.5])) - 1
    assert printed == pytest.approx(0.414, abs=5e-4)
    assert printed < np.abs(np.array([1, 0]) - 0.5).sum() == 1


# -- strategies and edges -------------------------------------------------------------------------------------


def test_strategies() -> None:
    n, fresh = [30, 10, 20, 60], [False, False, True, True]
    expected = {
        "uniform": [0.25, 1 / 12, 1 / 6, 0.5],
        "historical": [0.75, 0.25, 0, 0],
        "fresh": [0, 0, 0.25, 0.75],
        "grid_0.2": [0.15, 0.05, 0.2, 0.6],
        "grid_0.5": [0.375, 0.125, 0.125, 0.375],
        "grid_0.8": [0.6, 0.2, 0.05, 0.15],
    }
    assert set(theory.STRATEGIES) == set(expected)
    for name, p in expected.items():
        np.testing.assert_allclose(theory.STRATEGIES[name](n, fresh), p, atol=1e-15)
    for share in theory.GRID:
        assert theory.grouped(n, fresh, share)[:2].sum() == pytest.approx(share)


def test_noise_is_that_of_fresh_clients() -> None:
    fresh = [False, True, True]
    assert theory.noise_bound([0.2, 0.5, 0.3], fresh, 3.0) == pytest.approx(3 * math.sqrt(2 * (0.25 + 0.09)))
    assert theory.noise_bound([1.0, 0, 0], fresh, 3.0) == 0


def test_noise_bound_of_quadratics() -> None:
    """Gradients theta - z with z normal: one fresh client that stores one sample a round, where the bound is tight."""
    z = draws(3).normal(size=(2000, 50))
    p = np.array([0.4, 0.6])
    noise = np.square(p[1] * (z.mean(1)[:, None] - z)).mean()
    limit = theory.noise_bound(p, [False, True])
    assert noise == pytest.approx((1 - 1 / 50) * limit**2, rel=0.02)


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.35, 0.5, 30.0, math.inf])
def test_clients_without_samples_have_no_importance_and_change_nothing(ratio: float) -> None:
    n, fresh = np.array([3.0, 0, 5, 0, 2]), np.array([False, False, True, True, True])
    p = optimal_importance(n, fresh, ratio)
    np.testing.assert_allclose(p[n > 0], optimal_importance(n[n > 0], fresh[n > 0], ratio), atol=1e-15)
    assert p[n == 0].tolist() == [0, 0]
    for limit in (theory.historical_threshold, theory.crossover_ratio):
        assert limit(n, fresh) == pytest.approx(limit(n[n > 0], fresh[n > 0]))
    assert math.isfinite(theory.stream_bound(p, n, fresh, 0, 1, 1))
    assert theory.stream_bound([0, 1, 0, 0, 0], n, fresh, 0, 1, 1) == math.inf


def test_without_fresh_clients_every_sample_counts_alike() -> None:
    for ratio in (0.0, 0.3, math.inf):
        assert optimal_importance([1, 3], [False, False], ratio) == pytest.approx([0.25, 0.75])
        assert optimal_importance([1, 3, 0], [False, False, True], ratio) == pytest.approx([0.25, 0.75, 0])
    assert theory.historical_threshold([1, 3], [False, False]) == math.inf
    assert theory.crossover_ratio([1, 3], [False, False]) == math.inf


def test_without_historical_clients() -> None:
    """From all clients alike to all samples alike as the ratio grows."""
    n, fresh = np.array([0.1, 0.3, 0.6]), np.ones(3, np.bool_)
    np.testing.assert_allclose(optimal_importance(n, fresh, 0), 1 / 3, atol=1e-12)
    np.testing.assert_allclose(optimal_importance(n, fresh, 1e-9), 1 / 3, atol=1e-8)
    spreads = [np.ptp(optimal_importance(n, fresh, ratio)) for ratio in (0, 0.1, 1, 10, math.inf)]
    assert (np.diff(spreads) > 0).all()
    assert theory.historical_threshold(n, fresh) == 0
    assert optimal_historical_share(0.0, [0.0, 1.0], 3).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optimal_importance([1, 2], [False, True], -0.1), "ratio: -0.1 must be at least 0"),
        (lambda: optimal_importance([1, 2], [False, True], math.nan), "ratio: nan must be at least 0"),
        (lambda: optimal_importance([1, -2], [False, True], 1), "numbers of at least 0"),
        (lambda: optimal_importance([0, 0], [False, True], 1), "some of them above"),
        (lambda: optimal_importance([1, math.inf], [False, True], 1), "numbers of at least 0"),
        (lambda: optimal_importance([1, 2], [1], 1), "must be 2 times true or false"),
        (lambda: optimal_importance([1, 2], [True], 1), "must be 2 times true or false"),
        (lambda: theory.grouped([1, 2], [False, True], 1.5), "share: 1.5 must be from 0 to 1"),
        (lambda: theory.historical([1, 2], [True, True]), "historical clients are to count 1 and have no samples"),
        (lambda: theory.fresh_only([1, 0], [False, True]), "fresh clients are to count 1 and have no samples"),
        (lambda: optimal_historical_share(1.2, 1.0, 5), "nu: 1.2 must be from 0 to 1"),
        (lambda: optimal_historical_share(0.2, 1.0, 0), "fresh_clients: 0 must be above 0"),
    ],
)
def test_mistakes_are_sentences(call: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call()  # type: ignore[operator]
