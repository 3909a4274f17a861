"""Regret: its comparator, divergences of mixtures, how growth is judged, and the reference growth of FEM-OMD."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from online.small_worlds import GAUSSIANS, drawn, grid, numbers, weights
from turnout import UserError
from turnout.core.random import FloatArray
from turnout_studies.online.baselines import FedOMD, FollowTheLeader, LastStep, LocalEMOMD, StaticFedEM
from turnout_studies.online.em import mixture_log_prob
from turnout_studies.online.environment import GaussianStream, Proportions, gaussian_centres, near
from turnout_studies.online.learner import FEMOMD, Learner
from turnout_studies.online.regret import (
    RegretTracker,
    accuracy_regret,
    best_weights,
    exponents,
    follow,
    growth,
    mixture_kl,
    smoothed,
)
from turnout_studies.online.samples import Samples
from turnout_studies.online.step_sizes import Anytime


def of_play(means: Tensor, played: Tensor, truths: Tensor, told: bool = True) -> RegretTracker:
    """Weights `[C, m]` played at every step against true ones `[T, C, m]`, exactly, on the line."""
    tracker = RegretTracker()
    for truth in truths:
        points = grid(means, truth)
        logs = GAUSSIANS.log_prob(means, points)
        tracker.record(mixture_log_prob(logs, played), logs, points.counted, truth if told else None)
    return tracker


@pytest.mark.parametrize("gap", [0.5, 2.0, 12.0])
def test_the_comparator_is_the_time_average(gap: float) -> None:
    """online-mixtures.md 13, which says so of separated sources only. It is so of all: over all densities q the sum of
    KL(p_s, q) is least at the mean of the p_s, which is the mixture by the mean of the weights. EM finds the same."""
    means, truths = numbers([0], [gap], [2.5 * gap]), torch.stack([weights(f"truth {s}", 4, 3) for s in range(3)])
    found = of_play(means, truths[0], truths).comparator()
    torch.testing.assert_close(found, truths.mean(0))
    searched = of_play(means, truths[0], truths, told=False).comparator()
    torch.testing.assert_close(searched, found, rtol=0, atol=0.02 if gap == 0.5 else 1e-4)
    best = of_play(means, found, truths).regret()
    torch.testing.assert_close(best, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    for step in range(6):
        other = 0.9 * found + 0.1 * weights(f"other {step}", 4, 3)
        assert bool((of_play(means, other, truths).regret() > 0).all())


def test_regret_is_a_difference_of_divergences() -> None:
    """And those of the steps are KL; separated, KL of the weights."""
    means, truths, played = (
        numbers([0], [12]),
        torch.stack([weights(f"t{s}", 3, 2) for s in range(4)]),
        weights("p", 3, 2),
    )
    tracker = of_play(means, played, truths)
    losses = tracker.step_losses()
    categorical = (truths * (truths / played).log()).sum(-1)
    torch.testing.assert_close(losses, categorical, rtol=0, atol=1e-5)
    fixed = of_play(means, truths.mean(0), truths).step_losses()
    torch.testing.assert_close(tracker.regret(), losses.sum(0) - fixed.sum(0))
    torch.testing.assert_close(tracker.regret(1), losses[0])  # one step alone is matched exactly
    against = tracker.regret(2, played)
    torch.testing.assert_close(against, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    np.testing.assert_allclose(tracker.curve([1, 4]), torch.stack([tracker.regret(1), tracker.regret(4)], 1))


def test_truth_at_every_step_or_at_none() -> None:
    tracker = RegretTracker()
    tracker.record(torch.zeros(1, 1), torch.zeros(1, 1, 2), torch.ones(1, 1), torch.ones(1, 2) / 2)
    with pytest.raises(UserError, match="regret: the true mixture must be told at every step, or at none"):
        tracker.record(torch.zeros(1, 1), torch.zeros(1, 1, 2), torch.ones(1, 1))


def test_best_weights_of_given_points() -> None:
    points = GaussianStream(numbers([0], [3]), 2, 4000, Proportions(2.0, math.inf)).samples(0)
    found = best_weights(GAUSSIANS.log_prob(numbers([0], [3]), points), points.counted)
    torch.testing.assert_close(
        found, GaussianStream(numbers([0], [3]), 2, 1, Proportions(2.0, math.inf)).mixture(0), rtol=0, atol=0.04
    )


# divergences


def line(mean: float) -> tuple[Tensor, Tensor]:
    return numbers([mean]), numbers([1])


def test_divergence_of_two_gaussians() -> None:
    """online-mixtures.md 14: |mu - mu'|^2 / 2, exactly on a grid and by draws in five dimensions."""
    assert float(mixture_kl(grid(*line(0)), line(0), line(1.7))) == pytest.approx(1.7**2 / 2, abs=1e-6)
    one, other = drawn("one", 1, 5), drawn("other", 1, 5)
    points = GaussianStream(one, 1, 1).points(0, 40_000)
    found = float(mixture_kl(points, (one, numbers([1])), (other, numbers([1]))))
    assert found == pytest.approx(float((one - other).square().sum()) / 2, rel=0.03)


