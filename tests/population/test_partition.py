"""Partitions: what every one of them promises (oracle O6 of the heterogeneity spec), then each recipe."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.data import partition
from turnout.data.dataset import Dataset

LABELS = np.arange(2000) * 7919 % 10  # ten classes of 200
UNEVEN = np.repeat(np.arange(5), [300, 40, 7, 153, 500])
Deal = Callable[..., Ragged]

EXACT: dict[str, Deal] = {  # every sample used exactly once
    "iid": partition.iid,
    "gaussian_sizes": partition.gaussian_sizes,
    "shards": partition.shards,
    "one_class": partition.one_class,
    "dirichlet": partial(partition.dirichlet, alpha=0.5),
}
ALL: dict[str, Deal] = EXACT | {
    "one_class given": partial(partition.one_class, samples=30),
    "dirichlet_equal": partial(partition.dirichlet_equal, alpha=0.5),
    "dirichlet_equal once": partial(partition.dirichlet_equal, alpha=0.5, replace=False),
}


def dataset(
    targets: np.ndarray = LABELS, test: np.ndarray | None = LABELS[:1000], classes: int | None = 10, **more: object
) -> Dataset:
    return Dataset(
        "toy",
        torch.zeros(len(targets), 1),
        torch.tensor(targets),
        classes,
        None if test is None else torch.zeros(len(test), 1),
        None if test is None else torch.tensor(test),
        **more,  # type: ignore[arg-type]
    )


def histograms(rows: Ragged, labels: np.ndarray = LABELS, classes: int = 10) -> np.ndarray:
    """`[N, C]` samples of every class that every client holds."""
    owner = np.repeat(np.arange(len(rows)), rows.counts)
    return np.bincount(owner * classes + labels[rows.values], minlength=len(rows) * classes).reshape(-1, classes)


def divergence(rows: Ragged) -> float:
    """Jensen-Shannon divergence of the clients' label distributions: entropy of the mean less mean of the entropies."""
    shares = histograms(rows) / np.maximum(rows.counts, 1)[:, None]
    return float(stats.entropy(shares.mean(axis=0)) - stats.entropy(shares, axis=1).mean())


# what all of them promise


@pytest.mark.parametrize("name", EXACT)
def test_every_sample_is_used_exactly_once(name: str) -> None:
    for labels in (LABELS, UNEVEN):
        rows = EXACT[name](labels, 15, 3)
        assert len(rows) == 15 and rows.counts.min() >= 1
        assert np.sort(rows.values).tolist() == list(range(len(labels)))


@pytest.mark.parametrize("name", ["one_class given", "dirichlet_equal once"])
def test_every_sample_is_used_at_most_once(name: str) -> None:
    rows = ALL[name](LABELS, 20, 3)
    assert len(np.unique(rows.values)) == len(rows.values)
    assert rows.values.min() >= 0 and rows.values.max() < len(LABELS)


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_split_and_another_seed_another(name: str) -> None:
    one, same, other = (ALL[name](LABELS, 20, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.values, same.values)
    np.testing.assert_array_equal(one.offsets, same.offsets)
    assert one.values.tolist() != other.values.tolist()


@pytest.mark.parametrize("name", ALL)
def test_a_dataset_and_its_bare_labels_are_dealt_alike(name: str) -> None:
    np.testing.assert_array_equal(ALL[name](dataset(), 20, 1).values, ALL[name](LABELS, 20, 1).values)


@pytest.mark.parametrize("name", EXACT)
def test_more_clients_than_samples_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"11 clients|22 shards"):
        EXACT[name](LABELS[:10], 11, 0)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"iid", "gaussian_sizes"}))
def test_missing_labels_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="toy has no class labels"):
        ALL[name](dataset(classes=None), 20, 0)


def test_labels_outside_the_declared_classes_are_refused() -> None:
    with pytest.raises(UserError, match="0 to 4"):
        partition.shards(dataset(classes=5), 20, 0)
    with pytest.raises(UserError, match="labels must be"):
        partition.shards(np.array([0, 1, -1]), 1, 0)


def test_the_table_names_every_partition() -> None:
    assert set(partition.PARTITIONS) == {
        *("iid", "gaussian_sizes", "natural", "one_class", "shards", "dirichlet", "dirichlet_equal", "pachinko")
    }
    assert all(partition.PARTITIONS[name] is getattr(partition, name) for name in partition.PARTITIONS)


