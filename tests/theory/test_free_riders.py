"""What free-riders do to the model: closed forms against constants, limits and simulated recurrences."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from turnout import UserError
from turnout.core.random import key, normal
from turnout_studies.theory.free_riding import FreeRiding, ou_map, sgd_map, variance_path

FAIR = ([100] * 5, 0.5, 1.0, [0, 1, 2, 3, 4])  # samples, retention, noise, optima
START = 3.0
TABLE = [  # riders, phi, Var[with - without], the paper's bound, Var[with]
    (0, 0.0, 0.53333, 0.53333, 0.26667),
    (1, 0.0, 0.47719, 0.51368, 0.21053),
    (5, 0.0, 0.38095, 0.57143, 0.11429),
    (45, 0.0, 0.28718, 2.07179, 0.02051),
    (1, 2.0, 0.64561, 0.68211, 0.37895),
    (5, 2.0, 0.83810, 1.02857, 0.57143),
]


def riding(riders: int, phi: float = 0.0) -> FreeRiding:
    return FreeRiding(*FAIR, declared=[100] * riders, disguise=phi)


def simulated(riders: int, phi: float, rounds: int, runs: int = 40_000) -> tuple[np.ndarray, np.ndarray]:
    """`[runs]` the model without and with free-riders, each with noise of its own, client by client."""
    total, optima = 5 + riders, np.arange(5)
    fair, attacked = np.full(runs, START), np.full(runs, START)
    for t in range(rounds):
        own, other = (normal(key(1, purpose, t, np.arange(runs)), 5) for purpose in ("fair", "attacked"))
        fair = (0.5 * (fair[:, None] - optima) + optima + own).mean(1)
        honest = (0.5 * (attacked[:, None] - optima) + optima + other).sum(1)
        disguise = phi * np.sqrt(riders) * normal(key(1, "disguise", t), runs)  # a sum of independent draws
        attacked = (honest + riders * attacked + disguise) / total
    return fair, attacked


@pytest.mark.parametrize(("riders", "contraction"), [(1, 0.58333), (5, 0.75), (45, 0.95)])
def test_contraction(riders: int, contraction: float) -> None:
    """O3."""
    found = riding(riders)
    assert found.contraction == pytest.approx(contraction, abs=5e-6)
    assert 1 - found.contraction == pytest.approx((1 - found.share) * (1 - found.fair_contraction))
    assert found.fixed_point == 2
    assert found.slowdown == pytest.approx(1 + riders / 5)


def test_the_mean_gap() -> None:
    """O4."""
    found = riding(5)
    assert found.mean_gap(START, 10) == pytest.approx(0.05534, abs=5e-6)
    assert found.mean_gap(START, math.inf) == 0
    fair, attacked = simulated(5, 0.0, 10)
    gaps = attacked - fair
    assert abs(gaps.mean() - found.mean_gap(START, 10)) < 4 * gaps.std() / math.sqrt(len(gaps))


@pytest.mark.parametrize(("riders", "phi", "exact", "bound", "alone"), TABLE)
def test_variances(riders: int, phi: float, exact: float, bound: float, alone: float) -> None:
    """O5, and that the bound is above, with equality only without free-riders."""
    found = riding(riders, phi)
    assert found.variance_exact() == pytest.approx(exact, abs=6e-6)
    assert found.variance_upper_bound_paper() == pytest.approx(bound, abs=6e-6)
    assert found.variance() == pytest.approx(alone, abs=6e-6)
    assert (found.variance_upper_bound_paper() > found.variance_exact() + 1e-9) == (riders > 0)


@pytest.mark.parametrize(("riders", "phi"), [(1, 0.0), (5, 2.0)])
def test_simulated_variances(riders: int, phi: float) -> None:
    """O5: 40,000 runs of 20 rounds, from which the formula for that many rounds is within Monte-Carlo error."""
    fair, attacked = simulated(riders, phi, 20)
    found = riding(riders, phi)
    for values, variance in (
        (fair, found.fair_variance(20)),
        (attacked, found.variance(20)),
        (attacked - fair, found.variance_exact(20)),
    ):
        assert values.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / len(values)))
    assert (attacked - fair).var() <= found.variance_upper_bound_paper() * 1.03


def test_plain_free_riders_calm_the_model_and_disguise_saturates() -> None:
    """The paper says that the variance grows with their samples: it falls for plain ones. With many equal disguised
    ones their part tends to M / M_J phi^2 / (2 (1 - a))."""
    falling = [riding(riders).variance() for riders in (0, 1, 2, 5, 20, 100)]
    assert all(later < earlier for earlier, later in pairwise(falling))
    many = riding(10**6, 2.0)
    assert many.variance() == pytest.approx(100 / 500 * 4 / (2 * 0.5), rel=1e-4)


def test_without_free_riders_it_is_the_stationary_process() -> None:
    """O6."""
    client = ou_map(0.01, 2, 30, 3, 10)
    found = FreeRiding([7] * 5, client.retention, math.sqrt(client.variance))
    assert found.fair_variance() == pytest.approx(0.00045)


@pytest.mark.parametrize(
    ("function", "mu", "retention", "variance"),
    [
        (ou_map, 0, 0.548812, 1.572313e-3),
        (sgd_map, 0, 0.545484, 1.596470e-3),
        (ou_map, 1, 0.604380, 1.252052e-3),
        (sgd_map, 1, 0.600671, 1.277959e-3),
    ],
)
def test_client_maps(function, mu: float, retention: float, variance: float) -> None:  # type: ignore[no-untyped-def]
    """O7: constants."""
    found = function(0.01, 2, 30, 3, 10, mu)
    assert found.retention == pytest.approx(retention, abs=5e-7)
    assert found.variance == pytest.approx(variance, abs=5e-10)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_the_discrete_map_is_that_of_sgd(mu: float) -> None:
    """O7: 40,000 runs of SGD on r / 2 (theta - 1)^2 with injected gradient noise, by autograd."""
    runs, received = 40_000, 3.0
    theta = torch.full((runs,), received, dtype=torch.float64)
    for step in range(30):
        leaf = theta.clone().requires_grad_()
        noise = torch.from_numpy(normal(key(3, "gradient noise", step), runs)) * 3 / math.sqrt(10)
        loss = (leaf - 1).square() + mu / 2 * (leaf - received).square() + noise * leaf
        theta = theta - 0.01 * torch.autograd.grad(loss.sum(), leaf)[0]
    found = sgd_map(0.01, 2, 30, 3, 10, mu)
    error = math.sqrt(found.variance / runs)
    assert float(theta.mean()) == pytest.approx(1 + 2 * found.retention, abs=4 * error)
    assert float(theta.var()) == pytest.approx(found.variance, rel=4 * math.sqrt(2 / runs))


@pytest.mark.parametrize("function", [ou_map, sgd_map])
def test_limits_of_fedprox(function) -> None:  # type: ignore[no-untyped-def]
    """O8. That of the paper's delta = 1 - eta': what is not kept is the local optimum's."""
    maps = [function(0.01, 2, 30, 3, 10, mu) for mu in (0, 0.1, 1, 10)]
    assert maps[0] == function(0.01, 2, 30, 3, 10)
    assert all(a.retention < b.retention for a, b in pairwise(maps))
    assert all(a.variance > b.variance for a, b in pairwise(maps))
    gamma = math.exp(-0.01 * 3 * 30)
    assert 1 - ou_map(0.01, 2, 30, 3, 10, 1).retention == pytest.approx(2 / 3 * (1 - gamma))
    tiny = 1e-6, 2.0, 300_000, 3.0, 10
    assert sgd_map(*tiny).retention == pytest.approx(ou_map(*tiny).retention, rel=1e-5)
    assert sgd_map(*tiny).variance == pytest.approx(ou_map(*tiny).variance, rel=1e-5)


