"""Counter-based draws: reference integers, order-freeness, and the laws they claim to follow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from turnout.core import random

SEEDS = st.integers(-(2**70), 2**70)
MASK = (1 << 64) - 1


def unmix(z: int) -> int:
    """The inverse of SplitMix64's output function, so that a test can choose the bits it wants drawn."""
    z ^= z >> 31 ^ z >> 62
    z = z * pow(random._MUL2 & MASK, -1, 1 << 64) & MASK
    z ^= z >> 27 ^ z >> 54
    z = z * pow(random._MUL1 & MASK, -1, 1 << 64) & MASK
    return z ^ z >> 30 ^ z >> 60


def key_for(bits: int) -> np.ndarray:
    """The key whose first draw is `bits`."""
    return np.asarray(random._signed(unmix(bits) - random.GOLDEN), np.int64)


def test_bits_are_the_published_splitmix64_sequence() -> None:
    drawn = random.bits(np.int64(0), 3).view(np.uint64).tolist()
    assert drawn == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_numpy_and_torch_mix_to_the_same_integers(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert random.mix(array).tolist() == random.mix(torch.tensor(values)).tolist()


@given(SEEDS, st.integers(0, 10**9), st.permutations(range(12)), st.integers(1, 12))
def test_who_else_is_asked_changes_no_key(seed: int, number: int, order: list[int], count: int) -> None:
    everybody = random.key(seed, "shuffle", np.arange(12), number)
    some = np.array(order[:count])
    np.testing.assert_array_equal(random.key(seed, "shuffle", some, number), everybody[some])
    assert random.key(seed, "shuffle", int(some[0]), number) == everybody[some[0]]


def test_keys_differ_by_seed_purpose_client_number_and_their_order() -> None:
    keys = [
        int(random.key(*parts))
        for parts in ((1, "a", 2, 3), (2, "a", 2, 3), (1, "b", 2, 3), (1, "a", 3, 3), (1, "a", 2, 4), (1, "a", 3, 2))
    ]
    assert len(set(keys)) == len(keys)


@given(SEEDS, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_a_key_of_plain_numbers_is_that_of_arrays(seed: int, ids: list[int]) -> None:
    arrays = [np.array([number]) for number in ids]
    assert random.key(seed, "p", *ids) == random.key(seed, "p", *arrays)
    assert random.key(seed, "p", *map(np.int64, ids)) == random.key(seed, "p", *ids[:1], *arrays[1:])


def test_key_shape_follows_the_ids() -> None:
    assert random.key(0, "x").shape == random.key(0, "x", 5).shape == ()
    assert random.key(0, "x", np.arange(3)[:, None], np.arange(4)).shape == (3, 4)


def test_more_draws_extend_fewer() -> None:
    keys = random.key(3, "x", np.arange(5))
    np.testing.assert_array_equal(random.bits(keys, 9)[:, :4], random.bits(keys, 4))


@pytest.mark.parametrize("shape", [(100_000, 1), (1, 100_000)], ids=["over clients", "over draws"])
def test_uniform_is_uniform(shape: tuple[int, int]) -> None:
    clients, draws = shape
    values = random.uniform(random.key(11, "u", np.arange(clients)), draws).ravel()
    assert values.min() >= 0 and values.max() < 1
    assert stats.chisquare(np.bincount((values * 64).astype(int), minlength=64)).pvalue > 1e-3


def test_consecutive_clients_and_draws_are_uncorrelated() -> None:
    values = random.uniform(random.key(12, "u", np.arange(300)), 300) - 0.5
    for one, other in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1])):
        assert abs(12 * (one * other).mean()) < 5 / np.sqrt(one.size)