# iid, sizes, groups


@given(st.integers(1, 60), st.integers(0, 200))
def test_iid_sizes_differ_by_at_most_one(clients: int, extra: int) -> None:
    counts = partition.iid(np.zeros(clients + extra, int), clients, 0).counts
    assert counts.sum() == clients + extra and np.ptp(counts) <= 1


def test_iid_clients_have_the_overall_labels() -> None:
    assert stats.chi2_contingency(histograms(partition.iid(LABELS, 10, 2))).pvalue > 1e-3


def test_gaussian_sizes_have_the_asked_spread_and_sum() -> None:
    sizes = partition.gaussian_sizes(np.zeros(200_000, int), 1000, 4).counts
    assert sizes.sum() == 200_000 and sizes.min() >= 1
    assert abs(sizes.std() / 200 - 0.3) < 0.03
    assert stats.kstest((sizes - 200) / 60, "norm").pvalue > 1e-3
    assert partition.gaussian_sizes(np.zeros(70, int), 7, 0, relative_sd=0).counts.tolist() == [10] * 7


@given(st.integers(1, 40), st.integers(0, 40), st.floats(0, 20), st.integers(0, 99))
def test_gaussian_sizes_leave_nobody_empty(clients: int, extra: int, spread: float, seed: int) -> None:
    counts = partition.gaussian_sizes(np.zeros(clients + extra, int), clients, seed, relative_sd=spread).counts
    assert counts.min() >= 1 and counts.sum() == clients + extra


def test_natural_groups_are_kept_and_the_first_are_taken() -> None:
    groups = np.array([2, 0, 1, 0, 2, 2])
    assert [partition.natural(groups).row(i).tolist() for i in range(3)] == [[1, 3], [2], [0, 4, 5]]
    assert [partition.natural(groups, 2).row(i).tolist() for i in range(2)] == [[1, 3], [2]]
    data = dataset(LABELS[:6], LABELS[:3], groups=groups, test_groups=np.array([2, 2, 0]))
    assert partition.natural(data, 3, 0).counts.tolist() == [2, 1, 3]
    assert partition.natural(data, 3, 0, part="test").counts.tolist() == [1, 0, 2]


def test_natural_says_what_is_missing() -> None:
    with pytest.raises(UserError, match="toy has no groups"):
        partition.natural(dataset(), 3, 0)
    with pytest.raises(UserError, match="test set of dataset toy has no groups"):
        partition.natural(dataset(groups=LABELS), 3, 0, part="test")
    with pytest.raises(UserError, match="4 clients asked, the data has 3 groups"):
        partition.natural([0, 1, 2], 4)
    with pytest.raises(UserError, match="clients 1 have no sample"):
        partition.natural([0, 2])


# classes


def test_one_class_a_client_in_turn() -> None:
    rows = partition.one_class(LABELS, 25, 0)
    np.testing.assert_array_equal(histograms(rows).argmax(axis=1), np.arange(25) % 10)
    assert (np.count_nonzero(histograms(rows), axis=1) == 1).all()


