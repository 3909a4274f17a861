"""Noise and what it hides: published constants, and the exact Gaussian mechanism by integration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnout import UserError
from turnout.record.unlearning import Calibration, Unlearning, achieved_delta, achieved_epsilon, composed, noise_ratio


def threshold(epsilon: float, delta: float, sigma: float, calibration: Calibration = "analytic") -> float:
    return Unlearning(epsilon=epsilon, delta=delta, sigma=sigma, calibration=calibration).threshold


@pytest.mark.parametrize(("budget", "ratio"), [((10, 0.01), 0.310751), ((1, 0.01), 3.10751)])
def test_classic_constants(budget: tuple[float, float], ratio: float) -> None:
    assert noise_ratio(*budget, "classic") == pytest.approx(ratio, rel=2e-6)


@pytest.mark.parametrize(
    ("budget", "ratio"),
    [((10, 0.01), 0.350097), ((5, 0.01), 0.569379), ((3, 0.01), 0.825992), ((1, 0.01), 1.877876),
     ((0.5, 0.01), 3.146913), ((1, 1e-5), 3.730632)],
)  # fmt: skip
def test_analytic_constants(budget: tuple[float, float], ratio: float) -> None:
    assert noise_ratio(*budget) == pytest.approx(ratio, rel=2e-6)


def test_thresholds_of_the_paper() -> None:
    assert threshold(10, 0.01, 0.05, "classic") == pytest.approx(0.160900, abs=1e-6)
    assert threshold(10, 0.01, 0.1, "classic") == pytest.approx(0.321801, abs=1e-6)
    assert threshold(10, 0.01, 1.0) == pytest.approx(2.85635, abs=1e-5)
    assert threshold(10, 0.01, 0.0) == threshold(0, 0.01, 1.0, "classic") == 0


def test_the_classic_formula_promises_too_much() -> None:
    """At epsilon 10 its noise gives delta 0.0406, not 0.01."""
    mu = 1 / noise_ratio(10, 0.01, "classic")
    assert achieved_delta(mu, 10) == pytest.approx(0.04058, abs=5e-6)
    assert achieved_epsilon(mu, 0.01) == pytest.approx(11.918, abs=5e-4)
    assert achieved_delta(1 / noise_ratio(1, 0.01, "classic"), 1) < 0.01  # where it is proved it holds


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.1), (1.0, 1.0), (3.2, 10.0), (2.0, 0.0), (8.0, 40.0)])
def test_delta_is_the_integral_it_stands_for(mu: float, epsilon: float) -> None:
    """sup over A of P(A) - e^epsilon Q(A) is the integral of the positive part of p - e^epsilon q."""
    x = np.linspace(-15, 30, 2_000_001)
    p, q = (np.exp(-((x - centre) ** 2) / 2) / math.sqrt(2 * math.pi) for centre in (mu, 0.0))
    integral = np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0])
    assert achieved_delta(mu, epsilon) == pytest.approx(integral, abs=1e-6)
    assert achieved_epsilon(mu, achieved_delta(mu, epsilon)) == pytest.approx(epsilon, rel=1e-6, abs=1e-9)


def test_extremes() -> None:
    assert achieved_delta(0, 1) == achieved_epsilon(0, 0.01) == 0
    assert achieved_delta(math.inf, 1) == 1
    assert achieved_epsilon(math.inf, 0.01) == math.inf
    assert 4e9 < achieved_epsilon(1e5, 0.01) < 6e9
    assert threshold(1e4, 0.01, 1.0) > threshold(1e3, 0.01, 1.0)


def test_two_cuts_at_the_limit_of_the_paper() -> None:
    """Each alone is (10, 0.01) by the classic formula; together epsilon is about 20.1."""
    mu = 1 / noise_ratio(10, 0.01, "classic")
    assert achieved_epsilon(composed([mu, mu]), 0.01) == pytest.approx(20.1, abs=0.05)


def test_sequential_accumulation() -> None:
    """Scalar linear rounds theta <- q theta + (1 - q) mean a, q = .999, a = (0, 0, 0, 0, 10). Client 0 leaves at T = 40
    and client 4 later at psi_1 = .08: what the second leaves behind in both branches is more than either cut says."""
    q, optima, start = 0.999, np.array([0.0, 0, 0, 0, 10]), 0.0
    mean = optima.mean()

    def psi(rounds: int, there: list[int], client: int) -> float:
        others = [i for i in there if i != client]
        return abs(optima[there].mean() - optima[others].mean()) * (1 - q) * rounds

    everybody, remain = [0, 1, 2, 3, 4], [1, 2, 3, 4]
    assert psi(40, everybody, 4) == pytest.approx(0.08)
    rounds = 32
    assert psi(rounds, remain, 4) == pytest.approx(0.08)
    with_client = q**40 * start + (1 - q**40) * mean
    with_client = q**rounds * with_client + (1 - q**rounds) * optima[remain].mean()
    without = 0.0  # all the others are at 0
    spread = math.hypot(q**rounds, 1.0)  # noise of the first cut, shrunk, and of the second
    shift = abs(with_client - without) / spread
    assert 0.08 < shift < composed([0.08, 0.08]) == pytest.approx(0.1131, abs=1e-4)
    assert shift == pytest.approx(0.1112, abs=2e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((-1, 0.01), "epsilon: -1"), ((math.nan, 0.01), "epsilon: nan"), ((1, 0.0), "delta: 0.0"),
     ((1, 1.5), "delta: 1.5"), ((1, 0.1, "guess"), "calibration: unknown name 'guess'")],
)  # fmt: skip
def test_refused(arguments: tuple[float, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        noise_ratio(*arguments)  # type: ignore[arg-type]
