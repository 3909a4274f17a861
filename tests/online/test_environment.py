"""Worlds for online learners: proportions that move or stay, samples that follow them, none used twice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from online.small_worlds import numbers
from turnout import UserError
from turnout.core.random import key, permutation
from turnout.data.dataset import Dataset
from turnout_studies.online.environment import (
    GaussianStream,
    LabelledStream,
    Proportions,
    classes_in_order,
    gaussian_centres,
    near,
)

FAR = numbers([-60, 0], [0, 0], [60, 0])


def test_fresh_weights_are_dirichlet() -> None:
    """alpha = 0.1, three sources: means 1/3, variances (1/3)(2/3) / (3 alpha + 1); steps and clients differ."""
    drawn = np.stack([Proportions(0.1).at(step, 400, 3, 7) for step in range(10)])
    assert drawn.mean((0, 1)) == pytest.approx([1 / 3] * 3, abs=0.02)
    assert drawn.var((0, 1)) == pytest.approx([2 / 9 / 1.3] * 3, abs=0.01)
    assert len(np.unique(drawn[..., 0])) > 3000
    np.testing.assert_allclose(drawn.sum(-1), 1)
    np.testing.assert_array_equal(Proportions(0.1).at(4, 30, 3, 7), drawn[4, :30])  # whoever else is there


def test_weights_stay_or_drift() -> None:
    still, drifting = Proportions(0.5, math.inf), Proportions(0.5, 10)
    np.testing.assert_array_equal(still.at(0, 5, 3, 1), still.at(999, 5, 3, 1))
    now, then = (drifting.at(step, 5, 3, 1) for step in (20, 30))
    np.testing.assert_allclose(drifting.at(27, 5, 3, 1), 0.3 * now + 0.7 * then)
    np.testing.assert_array_equal(now, Proportions(0.5).at(2, 5, 3, 1))


def test_samples_follow_the_mixture() -> None:
    stream = GaussianStream(FAR, 3, 5000, Proportions(1.0), seed=4)
    samples = stream.samples(6)
    nearest = torch.cdist(samples.inputs, FAR).argmin(-1)
    shares = torch.stack([(nearest == j).double().mean(1) for j in range(3)], 1)
    torch.testing.assert_close(shares, stream.mixture(6), rtol=0, atol=0.025)
    assert torch.equal(samples.inputs, stream.samples(6).inputs)
    assert not torch.equal(samples.inputs, stream.samples(7).inputs)
    few = GaussianStream(FAR, 2, 5000, Proportions(1.0), seed=4)
    assert torch.equal(few.samples(6).inputs, samples.inputs[:2])


def test_points_count_as_the_mixture_does() -> None:
    stream = GaussianStream(FAR, 3, 5, Proportions(1.0), seed=4)
    points = stream.points(6, 50)
    nearest = torch.cdist(points.inputs, FAR).argmin(-1)
    shares = torch.stack([((nearest == j) * points.counted).sum(1) for j in range(3)], 1)
    torch.testing.assert_close(shares, stream.mixture(6))
    assert abs(float((points.inputs - FAR.repeat_interleave(50, 0)).mean())) < 0.15


def test_centres_and_starts() -> None:
    centres = gaussian_centres(2000, 4, 5.0, seed=2)
    assert float(centres.var()) == pytest.approx(5, rel=0.05)
    some = centres[:6]
    gaps = torch.cdist(some, some).fill_diagonal_(math.inf).min(1).values
    torch.testing.assert_close((near(some, 1 / 16, seed=2) - some).norm(dim=1), gaps / 16)


def dataset(each: int = 40, tests: int = 20) -> Dataset:
    """Ten classes; an input is its own number."""
    labels, test_labels = torch.arange(10).repeat(each), torch.arange(10).repeat(tests)
    inputs, test_inputs = (torch.arange(len(part), dtype=torch.float32)[:, None] for part in (labels, test_labels))
    return Dataset("numbers", inputs, labels, 10, test_inputs=test_inputs, test_targets=test_labels)


def test_classes_are_grouped_in_order() -> None:
    """online-mixtures.md 6.2."""
    assert classes_in_order(10, 4) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


def test_no_sample_comes_twice_and_the_horizon_is_where_a_source_runs_out() -> None:
    groups = classes_in_order(10, 4)
    stream = LabelledStream(dataset(), groups, clients=3, size=4, proportions=Proportions(0.3), seed=5)
    assert 10 < stream.horizon <= 400 // 12
    for take, count in ((stream.samples, 4), (stream.tests, 1)):
        taken = [take(step) for step in range(stream.horizon)]
        assert all(part.inputs.shape == (3, count, 1) for part in taken)
        numbers_taken = torch.cat([part.inputs.flatten() for part in taken])
        assert len(numbers_taken.unique()) == len(numbers_taken)
        assert bool(((numbers_taken % 10).long() == torch.cat([part.targets.flatten() for part in taken])).all())
    assert sorted(stream.everything(stream.horizon)[0].flatten().tolist()) == sorted(
        torch.cat([stream.samples(step).inputs.flatten() for step in range(stream.horizon)]).tolist()
    )
    with pytest.raises(IndexError):
        for step in range(stream.horizon, 400):
            stream.samples(step), stream.tests(step)


def test_classes_follow_the_mixture() -> None:
    groups = classes_in_order(10, 4)
    stream = LabelledStream(dataset(4000, 500), groups, 2, 3000, proportions=Proportions(2.0), seed=5)
    samples, source = stream.samples(0), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    shares = torch.stack([(source[samples.targets] == j).double().mean(1) for j in range(4)], 1)
    torch.testing.assert_close(shares, stream.mixture(0), rtol=0, atol=0.03)
    assert not torch.equal(samples.targets[0].sort().values, samples.targets[0])


def test_samples_come_in_an_order_of_the_seed() -> None:
    shuffled = permutation(key(1, "order"), 400)
    data = dataset()
    other = replace(data, inputs=data.inputs[shuffled], targets=data.targets[shuffled])
    streams = [LabelledStream(data, classes_in_order(10, 4), 3, 4, seed=seed) for seed in (0, 0, 1)]
    first, again, another = (stream.samples(0).inputs for stream in streams)
    taken = torch.cat([streams[0].samples(step).inputs.flatten() for step in range(5)])
    assert float(taken.max()) > 300  # not the head of the data
    assert torch.equal(first, again)
    assert not torch.equal(first, another)
    assert LabelledStream(other, classes_in_order(10, 4), 3, 4).horizon == streams[0].horizon


def test_bad_worlds_are_refused() -> None:
    with pytest.raises(UserError, match=r"online.alpha: 0 must be above 0"):
        Proportions(0)
    with pytest.raises(UserError, match=r"online.period: 0.5 must be at least 1"):
        Proportions(1, 0.5)
    with pytest.raises(UserError, match="dataset numbers: it has no test samples"):
        LabelledStream(replace(dataset(), test_inputs=None, test_targets=None), [[0]], 3, 4)
