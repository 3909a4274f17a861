"""How neighbours vote and how much: oracles 1 to 8, 10 and 16 of the spec of kNN-Per, and its edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.func import vmap

from turnout.core.errors import UserError
from turnout.core.random import key, normal, permutation, uniform
from turnout.local.neighbours import GRID, KERNELS, KNN, SMALLEST, likeliest, mixed, nearest, score

KEYS, LABELS, QUERY = torch.tensor([[0.0], [1], [3]]), torch.tensor([0, 1, 1]), torch.tensor([[0.25]])


def points(number: int, count: int, size: int = 4) -> Tensor:
    return torch.from_numpy(normal(key(0, "test points", number), count * size)).reshape(count, size).float()


def labels(number: int, count: int, classes: int = 3) -> Tensor:
    return torch.from_numpy((uniform(key(0, "test labels", number), count) * classes).astype(np.int64))


def distributions(number: int, count: int, classes: int = 3) -> Tensor:
    return (2 * points(number, count, classes)).softmax(1)


def said(knn: KNN, keys: Tensor = KEYS, values: Tensor = LABELS, queries: Tensor = QUERY) -> list[float]:
    return knn.local(keys, values, queries, 2)[0].tolist()


# -- the vote -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, [1, 0]), (2, [0.622459, 0.377541]), (3, [0.592201, 0.407799]), (10, [0.592201, 0.407799])],
)
def test_golden_values(k: int, expected: list[float]) -> None:
    """Oracle 3; more neighbours than are stored are all of them."""
    assert said(KNN(k)) == pytest.approx(expected, abs=1e-6)


def test_golden_values_of_the_gaussian() -> None:
    assert said(KNN(3, "gaussian")) == pytest.approx([0.622245, 0.377755], abs=1e-6)
    wide, twice = torch.cat([KEYS, KEYS], 1), torch.cat([QUERY, QUERY], 1)  # d^2 and p double
    assert said(KNN(3, "gaussian"), wide, queries=twice) == pytest.approx([0.622245, 0.377755], abs=1e-6)


def test_a_small_scale_is_the_nearest_alone_and_a_large_one_counts_heads() -> None:
    """Oracle 4."""
    assert said(KNN(3, scale=1e-3)) == pytest.approx([1, 0])
    assert said(KNN(3, scale=1e6)) == pytest.approx([1 / 3, 2 / 3], abs=1e-5)
    assert said(KNN(3, "uniform")) == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("kernel", KERNELS)
def test_neither_unit_nor_rotation_nor_translation_matters(kernel: str) -> None:
    """Oracle 6."""
    keys, values, queries = points(1, 60).double(), labels(1, 60), points(2, 20).double()
    expected = KNN(7, kernel, 2.0).local(keys, values, queries, 3)
    scale = 2.0 * (25 if kernel == "gaussian" else 5)
    turn, _ = torch.linalg.qr(points(3, 4).double())
    for knn, moved in (
        (KNN(7, kernel, scale), lambda z: 5 * z),
        (KNN(7, kernel, 2.0), lambda z: z @ turn),
        (KNN(7, kernel, 2.0), lambda z: z + torch.tensor([30.0, -7, 0, 4])),
    ):
        torch.testing.assert_close(knn.local(moved(keys), values, moved(queries), 3), expected, rtol=1e-6, atol=1e-6)


def test_insertion_order_does_not_matter_without_ties() -> None:
    """Oracle 7."""
    keys, values, queries = points(1, 60), labels(1, 60), points(2, 20)
    order = permutation(key(0, "test order"), 60)
    torch.testing.assert_close(
        KNN(7).local(keys[order], values[order], queries, 3), KNN(7).local(keys, values, queries, 3)
    )


def test_a_stored_sample_is_found_for_certain() -> None:
    """Oracle 8."""
    keys, values = points(1, 60) + 100, labels(1, 60)
    assert torch.equal(KNN(1).local(keys, values, keys, 3), torch.eye(3)[values])
    distances, positions = nearest(keys, keys, 1)
    assert torch.equal(positions[:, 0], torch.arange(60))
    assert not distances.any()


def test_far_neighbours_of_long_keys_do_not_underflow() -> None:
    """3.3: with p = 1280, exp(-d) is 0 / 0."""
    keys = torch.zeros(3, 1280)
    keys[:, 0] = torch.tensor([1000.0, 1000.5, 3000.0])
    assert said(KNN(), keys, queries=torch.zeros(1, 1280)) == pytest.approx([0.622459, 0.377541], abs=1e-5)
    for kernel in KERNELS:
        assert np.isfinite(said(KNN(3, kernel, 1e-30), keys, queries=torch.zeros(1, 1280))).all()


def test_equal_distances_vote_alike_and_same_keys_share() -> None:
    keys = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    for kernel in KERNELS:
        assert said(KNN(4, kernel), keys, torch.tensor([0, 1, 1, 1]), torch.zeros(1, 2)) == [0.25, 0.75]
        assert said(KNN(2, kernel), keys[[0, 0]], torch.tensor([0, 1]), keys[:1]) == [0.5, 0.5]


def test_a_class_that_is_not_stored_has_no_mass() -> None:
    assert KNN(3).local(KEYS, LABELS, QUERY, 4)[0, 2:].tolist() == [0, 0]


def test_a_regression_is_the_weighted_mean() -> None:
    values = torch.tensor([[1.0, 10], [2, 20], [4, 40]])
    weights = torch.exp(-torch.tensor([0.25, 0.75, 2.75]))
    expected = (weights @ values) / weights.sum()
    torch.testing.assert_close(KNN(3).local(KEYS, values, QUERY, 2)[0], expected)
    torch.testing.assert_close(KNN(3).local(KEYS, values[:, 0], QUERY, 1)[0], expected[:1])


def test_what_is_not_stored_is_never_asked() -> None:
    stored = torch.tensor([False, True, False])
    assert KNN(3).local(KEYS, LABELS, QUERY, 2, stored).tolist() == [[0, 1]]
    nobody = torch.zeros(3, dtype=torch.bool)
    for kernel in KERNELS:
        assert KNN(3, kernel).local(KEYS, LABELS, QUERY, 2, nobody).tolist() == [[0, 0]]
        assert KNN(3, kernel).local(KEYS[:0], LABELS[:0], QUERY, 2).tolist() == [[0, 0]]


def test_many_clients_at_once_are_each_alone() -> None:
    keys, values, queries = (
        torch.stack([part(7 * i, count) for i in range(5)])
        for part, count in ((points, 30), (labels, 30), (lambda n, c: points(n + 1, c), 300))
    )
    stored = torch.from_numpy(uniform(key(0, "test stored", np.arange(5)), 30)) > 0.3
    knn = KNN(5)
    together = vmap(lambda k, v, q, s: knn.local(k, v, q, 3, s))(keys, values, queries, stored)
    for i in range(5):
        torch.testing.assert_close(together[i], knn.local(keys[i], values[i], queries[i], 3, stored[i]))


# -- the search -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 50])
@pytest.mark.parametrize("count", [3, 200])
def test_the_search_agrees_with_brute_force(size: int, count: int) -> None:
    """Oracle 5; clusters far apart and narrow, where float32 products would have lost the difference."""
    keys, queries = (points(number, count, size) + 1000.0 * labels(number, count, 2)[:, None] for number in (1, 2))
    apart = (queries[:, None].double() - keys[None].double()).square().sum(2).sqrt()
    distances, positions = nearest(keys, queries, 10)
    assert (distances.diff(dim=1) >= 0).all()
    expected = apart.sort(dim=1, stable=True)
    assert torch.equal(positions, expected.indices[:, :10])
    torch.testing.assert_close(distances, expected.values[:, :10].float(), rtol=1e-5, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=40), st.integers(1, 12))
def test_ties_go_to_whoever_came_first(grid: list[tuple[int, int]], k: int) -> None:
    keys = torch.tensor(grid, dtype=torch.float32)
    queries = torch.tensor([[0.0, 0], [1, -1], [0.5, 0.5]])
    apart = (queries[:, None] - keys).square().sum(2).numpy()
    expected = np.argsort(apart, axis=1, kind="stable")[:, :k]
    assert nearest(keys, queries, k)[1].tolist() == expected.tolist()


def test_copies_of_one_sample_come_in_the_order_they_were_stored() -> None:
    """Also at a distance of zero, and in numbers that are not exact."""
    keys = (points(1, 3, 37) * 0.7 + 11).repeat(67, 1)
    queries = torch.cat([keys[:3], points(2, 5, 37)])
    positions = nearest(keys, queries, 60)[1]
    assert (positions.diff(dim=1) == 3).all()
    assert positions[:3, 0].tolist() == [0, 1, 2]


def test_a_query_in_many_parts() -> None:
    keys, queries = points(1, 20), points(2, 1000)
    whole = nearest(keys, queries, 4)
    for part in (slice(0, 1), slice(120, 140), slice(999, 1000)):
        assert torch.equal(nearest(keys, queries[part], 4)[1], whole[1][part])


# -- lambda ---------------------------------------------------------------------------------------------------


def test_the_ends_are_the_parts_and_between_them_it_is_affine() -> None:
    """Oracles 1 and 2."""
    local, served = distributions(1, 50), distributions(2, 50)
    assert torch.equal(mixed(local, served, 0.0), served)
    assert torch.equal(mixed(local, served, 1.0), local)
    torch.testing.assert_close(mixed(local, served, 0.3), 0.7 * mixed(local, served, 0.0) + 0.3 * local)
    for each in GRID:
        mixture = mixed(local, served, each)
        assert (mixture >= 0).all()
        torch.testing.assert_close(mixture.sum(1), torch.ones(50), atol=1e-6, rtol=0)


def test_the_grid_is_searched_for_accuracy_and_ties_go_to_the_global_model() -> None:
    local, served, values = distributions(1, 40), distributions(2, 40), labels(3, 40)
    right = [float(score(mixed(local, served, each), values).sum()) for each in GRID]
    everybody = torch.ones(40, dtype=torch.bool)
    tuned = KNN().tuned(local, served, values, everybody)
    assert float(tuned) == pytest.approx(GRID[int(np.argmax(right))])  # the first of the best
    assert float(KNN().tuned(served, served, values, everybody)) == 0
    some = torch.arange(40) < 9
    fewer = KNN().tuned(local[:9], served[:9], values[:9], some[:9])
    assert KNN().tuned(local, served, values, some) == fewer


def test_opposite_clients_rely_on_themselves() -> None:
    """Oracle 10: y = 1{x > 0} and its complement under a global model that says 0.5."""
    inputs = torch.linspace(-1, 1, 40)[:, None]
    for flip in (False, True):
        values = ((inputs[:, 0] > 0) ^ flip).long()
        served = torch.full((10, 2), 0.5)
        local = KNN().local(inputs[::2], values[::2], inputs[1::4], 2)
        everybody = torch.ones(10, dtype=torch.bool)
        tuned = KNN().tuned(local, served, values[1::4], everybody)
        assert float(tuned) == pytest.approx(0.1)
        assert score(mixed(local, served, tuned), values[1::4]).all()
        assert float(score(served, values[1::4]).mean()) == 0.5


def test_a_regression_is_tuned_by_its_squared_error() -> None:
    values = points(1, 30, 1)
    local, served = values + 0.1, values - 0.3 + 0.1 * points(2, 30, 1)
    errors = [float((mixed(local, served, each) - values).square().mean()) for each in GRID]
    tuned = KNN().tuned(local, served, values[:, 0], torch.ones(30, dtype=torch.bool))
    assert float(tuned) == pytest.approx(GRID[int(np.argmin(errors))])
    with pytest.raises(UserError, match="loglik needs class labels"):
        KNN(tune="loglik").tuned(local, served, values, torch.ones(30, dtype=torch.bool))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=15))
def test_the_likeliest_is_the_maximum_and_its_ends_are_known(chances: list[tuple[float, float]]) -> None:
    """Oracle 16."""
    a, b = np.array(chances).T
    found = float(likeliest(*torch.tensor(chances).double().T, torch.ones(len(a), dtype=torch.bool)))  # type: ignore[call-arg]

    def loss(lam: float) -> float:
        return -float(np.log(lam * a + (1 - lam) * b).sum())

    best = minimize_scalar(loss, bounds=(0, 1), method="bounded", options={"xatol": 1e-10})
    assert loss(found) <= min(best.fun, loss(0), loss(1)) + 1e-9
    if abs(np.mean(a / b) - 1) > 1e-9 and abs(np.mean(b / a) - 1) > 1e-9:
        assert (found == 0) == (np.mean(a / b) <= 1)
        assert (found == 1) == (np.mean(b / a) <= 1)


def test_the_likeliest_by_name_with_impossible_labels_and_padding() -> None:
    local, served = torch.tensor([[1.0, 0], [0, 1], [1, 0]]), torch.tensor([[0.5, 0.5], [0.5, 0.5], [0, 1]])
    knn, real = KNN(tune="loglik"), torch.tensor([True, True, False])
    assert float(knn.tuned(local, served, torch.tensor([0, 1, 1]), real)) == 1
    assert float(knn.tuned(local, served, torch.tensor([1, 0, 0]), real)) == 0
    between = float(knn.tuned(local, served, torch.tensor([0, 0, 0]), real))  # log((1 + l) / 2) + log((1 - l) / 2)
    assert between == pytest.approx(0, abs=1e-9)
    assert float(knn.tuned(served, served, torch.tensor([0, 1, 1]), real)) == 0  # all alike: the global model
    assert likeliest(torch.zeros(1), torch.zeros(1), real[:1]) == 0
    assert SMALLEST == 1e-12


def test_how_many_are_held_back() -> None:
    assert [KNN().held_back(n) for n in (0, 1, 2, 3, 10, 100)] == [0, 0, 1, 1, 2, 20]
    assert KNN(fraction=0.99).held_back(3) == 2
    assert KNN(fraction=0.0).held_back(100) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, r"knn.k: 0 must be at least 1"),
        ({"scale": 0.0}, r"knn.scale: 0.0 must be above 0"),
        ({"kernel": "gauss"}, "did you mean gaussian"),
        ({"tune": "accuracy"}, "allowed: grid, loglik"),
        ({"fraction": 1.0}, r"knn.fraction: 1.0 must be at least 0 and below 1"),
        ({"interpolation": 1.1}, r"knn.interpolation: 1.1 must be from 0 to 1"),
    ],
)
def test_mistakes(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        KNN(**options)  # type: ignore[arg-type]