def test_the_one_digit_benchmark() -> None:
    data = dataset(np.repeat(np.arange(10), 600), np.repeat(np.arange(10), 89))
    deal = partial(partition.one_class, data, 100, 0, clients_per_class=10, samples=50, test_samples=8)
    train, test = deal(), deal(part="test")
    assert set(train.counts) == {50} and set(test.counts) == {8}
    np.testing.assert_array_equal(histograms(train, data.targets.numpy()).argmax(axis=1), np.arange(100) // 10)
    assert data.test_targets is not None
    np.testing.assert_array_equal(histograms(test, data.test_targets.numpy()).argmax(axis=1), np.arange(100) // 10)
    with pytest.raises(UserError, match=r"10 samples a client asked; class 0 has 89 .* 1 to 8"):
        partition.one_class(data, 100, 0, part="test", clients_per_class=10, test_samples=10)


def test_one_class_refuses_what_cannot_be() -> None:
    with pytest.raises(UserError, match="10 classes of 3 clients_per_class are not 20 clients"):
        partition.one_class(LABELS, 20, 0, clients_per_class=3)
    with pytest.raises(UserError, match="clients 3, 7 have no sample of their class"):
        partition.one_class([0, 0, 0, 0, 0, 0, 0, 1, 1], 8, 0)
    with pytest.raises(UserError, match=r"one_class\.samples: 0 must be at least 1"):
        partition.one_class(LABELS, 10, 0, samples=0)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(5, 40), st.integers(0, 9))
def test_shards_give_at_most_that_many_classes(classes_per_client: int, clients: int, seed: int) -> None:
    rows = partition.shards(UNEVEN, clients, seed, classes_per_client=classes_per_client)
    assert np.count_nonzero(histograms(rows, UNEVEN, 5), axis=1).max() <= classes_per_client
    assert rows.counts.min() >= 1
    assert np.sort(rows.values).tolist() == list(range(len(UNEVEN)))


def test_shards_of_balanced_classes_are_equal() -> None:
    assert set(partition.shards(LABELS, 50, 1, classes_per_client=2).counts) == {40}


def test_too_few_or_too_many_shards_are_refused() -> None:
    for clients, classes_per_client in ((4, 2), (1001, 2)):
        with pytest.raises(UserError, match=r"from 10 \(one a class\) to 2000"):
            partition.shards(LABELS, clients, 0, classes_per_client=classes_per_client)


# Dirichlet


@pytest.mark.parametrize("alpha", [0.05, 1.0, 30.0])
def test_dirichlet_draws_have_the_moments_of_the_law(alpha: float) -> None:
    pi = random.dirichlet(random.key(0, "x", np.arange(20_000)), 5, alpha)
    np.testing.assert_allclose(pi.sum(axis=1), 1, rtol=1e-12)
    variance = (1 / 5) * (4 / 5) / (5 * alpha + 1)
    np.testing.assert_allclose(pi.mean(axis=0), 1 / 5, atol=5 * np.sqrt(variance / 20_000))
    np.testing.assert_allclose(pi.var(axis=0), variance, rtol=0.05)
    assert stats.kstest(pi[:2000, 0], stats.beta(alpha, 4 * alpha).cdf).pvalue > 1e-3


@pytest.mark.parametrize("deal", [partition.dirichlet, partition.dirichlet_equal])
def test_a_large_alpha_gives_uniform_labels(deal: Deal) -> None:
    assert np.abs(histograms(deal(LABELS, 10, 0, alpha=1e6)) - 20).max() <= 10


def test_a_tiny_alpha_gives_single_labels() -> None:
    equal = histograms(partition.dirichlet_equal(LABELS, 50, 0, alpha=1e-5, sizes=100))
    assert equal.max(axis=1).min() >= 99
    assert (equal.argmax(axis=1)[:, None] == np.arange(10)).any(axis=0).all()  # not the same label for everybody
    classic = histograms(partition.dirichlet(LABELS, 50, 0, alpha=1e-5, min_samples=0))
    assert classic.max(axis=0).min() >= 199  # a class belongs to one client
    assert 5 <= np.count_nonzero(classic.sum(axis=1)) <= 10


@pytest.mark.parametrize("deal", [partition.dirichlet, partition.dirichlet_equal])
def test_label_divergence_falls_as_alpha_grows(deal: Deal) -> None:
    divergences = [
        np.mean([divergence(deal(LABELS, 20, seed, alpha=alpha)) for seed in range(3)]) for alpha in (0.1, 1, 10, 1000)
    ]
    assert all(before > 1.5 * after for before, after in itertools.pairwise(divergences))


def test_dirichlet_cuts_every_class_at_its_cumulated_shares() -> None:
    shares = random.dirichlet(random.key(4, "partition share", np.arange(5), 0), 6, 1.0)
    supply = np.bincount(UNEVEN)
    edges = np.floor(np.cumsum(shares, axis=1) * supply[:, None])
    edges[:, -1] = supply
    held = histograms(partition.dirichlet(UNEVEN, 6, 4, alpha=1.0), UNEVEN, 5)
    np.testing.assert_array_equal(held.T, np.diff(edges, prepend=0, axis=1))


def test_dirichlet_shares_follow_the_law() -> None:
    """With one class the sizes are n Dir_N(alpha): check the variance over seeds."""
    shares = np.concatenate(
        [partition.dirichlet(np.zeros(5000, int), 8, s, alpha=2.0).counts / 5000 for s in range(300)]
    )
    assert abs(shares.var() - (1 / 8) * (7 / 8) / 17) < 0.0007


def test_dirichlet_redraws_and_finally_names_the_empty_clients() -> None:
    with pytest.raises(UserError, match=r"clients \d+.*fewer than 1 samples after 3 draws") as refusal:
        partition.dirichlet(LABELS, 50, 0, alpha=0.01, attempts=3)
    empty = np.flatnonzero(partition.dirichlet(LABELS, 50, 0, alpha=0.01, min_samples=0).counts == 0)
    assert empty.size > 5 and "more" in str(refusal.value)
    first = partition.dirichlet(LABELS, 20, 0, alpha=0.3, min_samples=0)
    least = int(first.counts.min()) + 10
    redrawn = partition.dirichlet(LABELS, 20, 0, alpha=0.3, min_samples=least, attempts=200)
    assert redrawn.counts.min() >= least


def test_label_groups_are_dealt_like_classes() -> None:
    """federated-em.md, ambiguity 6: three groups of the ten labels, each dealt by one draw of Dir_N(alpha)."""
    held = histograms(partition.dirichlet(LABELS, 30, 2, alpha=0.4, label_groups=3))
    place = random.permutation(random.key(2, "partition label group"), 10)
    groups = [np.flatnonzero(place * 3 // 10 == g) for g in range(3)]
    assert sorted(len(group) for group in groups) == [3, 3, 4]
    expected = random.dirichlet(random.key(2, "partition share", np.arange(3), 0), 30, 0.4)
    for group, shares in zip(groups, expected, strict=True):
        np.testing.assert_allclose(held[:, group].sum(1), shares * 200 * len(group), atol=1)
    alone = partition.dirichlet(LABELS, 30, 2, alpha=0.4)
    assert alone.values.tolist() != partition.dirichlet(LABELS, 30, 2, alpha=0.4, label_groups=10).values.tolist()
    for count, words in ((0, "label_groups: 0 must be at least 1"), (11, "label_groups is 11; allowed: 1 to 10")):
        with pytest.raises(UserError, match=words):
            partition.dirichlet(LABELS, 30, 2, alpha=0.4, label_groups=count)


# Pachinko

FAMILIES = np.arange(10) // 2  # five superclasses of two


def test_pachinko_deals_no_sample_twice_and_to_everybody_as_many() -> None:
    rows = partition.pachinko(LABELS, 20, 3, superclasses=FAMILIES)
    assert set(rows.counts) == {100}  # all there are: every class runs out on the way
    assert np.sort(rows.values).tolist() == list(range(2000))
    few = partition.pachinko(LABELS, 20, 3, superclasses=FAMILIES, samples=30)
    assert set(few.counts) == {30} and len(np.unique(few.values)) == 600
    again = partition.pachinko(LABELS, 20, 3, superclasses=FAMILIES, samples=30)
    np.testing.assert_array_equal(few.values, again.values)
    assert partition.pachinko(LABELS, 20, 4, superclasses=FAMILIES, samples=30).values.tolist() != few.values.tolist()


def test_pachinko_mixes_superclasses_by_alpha_and_classes_by_beta() -> None:
    """With plenty of every class: E[sum_s share_s^2] of Dir_S(alpha) is (alpha + 1) / (S alpha + 1), less the noise of
    drawing n samples; likewise of the two classes of a superclass with beta."""
    labels, drawn = np.repeat(np.arange(10), 40_000), 400
    held = histograms(
        partition.pachinko(labels, 400, 1, alpha=0.4, beta=2.0, superclasses=FAMILIES, samples=drawn), labels
    ).astype(float)
    coarse = held @ np.eye(5)[FAMILIES]
    concentration = ((coarse * (coarse - 1)).sum(1) / (drawn * (drawn - 1))).mean()
    assert abs(concentration - 1.4 / 3.0) < 0.03
    pairs = held.reshape(400, 5, 2)
    size = pairs.sum(2)
    inside = ((pairs * (pairs - 1)).sum(2) / np.maximum(size * (size - 1), 1))[size > 20].mean()
    assert abs(inside - 3.0 / 5.0) < 0.02


def test_pachinko_leaves_out_what_is_used_up_and_keeps_the_mixture_of_superclasses() -> None:
    labels = np.repeat(np.arange(4), [5, 5000, 4000, 4000])
    held = histograms(partition.pachinko(labels, 1, 5, alpha=2.0, superclasses=[0, 0, 1, 1], samples=4000), labels, 4)
    coarse = random.dirichlet(random.key(5, "partition superclass", np.arange(1)), 2, 2.0)[0]
    assert held[0, 0] == 5
    assert held[0, :2].sum() / 4000 == pytest.approx(coarse[0], abs=0.03)
    everything = partition.pachinko(labels, 1, 5, superclasses=[0, 0, 1, 1], samples=13_005)
    assert histograms(everything, labels, 4).tolist() == [[5, 5000, 4000, 4000]]


def test_pachinko_knows_the_superclasses_of_a_dataset_that_has_them() -> None:
    data = dataset(facts={"coarse_of_fine": FAMILIES})
    np.testing.assert_array_equal(
        partition.pachinko(data, 20, 3).values, partition.pachinko(LABELS, 20, 3, superclasses=FAMILIES).values
    )
    with pytest.raises(UserError, match="superclasses are not known"):
        partition.pachinko(dataset(), 20, 3)
    with pytest.raises(UserError, match="must be 10 numbers"):
        partition.pachinko(LABELS, 20, 3, superclasses=[0, 1])
    with pytest.raises(UserError, match="101 samples for each of 20 clients; 2000 exist"):
        partition.pachinko(LABELS, 20, 3, superclasses=FAMILIES, samples=101)
    with pytest.raises(UserError, match=r"pachinko\.beta: 0"):
        partition.pachinko(LABELS, 20, 3, superclasses=FAMILIES, beta=0)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, np.nan, np.inf])
def test_alpha_must_be_positive(alpha: float) -> None:
    with pytest.raises(UserError, match="alpha"):
        partition.dirichlet(LABELS, 10, 0, alpha=alpha)
    if alpha != 0:
        with pytest.raises(UserError, match="alpha"):
            partition.dirichlet_equal(LABELS, 10, 0, alpha=alpha)


def test_dirichlet_equal_is_the_printed_recipe() -> None:
    """Class counts floor(pi n_i), the remainder to the last class, whatever the pool."""
    sizes = np.arange(10, 40)
    rows = partition.dirichlet_equal(LABELS, 30, 2, alpha=0.7, sizes=sizes)
    pi = random.dirichlet(random.key(2, "partition mixture", np.arange(30)), 10, 0.7)
    held = histograms(rows)
    np.testing.assert_array_equal(rows.counts, sizes)
    np.testing.assert_array_equal(held[:, :-1], np.floor(pi * sizes[:, None])[:, :-1])
    assert set(partition.dirichlet_equal(LABELS, 30, 2, alpha=0.7).counts) == {2000 // 30}


def test_dirichlet_equal_deals_the_test_set_with_the_same_mixture() -> None:
    train = partition.dirichlet_equal(dataset(), 10, 3, alpha=0.1)
    test = partition.dirichlet_equal(dataset(), 10, 3, alpha=0.1, part="test")
    assert set(train.counts) == {200} and set(test.counts) == {40}
    assert test.values.max() < 1000
    assert np.abs(histograms(train) / 200 - histograms(test, LABELS[:1000]) / 40).max() <= 9 / 40
    bare = partition.dirichlet_equal(LABELS[:1000], 10, 3, alpha=0.1, sizes=40)
    np.testing.assert_array_equal(histograms(bare, LABELS[:1000]), histograms(test, LABELS[:1000]))
    with pytest.raises(UserError, match="no central test set"):
        partition.dirichlet_equal(dataset(test=None), 10, 3, alpha=0.1, part="test")
    with pytest.raises(UserError, match="needs a Dataset"):
        partition.dirichlet_equal(LABELS, 10, 3, alpha=0.1, part="test")


def test_dirichlet_equal_draws_with_replacement_and_uniformly() -> None:
    rows = partition.dirichlet_equal(np.zeros(50, int), 20, 0, alpha=1.0, sizes=1000)
    assert stats.chisquare(np.bincount(rows.values, minlength=50)).pvalue > 1e-3
    assert len(np.unique(rows.row(0))) == 50
    more = partition.dirichlet_equal(np.zeros(50, int), 40, 0, alpha=1.0, sizes=1000)
    np.testing.assert_array_equal(more.rows(np.arange(20)).values, rows.values)  # later clients change nobody's draw


def test_dirichlet_equal_without_replacement_keeps_the_sizes_and_most_of_the_mixture() -> None:
    rows = partition.dirichlet_equal(LABELS, 20, 1, alpha=0.3, replace=False)
    wanted = histograms(partition.dirichlet_equal(LABELS, 20, 1, alpha=0.3))
    assert set(rows.counts) == {100}
    demand = wanted.sum(axis=0)
    assert demand.max() > 200  # some class runs out
    assert np.minimum(wanted, histograms(rows)).sum() >= np.minimum(demand, 200).sum()
    with pytest.raises(UserError, match="2020 samples asked without replacement, 2000 exist"):
        partition.dirichlet_equal(LABELS, 20, 1, alpha=0.3, sizes=101, replace=False)


def test_dirichlet_equal_with_alpha_zero_is_one_class_in_turn() -> None:
    held = histograms(partition.dirichlet_equal(LABELS, 25, 0, alpha=0, sizes=7))
    np.testing.assert_array_equal(held, 7 * np.eye(10, dtype=int)[np.arange(25) % 10])


def test_dirichlet_equal_refuses_impossible_sizes() -> None:
    with pytest.raises(UserError, match="clients 0, 1, 2, 3, 4 and 15 more have no sample"):
        partition.dirichlet_equal(LABELS[:10], 20, 0, alpha=1.0)
    with pytest.raises(UserError, match="3 sizes for 20 clients"):
        partition.dirichlet_equal(LABELS, 20, 0, alpha=1.0, sizes=[1, 2, 3])
    with pytest.raises(UserError, match="no sample of class 3 exists"):
        partition.dirichlet_equal(np.array([0, 1, 2, 4]), 2, 0, alpha=100.0, sizes=50)
    with pytest.raises(UserError, match="clients: 0 must be at least 1"):
        partition.dirichlet_equal(LABELS, 0, 0, alpha=1.0)


# train and test


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=12),
    st.floats(0, 0.99),
    st.integers(0, 99),
)
def test_split_keeps_every_sample_once_and_somebody_to_train_on(sizes: list[int], fraction: float, seed: int) -> None:
    rows = Ragged(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.arange(sum(sizes))[::-1].copy())
    train, test = partition.split(rows, fraction, seed)
    for i, size in enumerate(sizes):
        assert sorted([*train.row(i), *test.row(i)]) == sorted(rows.row(i))
        assert len(test.row(i)) == min(int(fraction * size + 0.5), max(size - 1, 0))
        assert [v for v in rows.row(i) if v in train.row(i)] == train.row(i).tolist()  # the order is kept


