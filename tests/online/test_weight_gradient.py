"""The gradient of the loss by the weights: identities, limits, and how far a wrong model leads it astray."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from online.small_worlds import GAUSSIANS, classifiers, drawn, grid, labelled, numbers, task, weights
from turnout.core.random import key
from turnout_studies.online.em import mixture_log_prob, weight_gradient
from turnout_studies.online.learner import FEMOMD
from turnout_studies.online.samples import Samples


def exact(means: Tensor, played: Tensor, truth: Tensor, true_means: Tensor | None = None) -> Tensor:
    """In one dimension, over a fine grid."""
    points = grid(means if true_means is None else true_means, truth)
    return weight_gradient(GAUSSIANS.log_prob(means, points), played, points.counted)


def kl(means: Tensor, truth: Tensor, played: Tensor) -> Tensor:
    points = grid(means, truth)
    logs = GAUSSIANS.log_prob(means, points)
    return ((mixture_log_prob(logs, truth) - mixture_log_prob(logs, played)) * points.counted).sum(1)


@pytest.mark.parametrize("gradient", ["model", "samples", "labels"])
def test_weighed_components_sum_to_minus_one(gradient: str) -> None:
    """online-mixtures.md 1, for every way to take it; each component is between -1 / pi and 0."""
    family, start = (classifiers(), task().initials(3)) if gradient == "labels" else (GAUSSIANS, drawn("means", 3, 5))
    learner = FEMOMD(family, start, 6, gradient=gradient)
    learner.weights = weights("pi", 6, 3, 0.3) * 0.99 + 0.01 / 3
    log_prob, counted = learner._points(weights("em", 6, 3), labelled(6, 7))
    found = weight_gradient(log_prob, learner.weights, counted)
    torch.testing.assert_close(
        (learner.weights * found).sum(1), -torch.ones(6, dtype=torch.float64), rtol=1e-12, atol=0
    )
    assert bool((found <= 0).all())
    assert bool((found >= -1 / learner.weights - 1e-9).all())
    assert float((found + 1).abs().max()) > 0.01


def test_it_is_minus_one_where_the_play_is_right() -> None:
    """online-mixtures.md 2; n draws are off by about 1 / sqrt(n)."""
    pi, means = weights("pi", 5, 3), numbers([-2], [0], [1.5])
    torch.testing.assert_close(exact(means, pi, pi), -torch.ones(5, 3, dtype=torch.float64), rtol=1e-9, atol=0)
    errors = []
    for count in (100, 10_000):
        points = GAUSSIANS.sample(means, pi, key(1, "draws", np.arange(5)), count)
        found = weight_gradient(GAUSSIANS.log_prob(means, points), pi, points.counted)
        errors.append(float((found + 1).abs().mean()))
    assert 4 < errors[0] / errors[1] < 25
    family, components = classifiers(), task().initials(3)
    learner = FEMOMD(family, components, 5)
    learner.weights = pi
    log_prob, counted = learner._points(pi, labelled(5, 4))  # all labels: exact
    torch.testing.assert_close(weight_gradient(log_prob, pi, counted), -torch.ones(5, 3, dtype=torch.float64))


@pytest.mark.parametrize(("gap", "gradient", "loss"), [(10, (-1.6, -0.4), 0.1927), (3, (-1.482, -0.518), 0.154)])
def test_separated_sources(gap: float, gradient: tuple[float, float], loss: float) -> None:
    """online-mixtures.md 3: -pi* / pi and the KL of the weights in the limit."""
    means, truth, played = numbers([0], [gap]), numbers([0.8, 0.2]), numbers([0.5, 0.5])
    assert exact(means, played, truth)[0].tolist() == pytest.approx(gradient, abs=1e-3)
    assert float(kl(means, truth, played)) == pytest.approx(loss, abs=1e-3)
    if gap == 10:
        assert float(kl(means, truth, played)) == pytest.approx(float((truth * (truth / played).log()).sum()), abs=1e-4)


def test_it_is_the_derivative_of_the_loss() -> None:
    means, truth, played = numbers([-1], [0], [2]), weights("truth", 4, 3), weights("played", 4, 3)
    points = grid(means, truth)
    logs = GAUSSIANS.log_prob(means, points)
    leaf = played.clone().requires_grad_()
    (-(mixture_log_prob(logs, leaf) * points.counted).sum()).backward()
    torch.testing.assert_close(exact(means, played, truth), leaf.grad, rtol=1e-6, atol=0)


def test_the_loss_is_convex_in_the_weights() -> None:
    """online-mixtures.md 12."""
    means, truth, one, other = numbers([-1], [0], [2]), weights("t", 30, 3), weights("a", 30, 3), weights("b", 30, 3)
    middle = kl(means, truth, (one + other) / 2)
    mean = (kl(means, truth, one) + kl(means, truth, other)) / 2
    assert bool((middle < mean).all())


def test_how_wrong_a_wrong_model_is() -> None:
    """online-mixtures.md 4, theorem 4.4.4: pi_j |grad_j - grad~_j| <= 3/2 sup |mu - mu*| + |pi~ - pi*|_1. The true
    gradient has the true sources in the ratio too."""
    true_means, played = numbers([-3], [0], [4]), weights("played", 40, 3)
    truth, estimate = weights("truth", 40, 3), weights("estimate", 40, 3)
    for size in (0.03, 0.3, 1.0):
        means = true_means + size * drawn("off", 3, 1)
        near = (1 - size) * truth + size * estimate
        apart = (exact(true_means, played, truth) - exact(means, played, near)).abs()
        bound = 1.5 * float((means - true_means).abs().max()) + (near - truth).abs().sum(1, keepdim=True)
        assert bool((played * apart <= bound).all())
    assert float((played * apart).max()) > 0.1  # there is something to bound


def test_empty_clients_have_no_gradient() -> None:
    samples = Samples.of({1: drawn("x", 3, 2)}, 2)
    found = weight_gradient(GAUSSIANS.log_prob(drawn("means", 2, 2), samples), weights("pi", 2, 2), samples.counted)
    assert found[0].tolist() == [0, 0]
    assert bool((found[1] < 0).all())
