"""FEM-OMD: the protocol, its averages over time, what it converges to, its corner cases, and that it resumes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from online.small_worlds import GAUSSIANS, classifiers, drawn, labelled, numbers, task
from turnout import UserError
from turnout.theory.mirror import floored, mirror_step
from turnout_studies.online.em import em_step, federated_em, weight_gradient
from turnout_studies.online.environment import GaussianStream, Proportions, gaussian_centres, near
from turnout_studies.online.learner import FEMOMD, DivergedError
from turnout_studies.online.regret import follow
from turnout_studies.online.samples import Samples
from turnout_studies.online.step_sizes import Anytime, Constant

CENTRES = gaussian_centres(3, 5, 5.0, seed=1)
START = near(CENTRES, 1 / 16, seed=1)


def femomd(clients: int = 4, **options: Any) -> FEMOMD:
    return FEMOMD(GAUSSIANS, START, clients, **options)


def steps(learner: FEMOMD, stream: GaussianStream, count: int) -> None:
    for step in range(learner.step, learner.step + count):
        learner.play()
        learner.observe(stream.samples(step))


# the protocol


def test_observing_before_playing_is_an_error() -> None:
    """online-mixtures.md 3.1: it would leak."""
    learner, stream = femomd(), GaussianStream(CENTRES, 4, 6)
    with pytest.raises(UserError, match=r"online.observe: nothing has been played at this step; call play first"):
        learner.observe(stream.samples(0))
    learner.play()
    learner.observe(stream.samples(0))
    with pytest.raises(UserError, match="call play first"):
        learner.observe(stream.samples(0))


def test_what_is_played_does_not_know_the_step() -> None:
    """Components and equal weights at first; playing twice changes nothing, and observing changes nothing played."""
    learner, stream = femomd(), GaussianStream(CENTRES, 4, 6)
    played = learner.play()
    assert torch.equal(played.components, START)
    assert played.weights.tolist() == [pytest.approx([1 / 3] * 3)] * 4
    kept = played.components.clone(), played.weights.clone()
    learner.play()
    learner.observe(stream.samples(0))
    assert torch.equal(played.components, kept[0])
    assert torch.equal(played.weights, kept[1])
    assert not torch.equal(learner.play().components, kept[0])


@pytest.mark.parametrize("gradient", ["model", "samples"])
def test_one_step_by_hand(gradient: str) -> None:
    """online-mixtures.md 3.2: with omega_{t+1} in the gradient, at pi_t."""
    learner, samples = femomd(gradient=gradient), GaussianStream(CENTRES, 4, 6).samples(0)
    learner.play()
    learner.observe(samples)
    estimates, em_weights = federated_em(GAUSSIANS, START, samples, 5)
    components = START / 2 + estimates / 2
    torch.testing.assert_close(learner.components, components)
    if gradient == "samples":
        pi = torch.full((4, 3), 1 / 3, dtype=torch.float64)
        found = weight_gradient(GAUSSIANS.log_prob(components, samples), pi, samples.counted)
        expected = floored(mirror_step(pi, found, 0.1 * math.sqrt(math.log(3))), 0.01)
        torch.testing.assert_close(learner.weights, expected)
    else:  # in expectation pi moves to the estimate
        assert bool(((learner.weights - 1 / 3) * (em_weights - 1 / 3)).sum(1).min() > 0)


def test_dictionaries_and_arrays_are_the_same() -> None:
    stream = GaussianStream(CENTRES, 4, 6)
    one, other = femomd(gradient="samples"), femomd(gradient="samples")
    for step in range(3):
        samples = stream.samples(step)
        one.play(), other.play()
        one.observe(samples)
        other.observe(dict(enumerate(samples.inputs)))
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.components, other.components)


# averages over time


def test_running_mean_of_the_estimates() -> None:
    """online-mixtures.md 9: mu_{T+1} = (mu_1 + sum of mu~_t) / (T + 1)."""
    learner, stream, estimates = femomd(), GaussianStream(CENTRES, 4, 6), [START]
    for step in range(7):
        learner.play()
        estimates.append(federated_em(GAUSSIANS, learner.components, stream.samples(step), 5)[0])
        learner.observe(stream.samples(step))
    torch.testing.assert_close(learner.components, torch.stack(estimates).mean(0), rtol=1e-12, atol=0)


def test_one_gaussian_is_the_running_mean_of_the_samples() -> None:
    """online-mixtures.md 16, clients of unequal sizes; the weight is 1 and its gradient -1."""
    learner, values = FEMOMD(GAUSSIANS, numbers([5, 5]), 2), [numbers(5, 5)]
    for step in range(4):
        one, other = drawn(f"one {step}", 3, 2), drawn(f"other {step}", 1, 2)
        learner.play()
        learner.observe({0: one, 1: other})
        values.append(torch.cat([one, other]).mean(0))
    torch.testing.assert_close(learner.components[0], torch.stack(values).mean(0))
    assert learner.weights.tolist() == [[1.0], [1.0]]
    samples = Samples.full(one[None])
    assert weight_gradient(GAUSSIANS.log_prob(learner.components, samples), numbers([1]), samples.counted) == -1


@pytest.mark.parametrize(("averaging", "kept"), [("none", 0.0), ("ema", 0.75)])
def test_other_averages(averaging: str, kept: float) -> None:
    learner, stream, expected = femomd(averaging=averaging, ema_decay=0.75), GaussianStream(CENTRES, 4, 6), START
    for step in range(3):
        estimate = federated_em(GAUSSIANS, expected, stream.samples(step), 5)[0]
        expected = kept * expected + (1 - kept) * estimate
    steps(learner, stream, 3)
    torch.testing.assert_close(learner.components, expected)


def test_running_means_stifle_gradient_steps() -> None:
    """online-mixtures.md 3.6: under a constant pull the movement grows like log T; networks are not averaged."""
    samples, moved = labelled(2, 5), {}
    for averaging in ("running_mean", None):
        learner = FEMOMD(classifiers(1e-4), task().initials(2), 2, em_steps=1, averaging=averaging)
        for _ in range(30):
            learner.play()
            learner.observe(samples)
        moved[averaging] = float((learner.components - learner.initial).norm())
    assert learner.averaging == "none"
    harmonic = sum(1 / (step + 1) for step in range(1, 31))
    assert moved[None] / moved["running_mean"] == pytest.approx(30 / harmonic, rel=0.05)


# what it converges to


def test_constant_weights_are_found() -> None:
    """online-mixtures.md 15: pi_t goes to pi* and the mean regret to 0, on data whose weights stay. Mixing with equal
    weights (3.4) at every step would keep it from 0: it pulls by m beta = 0.03, the loss by eta = 0.026 at the end."""
    stream = GaussianStream(CENTRES, 6, 40, Proportions(1.0, math.inf))
    learner = femomd(6, omd_lr=Anytime(0.3))
    tracker = follow(learner, stream, 150, each=6)
    early, late = (float(tracker.regret(time).mean()) / time for time in (10, 150))
    assert 0 < late < early / 8
    assert float((learner.weights - stream.mixture(0)).abs().mean()) < 0.02


def test_more_clients_find_better_sources() -> None:
    """online-mixtures.md 15: n = 1, means over two seeds (published .59, .087, .031 for 5, 20, 100 clients)."""
    errors = []
    for clients in (5, 20, 100):
        learners = [femomd(clients, seed=seed) for seed in range(2)]
        for seed, learner in enumerate(learners):
            steps(learner, GaussianStream(CENTRES, clients, 1, seed=seed), 50)
        errors.append(np.mean([float((learner.components - CENTRES).norm(dim=1).mean()) for learner in learners]))
    assert errors[0] > 2 * errors[1] > 3 * errors[2]
    assert errors[2] < 0.1


def test_a_classifier_learns() -> None:
    learner = FEMOMD(classifiers(0.5), task().initials(2), 3)
    samples = labelled(3, 30)
    accuracies = []
    for _ in range(40):
        learner.play()
        accuracies.append(float((learner.predict(samples).argmax(-1) == samples.targets).double().mean()))
        learner.observe(samples)
    assert accuracies[-1] > 0.9 > accuracies[0]
    torch.testing.assert_close(learner.predict(samples).exp().sum(-1), torch.ones(3, 30, dtype=torch.float64))


# corner cases


def test_weights_never_reach_the_border() -> None:
    """online-mixtures.md 3.8."""
    learner = femomd(omd_lr=Constant(50.0))
    steps(learner, GaussianStream(CENTRES, 4, 6), 20)
    assert float(learner.weights.min()) == pytest.approx(0.01, rel=1e-6)
    torch.testing.assert_close(learner.weights.sum(1), torch.ones(4, dtype=torch.float64))


def test_clients_without_samples_keep_their_weights_and_count_nothing() -> None:
    """online-mixtures.md 3.8: the sources are the same as if they were not there."""
    samples = GaussianStream(CENTRES, 4, 6).samples(0)
    one, other = femomd(gradient="samples"), femomd(2, gradient="samples")
    kept = one.weights[[0, 2]] = numbers([0.5, 0.3, 0.2], [0.005, 0.2, 0.795])
    one.play(), other.play()
    one.observe({1: samples.inputs[1], 3: samples.inputs[3]})
    other.observe({0: samples.inputs[1], 1: samples.inputs[3]})
    torch.testing.assert_close(one.components, other.components)
    torch.testing.assert_close(one.weights[[1, 3]], other.weights)
    assert torch.equal(one.weights[[0, 2]], kept)


def test_every_step_has_draws_of_its_own() -> None:
    """Of the gradient over draws of the model: they differ from step to step, not from run to run."""
    learner, again, samples = femomd(), femomd(), labelled(4, 5)
    points = []
    for learner.step in (1, 2):
        points.append(learner._points(learner.weights, samples)[0])
    again.step = 2
    assert not torch.equal(points[0], points[1])
    assert torch.equal(again._points(learner.weights, samples)[0], points[1])


def test_clients_join() -> None:
    """online-mixtures.md 3.8: with equal weights; nothing else changes."""
    learner, stream = femomd(), GaussianStream(CENTRES, 4, 6)
    steps(learner, stream, 2)
    before = learner.weights
    learner.join(2)
    played = learner.play()
    assert torch.equal(played.weights[:4], before)
    assert played.weights[4:].tolist() == [pytest.approx([1 / 3] * 3)] * 2
    learner.observe({5: stream.samples(2).inputs[0]})
    assert not torch.equal(learner.weights[5], played.weights[5])


def test_samples_are_split_where_there_are_enough() -> None:
    """online-mixtures.md 3.5 and 3.8."""
    samples = GaussianStream(CENTRES, 4, 6).samples(0)
    learner = femomd(em_steps=3, sample_splitting=True, averaging="none")
    learner.play()
    learner.observe(samples)
    components, pi = START, torch.full((4, 3), 1 / 3, dtype=torch.float64)
    for number in range(3):
        components, pi = em_step(GAUSSIANS, components, pi, samples.part(number, 3))
    torch.testing.assert_close(learner.components, components)
    few = femomd(em_steps=3, sample_splitting=True, averaging="none")
    few.play()
    with pytest.warns(UserWarning, match="a client has 2 samples for 3 EM steps: they are not split"):
        few.observe({0: samples.inputs[0], 1: samples.inputs[1, :2]})
    whole = Samples.of({0: samples.inputs[0], 1: samples.inputs[1, :2]}, 4)
    torch.testing.assert_close(few.components, federated_em(GAUSSIANS, START, whole, 3)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"em_steps": 0}, r"online.em_steps: 0 must be at least 1"),
        ({"initial": numbers([1, 2], [1, 2], [0, 0])}, r"online.initial: two sources begin alike"),
        ({"initial": numbers(1, 2)}, r"online.initial: shape \(2,\); one row a source"),
        ({"clients": 0}, r"online.clients: 0 must be at least 1"),
        ({"gradient": "labels"}, r"online.gradient: unknown name 'labels'; allowed: model, samples"),
        ({"averaging": "runing_mean"}, r"online.averaging: unknown name 'runing_mean'; did you mean running_mean"),
        ({"weight_floor": 0.5}, r"online.weight_floor: 0.5 must be at least 0 and below 1 / 3"),
        ({"ema_decay": 1.0}, r"online.ema_decay: 1.0 must be at least 0 and below 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FEMOMD(**{"family": GAUSSIANS, "initial": START, "clients": 4, **options})


def test_networks_that_diverge_are_not_played() -> None:
    learner = FEMOMD(classifiers(1e308), task().initials(2), 3, em_steps=2)
    learner.play()
    with pytest.raises(DivergedError, match=r"online.lr: it has diverged, .* after step 1; lower it"):
        learner.observe(labelled(3, 4))


def test_bad_arrays_are_refused() -> None:
    learner = femomd()
    learner.play()
    with pytest.raises(UserError, match="samples of 3 clients; there are 4"):
        learner.observe(Samples.full(torch.zeros(3, 2, 5)))
    with pytest.raises(UserError, match="samples contain NaN or infinity"):
        learner.observe({0: torch.full((2, 5), math.nan)})
    empty = Samples.full(torch.zeros(4, 2, 5))
    with pytest.raises(UserError, match="nobody received a sample"):
        learner.observe(empty._replace(counted=0 * empty.counted))
    learner.observe(GaussianStream(CENTRES, 4, 6).samples(0))  # the step is still open