def test_normal_and_exponential_follow_their_laws() -> None:
    keys = random.key(5, "x", np.arange(20_000))
    normal, exponential = random.normal(keys, 2), random.exponential(keys, 2)
    assert stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(exponential.ravel(), "expon").pvalue > 1e-3
    assert abs(normal.mean()) < 0.025 and abs(normal.var() - 1) < 0.04
    assert abs(exponential.mean() - 1) < 0.025 and abs(exponential.var() - 1) < 0.1


@pytest.mark.parametrize("bits", [0, MASK], ids=["smallest", "largest"])
def test_extreme_bits_give_finite_draws(bits: int) -> None:
    extreme = key_for(bits)
    assert int(random.bits(extreme, 1)[0]) & MASK == bits
    assert 0 <= random.uniform(extreme, 1)[0] < 1
    assert np.isfinite(random.normal(extreme, 1)).all()
    assert np.isfinite(random.exponential(extreme, 1)).all()


@given(SEEDS, st.integers(1, 2**40))
def test_integers_stay_below_their_limit(seed: int, high: int) -> None:
    drawn = random.integers(random.key(seed, "i"), 50, high)
    assert drawn.min() >= 0 and drawn.max() < high
    assert random.integers(key_for(MASK), 1, high)[0] == high - 1


def test_integers_accept_a_limit_for_each_key() -> None:
    high = np.array([1, 3, 1000])
    drawn = random.integers(random.key(0, "i", np.arange(3)), 2000, high)
    assert (drawn.max(axis=1) < high).all()
    assert stats.chisquare(np.bincount(drawn[1])).pvalue > 1e-3


def test_permutations_are_valid_and_equally_likely() -> None:
    rows = random.permutation(random.key(8, "p", np.arange(12_000)), 4)
    np.testing.assert_array_equal(np.sort(rows, axis=1), np.tile(np.arange(4), (12_000, 1)))
    counts = np.unique(rows, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("size", "population"), [(2, 12), (3, 6)], ids=["few of many", "half"])
def test_all_subsets_are_equally_likely(size: int, population: int) -> None:
    keys = random.key(9, "s", np.arange(6000))
    drawn = [tuple(sorted(random.subset(one, size, population).tolist())) for one in keys]
    possible = list(itertools.combinations(range(population), size))
    counts = [drawn.count(subset) for subset in possible]
    assert sum(counts) == len(keys)
    assert stats.chisquare(counts).pvalue > 1e-3


@given(SEEDS, st.integers(0, 300), st.integers(1, 300))
def test_a_subset_has_distinct_members(seed: int, size: int, population: int) -> None:
    size = min(size, population)
    drawn = random.subset(random.key(seed, "s"), size, population)
    assert len(drawn) == len(np.unique(drawn)) == size
    assert size == 0 or (drawn.min() >= 0 and drawn.max() < population)


@given(SEEDS, st.integers(0, 100), st.integers(1, 300), st.integers(1, 2000))
def test_subsets_drawn_ahead_are_the_same(seed: int, number: int, size: int, population: int) -> None:
    size = min(size, population)
    alone = random.subset(random.key(seed, "s", number), min(2 * size + 16, population), population)[:size]
    np.testing.assert_array_equal(random.nth_subset(seed, "s", number, size, population), alone)


def test_large_subsets_are_not_drawn_ahead() -> None:
    size = random._SMALL + 1
    alone = random.subset(random.key(1, "s", 5), 2 * size + 16, 100_000)[:size]
    before = random._subsets.cache_info().currsize
    np.testing.assert_array_equal(random.nth_subset(1, "s", 5, size, 100_000), alone)
    assert random._subsets.cache_info().currsize == before


def test_a_subset_is_the_callers_own() -> None:
    first = random.nth_subset(1, "s", 0, 5, 100)
    kept = first.copy()
    first[:] = -1
    np.testing.assert_array_equal(random.nth_subset(1, "s", 0, 5, 100), kept)


def test_a_generator_is_a_function_of_its_key() -> None:
    one, same, other = (random.generator(random.key(1, "g", i)).gamma(2.0, size=5) for i in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()
