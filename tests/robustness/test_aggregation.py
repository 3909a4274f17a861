"""Robust means against their definitions, row by row, and the bias of buckets on four points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from turnout.aggregation.rules import bucketed, centred_clipping, geometric_median
from turnout.core.random import key, normal, uniform

ROWS = torch.from_numpy(normal(key(1, "rows", np.arange(7)), 3))
WEIGHTS = torch.from_numpy(uniform(key(1, "weights"), 7))
WEIGHTS = WEIGHTS / WEIGHTS.sum()
START = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("iterations", [1, 3])
def test_centred_clipping_row_by_row(iterations: int) -> None:
    v = START
    for _ in range(iterations):
        moves = [w * (row - v) * min(1.0, 0.7 / float((row - v).norm())) for w, row in zip(WEIGHTS, ROWS, strict=True)]
        v = v + torch.stack(moves).sum(0)
    torch.testing.assert_close(centred_clipping(ROWS, WEIGHTS, START, 0.7, iterations), v)


def test_clipping_with_a_wide_radius_is_the_mean() -> None:
    torch.testing.assert_close(centred_clipping(ROWS, WEIGHTS, START, 1e9), WEIGHTS @ ROWS)


def test_a_row_at_the_centre_is_no_trouble() -> None:
    same = START.expand(4, 3)
    assert torch.equal(centred_clipping(same, torch.full((4,), 0.25, dtype=torch.float64), START, 0.5), START)
    assert torch.isfinite(geometric_median(same, torch.full((4,), 0.25, dtype=torch.float64))).all()


def test_the_geometric_median_is_where_the_pulls_cancel() -> None:
    centre = geometric_median(ROWS, WEIGHTS, iterations=500)
    away = ROWS - centre
    assert float((WEIGHTS / away.norm(dim=1) @ away).norm()) < 1e-9


def test_a_weiszfeld_step_row_by_row() -> None:
    mean = WEIGHTS @ ROWS
    pull = torch.stack([w / max(0.9, float((row - mean).norm())) for w, row in zip(WEIGHTS, ROWS, strict=True)])
    found = geometric_median(ROWS, 2 * WEIGHTS, smoothing=0.9, iterations=1)  # weights up to a factor
    torch.testing.assert_close(found, pull @ ROWS / pull.sum())


def test_most_rows_outvote_a_far_one() -> None:
    rows = torch.cat([torch.zeros(6, 2), torch.tensor([[1e6, 0.0]])]).double()
    even = torch.full((7,), 1 / 7, dtype=torch.float64)
    assert float(geometric_median(rows, even, iterations=100).norm()) < 1e-3
    assert float(centred_clipping(rows, even, torch.zeros(2).double(), 1.0).norm()) == pytest.approx(1 / 7)


@pytest.mark.parametrize("buckets", [1, 2, 3, 7])
def test_buckets_keep_mass_and_mean(buckets: int) -> None:
    means, weights = bucketed(ROWS, WEIGHTS, buckets, key(4, "buckets"))
    assert means.shape == (buckets, 3)
    torch.testing.assert_close(weights.sum(), WEIGHTS.sum())
    torch.testing.assert_close(weights @ means, WEIGHTS @ ROWS)
    if buckets == 7:
        order = [int((ROWS - mean).norm(dim=1).argmin()) for mean in means]
        assert sorted(order) == list(range(7))
        torch.testing.assert_close(weights, WEIGHTS[order])


def test_bucket_sizes_differ_by_one_at_most() -> None:
    ones = torch.ones(7, dtype=torch.float64)
    for number in range(20):
        _, sizes = bucketed(ROWS, ones, 3, key(number, "buckets"))
        assert sorted(sizes.tolist()) == [2.0, 2.0, 3.0]


def test_a_client_without_importance_in_a_bucket_of_its_own_counts_nothing() -> None:
    means, weights = bucketed(ROWS[:2], torch.tensor([1.0, 0.0]).double(), 2, key(1, "buckets"))
    assert sorted(weights.tolist()) == [0.0, 1.0]
    assert torch.isfinite(means).all()


def test_buckets_are_biased_by_an_adversary_who_sees_them() -> None:
    """O13: points 1 to 4 in two buckets of two; the smallest of the bucket with the larger mean is corrupted. The clean
    bucket's mean is 1.5, 2 or 2.5, that of the three honest points 2.333, 2.667 or 2.667: 2.0 < 2.556 in the mean.

    Where both means are 2.5, {1, 4} and {2, 3}, the source corrupts the 2 or the 1; its figure is that of the 2."""
    points = torch.arange(1.0, 5.0).double()[:, None]
    clean, honest = {}, {}
    counts = dict.fromkeys((1.5, 2.0, 2.5), 0)
    for number in range(600):
        means, weights = bucketed(points, torch.full((4,), 0.25).double(), 2, key(number, "buckets"))
        assert weights.tolist() == [0.5, 0.5]
        low = float(means.min())
        corrupted = {1.5: 3, 2.0: 2, 2.5: 2}[low]
        clean[low], honest[low] = low, (10 - corrupted) / 3
        counts[low] += 1
    assert honest == pytest.approx({1.5: 7 / 3, 2.0: 8 / 3, 2.5: 8 / 3})
    assert np.mean(list(clean.values())) == 2.0
    assert np.mean(list(honest.values())) == pytest.approx(2.556, abs=1e-3)
    assert all(count == pytest.approx(200, abs=50) for count in counts.values())  # each partition one time in three