def test_total_variation_of_gaussians_and_mixtures() -> None:
    """online-mixtures.md 14: at most half the distance; of mixtures, sum_i pi_i |mu_i - mu'_i| / 2 + |pi - pi'|_1."""

    def apart(truth: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
        points = grid(torch.cat([truth[0], other[0]]), torch.full((1, 2 * len(truth[0])), 0.5 / len(truth[0])).double())
        logs = [mixture_log_prob(GAUSSIANS.log_prob(means, points), pi) for means, pi in (truth, other)]
        return float((logs[0].exp() - logs[1].exp()).abs().sum()) * 0.01 / 2

    for distance in (0.1, 1.0, 4.0):
        normal = torch.distributions.Normal(0.0, 1.0)
        found = apart(line(0), line(distance))
        assert found == pytest.approx(2 * float(normal.cdf(torch.tensor(distance / 2))) - 1, abs=1e-4)
        assert found <= distance / 2
    for number in range(10):
        means, moved = drawn(f"means {number}", 3, 1), drawn(f"means {number}", 3, 1) + 0.3 * drawn(f"m {number}", 3, 1)
        pi, other = weights(f"pi {number}", 1, 3), weights(f"other {number}", 1, 3)
        bound = float((pi[0] * (means - moved).abs()[:, 0]).sum()) / 2 + float((pi - other).abs().sum())
        assert apart((means, pi), (moved, other)) <= bound


# growth


def test_exponents_of_powers() -> None:
    times = np.array([10, 30, 100, 300])
    powers = np.array([0.2, 0.5, 1.0])
    np.testing.assert_allclose(exponents(times, 3 * times ** powers[:, None]), powers)
    assert exponents(times, [[-1, 0, -2, -3], [-1, 0, 100, 300]]).tolist() == pytest.approx([0, 1])


@pytest.mark.parametrize(("power", "verdict"), [(0.5, "sub-linear"), (1.0, "linear"), (0.9, "undecided")])
def test_growth_is_judged_by_an_interval_over_runs(power: float, verdict: str) -> None:
    times, off = np.array([10, 30, 100, 300]), np.linspace(-0.02, 0.02, 5)[:, None]
    found = growth(times, times ** (power + off))
    assert found.exponent == pytest.approx(power)
    assert found.half_width == pytest.approx(2.776 * 0.02 * math.sqrt(2.5) / 2 / math.sqrt(5), rel=1e-3)
    assert found.verdict == verdict
    assert growth(times, times**0.5).verdict == "undecided"  # one run has no interval


def test_accuracy_regret_and_smoothing() -> None:
    found = accuracy_regret(np.array([[1, 1], [1, 0], [1, 1]]), np.array([[0, 1], [1, 1], [0, 0]]))
    assert found.tolist() == [[1, 0], [1, -1], [2, 0]]
    assert smoothed(np.array([1.0, 2.0, 2.0])).tolist() == pytest.approx([1.0, 1.3, 1.51])


# the reference growth

SHORT, LONG = (30, 120), (75, 300)


def femomd(stream: GaussianStream, **options: Any) -> Learner:
    return FEMOMD(GAUSSIANS, near(stream.centres, 1 / 16, stream.seed), stream.clients, seed=stream.seed, **options)


def regrets(
    clients: int,
    size: int,
    scale: float = 5.0,
    make: Callable[[GaussianStream], Learner] = femomd,
    times: tuple[int, ...] = SHORT,
    seeds: int = 1,
) -> FloatArray:
    """`[len(times)]` mean regret of a client against the best of all the time, mean over seeds."""
    curves = []
    for seed in range(seeds):
        stream = GaussianStream(gaussian_centres(3, 5, scale, seed), clients, size, seed=seed)
        tracker = follow(make(stream), stream, times[-1], each=5)
        curves.append(tracker.curve(times, tracker.comparator()).mean(0))
    return np.asarray(np.mean(curves, axis=0))


def test_reference_growth() -> None:
    """online-mixtures.md 17, in short: 120 steps where 300 are not needed. Regret falls with clients and with samples;
    two clients with one sample each never learn the sources, and theirs is linear. As in the published figures, all
    times are compared with the best fixed weights of the whole run. The published ratio above 3.5 at s = 0.3 is about 3
    here, and comes from that comparator: against the best for each time it is below 2."""
    few, some, many = regrets(2, 1, seeds=2), regrets(5, 1, seeds=2), regrets(50, 1)
    assert few[-1] > some[-1] > many[-1] > 0
    assert few[-1] / few[0] > 3.5
    assert many[-1] / many[0] < 3
    apart, near_by = regrets(20, 30, times=LONG), regrets(20, 30, 0.3, times=LONG)
    assert regrets(20, 1)[-1] > apart[-1]
    assert apart[-1] / apart[0] < 2.5 < near_by[-1] / near_by[0]


def test_the_floor_and_a_small_rate_are_needed() -> None:
    """online-mixtures.md 3.4: with eta = sqrt(log m / t) and a floor of 1e-6 weights jump from corner to corner."""

    found = regrets(20, 30, make=partial(femomd, omd_lr=Anytime(1.0), weight_floor=1e-6))
    assert found[-1] > 50 * regrets(20, 30)[-1]


def of_kind(kind: type[FEMOMD], stream: GaussianStream) -> Learner:
    return kind(GAUSSIANS, near(stream.centres, 1 / 16, stream.seed), stream.clients)


def test_who_does_better() -> None:
    """Weights that change at every step: the last estimate is a bad guess, one Gaussian cannot be a mixture, and
    clients alone hardly find the sources. Who takes the mean of the past is near the best."""
    kinds: dict[str, Any] = {
        kind.__name__: partial(of_kind, kind) for kind in (FEMOMD, LastStep, FollowTheLeader, StaticFedEM, LocalEMOMD)
    }
    kinds["FedOMD"] = lambda stream: FedOMD(GAUSSIANS, stream.centres.mean(0, keepdim=True), stream.clients)
    found = {name: float(regrets(10, 5, make=make, times=(60,))[-1]) for name, make in kinds.items()}
    assert found["FEMOMD"] < min(found[name] for name in ("LastStep", "LocalEMOMD", "FedOMD"))
    assert found["FollowTheLeader"] < found["LastStep"]
    assert all(math.isfinite(value) for value in found.values())


def test_what_is_played_is_what_is_judged() -> None:
    """`follow` judges the play of a step by that step's points, before it is learnt from."""
    stream = GaussianStream(gaussian_centres(3, 5, 5.0, 0), 2, 3)
    learner, tracker = femomd(stream), follow(femomd(stream), stream, 2, each=8)
    played, losses = [], []
    for step in range(2):
        played.append(learner.play())
        points: Samples = stream.points(step, 8)
        truth = stream.centres, stream.mixture(step)
        losses.append(mixture_kl(points, truth, tuple(played[-1])))  # type: ignore[arg-type]
        learner.observe(stream.samples(step))
    torch.testing.assert_close(tracker.step_losses(), torch.stack(losses))