def test_noise_that_falls_leaves_no_variance() -> None:
    """O9; and a path of constant noise is the closed form."""
    t = np.maximum(np.arange(2000), 1)
    path = variance_path(riding(5), 2.0 / t, 1.0 / t)
    assert path[2000] < 0.01 * path[10]
    steady = variance_path(riding(5), np.full(30, 2.0))
    assert steady[30] == pytest.approx(riding(5, 2.0).variance_exact(30))


def test_rounds_to() -> None:
    found = riding(45)
    assert found.contraction ** found.rounds_to(0.01) == pytest.approx(0.01)
    assert FreeRiding([1], 0.0, 1.0).rounds_to(0.01) == 1  # nothing is left after one


def test_steps_that_go_from_side_to_side_keep_all_their_noise() -> None:
    """lr kappa = 2: every step mirrors the distance, and n of them add up n times their variance."""
    assert sgd_map(0.5, 4, 3, 2.0) == pytest.approx((-1.0, 3 * 0.25 * 4))


def test_mistakes() -> None:
    for samples, retention, words in (([], 0.5, "without an honest client"), ([1], 1.0, "below 1")):
        with pytest.raises(UserError, match=words):
            FreeRiding(samples, retention, 1.0)
    with pytest.raises(UserError, match="curvature"):
        ou_map(0.1, 0.0, 3, 1.0)
    with pytest.raises(UserError, match="batch_size"):
        sgd_map(0.1, 1.0, 3, 1.0, 0)
    with pytest.raises(UserError, match="mu -1"):
        sgd_map(0.1, 1.0, 3, 1.0, 1, -1)
    with pytest.raises(UserError, match="declared"):
        FreeRiding([1], 0.5, 1.0, declared=[-1])
    with pytest.raises(UserError, match="part of 0"):
        riding(1).rounds_to(0)