def test_split_of_a_client_depends_on_that_client_alone() -> None:
    rows = partition.iid(LABELS, 20, 0)
    train, _ = partition.split(rows, 0.25, 9)
    others_changed = Ragged.from_rows([*(rows.row(i)[: 5 + i] for i in range(7)), rows.row(7)])
    np.testing.assert_array_equal(partition.split(others_changed, 0.25, 9)[0].row(7), train.row(7))
    assert partition.split(rows, 0.25, 10)[0].row(7).tolist() != train.row(7).tolist()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.floats(0, 0.99))
def test_split_never_puts_copies_of_a_sample_on_both_sides(row: list[int], fraction: float) -> None:
    train, test = partition.split(Ragged.from_rows([[0, 1, 2, 3], row]), fraction, 0)
    assert not set(train.row(1)) & set(test.row(1))
    assert len(train.row(1)) >= 1 and sorted([*train.row(1), *test.row(1)]) == sorted(row)
    assert len(test.row(1)) <= fraction * len(row) + 0.5


@pytest.mark.parametrize("fraction", [-0.1, 1.0, np.nan])
def test_split_needs_a_fraction(fraction: float) -> None:
    with pytest.raises(UserError, match="test_fraction"):
        partition.split(partition.iid(LABELS, 2, 0), fraction, 0)
