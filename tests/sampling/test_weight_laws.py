"""Mean, variance and covariance of the aggregation weights: exact by enumeration, then as they are really drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from small_server import EXAMPLE_A, EXAMPLE_B, FloatArray, Law, drawn_law, exact_law, near, server_of

from turnout import MD, Full, Uniform
from turnout.samplers import Fill, Renormalised
from turnout.sampling._sampler import Sampler

SIX = (0.3, 0.25, 0.2, 0.1, 0.1, 0.05)
UNBIASED: list[tuple[Sampler, tuple[float, ...]]] = [(Full(), EXAMPLE_A)]
UNBIASED += [(s(2), p) for s in (MD, Uniform) for p in (EXAMPLE_A, EXAMPLE_B)]
UNBIASED += [(MD(3), SIX), (Uniform(3), SIX), (MD(1), SIX), (Uniform(1), SIX)]
ROUNDS = 20_000


class Table:
    """The rows Full, MD and Uniform of the master table (client-sampling.md 4.1)."""

    def __init__(self, sampler: Sampler, p: Sequence[float]) -> None:
        self.p = np.array(p)
        n, s2 = len(p), float(np.square(p).sum())
        everybody = np.ones(n)
        if isinstance(sampler, MD):
            m = sampler.clients_per_round
            self.variance, self.alpha, self.sum, self.total = self.p * (1 - self.p) / m, 1 / m, 0.0, (1 - s2) / m
            self.gamma, self.contacted = 1 / m, 1 - (1 - self.p) ** m
            self.distinct = n - float(((1 - self.p) ** m).sum())
        elif isinstance(sampler, Uniform) and sampler.clients_per_round is not None:
            m = sampler.clients_per_round
            self.variance, self.alpha = (n / m - 1) * self.p**2, (n - m) / (m * (n - 1))
            self.sum, self.total = self.alpha * (n * s2 - 1), (n / m - 1) * s2
            self.gamma, self.contacted, self.distinct = n / (n - 1) * self.total, m / n * everybody, float(m)
        else:
            self.variance, self.alpha, self.sum, self.total, self.gamma = 0 * self.p, 0.0, 0.0, 0.0, 0.0
            self.contacted, self.distinct = everybody, float(n)

    @property
    def covariance(self) -> FloatArray:
        return np.where(np.eye(len(self.p)) == 1, np.diag(self.variance), -self.alpha * np.outer(self.p, self.p))


@cache
def _drawn(name: str, importance: tuple[float, ...]) -> Law:
    sampler = {"md": MD(2), "uniform": Uniform(2), "full": Full()}[name]
    return drawn_law(sampler, server_of(importance, seed=7), ROUNDS)


@pytest.mark.parametrize(("sampler", "p"), UNBIASED)
def test_unbiased_exactly(monkeypatch: pytest.MonkeyPatch, sampler: Sampler, p: Sequence[float]) -> None:
    """client-sampling.md O1: E[omega_i] = p_i by enumeration."""
    law = exact_law(monkeypatch, sampler, p)
    assert law.probability.sum() == pytest.approx(1)
    assert law.expected == pytest.approx(np.array(p), abs=1e-14)


@pytest.mark.parametrize(("sampler", "p"), UNBIASED)
def test_master_table_exactly(monkeypatch: pytest.MonkeyPatch, sampler: Sampler, p: Sequence[float]) -> None:
    """client-sampling.md 4.1, rows Full, MD and Uniform: variance, covariance, sums, inclusion, distinct clients."""
    law, table = exact_law(monkeypatch, sampler, p), Table(sampler, p)
    assert law.covariance == pytest.approx(table.covariance, abs=1e-14)
    assert law.variance_of_sum == pytest.approx(table.sum, abs=1e-14)
    assert np.trace(law.covariance) == pytest.approx(table.total, abs=1e-14)
    gamma = np.diag(law.covariance) + table.alpha * table.p**2
    assert gamma.sum() == pytest.approx(table.gamma, abs=1e-14)
    assert law.mean(law.contacted) == pytest.approx(table.contacted)
    mean, variance = law.distinct
    assert mean == pytest.approx(table.distinct)
    if not isinstance(sampler, MD):
        assert variance == pytest.approx(0, abs=1e-14)
    elif len(p) == 4:  # m = 2: N is 1 or 2, and 1 with probability s2
        assert variance == pytest.approx(float(np.square(p).sum()) * (1 - float(np.square(p).sum())))


@pytest.mark.parametrize(("sampler", "p"), UNBIASED)
def test_covariance_coefficient(monkeypatch: pytest.MonkeyPatch, sampler: Sampler, p: Sequence[float]) -> None:
    """client-sampling.md O2, O15: alpha = (Sigma - Var[sum]) / (1 - s2), in [0, 1]; E[w_i w_j] = (1 - alpha) p p."""
    law, table = exact_law(monkeypatch, sampler, p), Table(sampler, p)
    alpha = (np.trace(law.covariance) - law.variance_of_sum) / (1 - np.square(p).sum())
    assert alpha == pytest.approx(table.alpha, abs=1e-14)
    assert -1e-14 <= alpha <= 1 + 1e-14
    products = law.mean(law.weights[:, :, None] * law.weights[:, None, :])
    apart = ~np.eye(len(p), dtype=bool)
    assert products[apart] == pytest.approx(((1 - alpha) * np.outer(p, p))[apart], abs=1e-14)


@pytest.mark.parametrize("p", [EXAMPLE_A, (0.25,) * 4])
def test_sum_of_weights(monkeypatch: pytest.MonkeyPatch, p: Sequence[float]) -> None:
    """client-sampling.md O3: MD's weights sum to 1 on every draw, Uniform's exactly if all p are equal."""
    equal = len(set(p)) == 1
    assert exact_law(monkeypatch, MD(3), p).weights.sum(1) == pytest.approx(1, abs=1e-15)
    sums = exact_law(monkeypatch, Uniform(2), p).weights.sum(1)
    assert (sums.tolist() == [1.0] * len(sums)) == equal
    assert exact_law(monkeypatch, Full(), p).weights.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("sampler", [MD(2), Uniform(2), Full()])
def test_second_moment_of_the_aggregate(monkeypatch: pytest.MonkeyPatch, sampler: Sampler) -> None:
    """client-sampling.md O6: E|sum w x|^2 = sum gamma_i |x_i|^2 + (1 - alpha) |sum p x|^2."""
    law, table = exact_law(monkeypatch, sampler, EXAMPLE_A), Table(sampler, EXAMPLE_A)
    x = np.array([[1.0, 2.0], [-1.0, 0.5], [3.0, -2.0], [0.0, 4.0]])
    measured = law.mean(np.square(law.weights @ x).sum(1))
    gamma = table.variance + table.alpha * table.p**2
    expected = gamma @ np.square(x).sum(1) + (1 - table.alpha) * np.square(table.p @ x).sum()
    assert measured == pytest.approx(expected)


@pytest.mark.parametrize(("p", "uniform_wins"), [(EXAMPLE_A, True), (EXAMPLE_B, False), ((0.25,) * 4, True)])
def test_uniform_against_md(monkeypatch: pytest.MonkeyPatch, p: Sequence[float], uniform_wins: bool) -> None:
    """client-sampling.md O8 and O9: Sigma_MD - Sigma_U = -((n - m + 1) s2 - 1) / m, of which the sign decides."""
    n, m, s2 = len(p), 2, float(np.square(p).sum())
    sigma_md, sigma_u = (np.trace(exact_law(monkeypatch, s, p).covariance) for s in (MD(m), Uniform(m)))
    assert sigma_md - sigma_u == pytest.approx(-((n - m + 1) * s2 - 1) / m)
    assert bool(sigma_md >= sigma_u) is uniform_wins is (s2 <= 1 / (n - m + 1))
    gamma_md, gamma_u = Table(MD(m), p).gamma, Table(Uniform(m), p).gamma
    assert gamma_u == pytest.approx(n / (n - 1) * sigma_u)
    assert gamma_md - gamma_u == pytest.approx(1 / m - n * (n - m) / (m * (n - 1)) * s2)
    assert sigma_md <= gamma_md


def test_worked_example_a(monkeypatch: pytest.MonkeyPatch) -> None:
    """client-sampling.md 4.3 A: sizes (4, 3, 2, 1), m = 2."""
    md, uniform = exact_law(monkeypatch, MD(2), EXAMPLE_A), exact_law(monkeypatch, Uniform(2), EXAMPLE_A)
    assert np.diag(md.covariance) == pytest.approx([0.12, 0.105, 0.08, 0.045])
    assert md.covariance[0, 1] == pytest.approx(-0.06)
    assert np.trace(md.covariance) == pytest.approx(0.35)
    assert md.mean(md.contacted) == pytest.approx([0.64, 0.51, 0.36, 0.19])
    assert md.distinct == pytest.approx((1.7, 0.21))
    assert np.diag(uniform.covariance) == pytest.approx([0.16, 0.09, 0.04, 0.01])
    assert uniform.covariance[0, 1] == pytest.approx(-0.04)
    assert uniform.variance_of_sum == pytest.approx(1 / 15)
    assert np.trace(uniform.covariance) == pytest.approx(0.30)
    assert Table(Uniform(2), EXAMPLE_A).gamma == pytest.approx(0.40)


def test_worked_example_b(monkeypatch: pytest.MonkeyPatch) -> None:
    """client-sampling.md 4.3 B: sizes (6, 2, 1, 1), m = 2; MD is preferred since s2 = .42 > 1/3."""
    assert np.trace(exact_law(monkeypatch, MD(2), EXAMPLE_B).covariance) == pytest.approx(0.29)
    assert np.trace(exact_law(monkeypatch, Uniform(2), EXAMPLE_B).covariance) == pytest.approx(0.42)


def test_biased_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """client-sampling.md 3.11: Renormalised is skewed, Fill is m/n times too small."""
    skewed = exact_law(monkeypatch, Renormalised(2), EXAMPLE_A)
    assert skewed.expected == pytest.approx([0.339683, 0.296429, 0.233333, 0.130556], abs=5e-7)
    assert skewed.weights.sum(1) == pytest.approx(1)
    slow, unbiased = exact_law(monkeypatch, Fill(2), EXAMPLE_A), exact_law(monkeypatch, Uniform(2), EXAMPLE_A)
    assert slow.expected == pytest.approx(np.array(EXAMPLE_A) / 2)
    assert slow.weights == pytest.approx(unbiased.weights / 2)


@pytest.mark.parametrize("p", [EXAMPLE_A, EXAMPLE_B])
@pytest.mark.parametrize("name", ["md", "uniform"])
def test_drawn_means(name: str, p: tuple[float, ...]) -> None:
    """client-sampling.md O13: over R = 20 000 rounds |mean - p_i| <= 5 sqrt(Var_i / R)."""
    law, table = _drawn(name, p), Table({"md": MD(2), "uniform": Uniform(2)}[name], p)
    assert (np.abs(law.expected - table.p) <= 5 * np.sqrt(table.variance / ROUNDS)).all()


@pytest.mark.parametrize("p", [EXAMPLE_A, EXAMPLE_B])
@pytest.mark.parametrize("name", ["md", "uniform"])
def test_drawn_moments(name: str, p: tuple[float, ...]) -> None:
    """client-sampling.md 4.1 as drawn: covariances, inclusion, distinct clients, each within 5 standard errors."""
    law, table = _drawn(name, p), Table({"md": MD(2), "uniform": Uniform(2)}[name], p)
    centred = law.weights - table.p
    assert near(centred[:, :, None] * centred[:, None, :], table.covariance)
    assert near((law.weights.sum(1) - 1) ** 2, table.sum)
    assert near(law.contacted.astype(float), table.contacted)
    assert near(law.contacted.sum(1).astype(float), table.distinct)


@pytest.mark.parametrize("name", ["md", "uniform"])
def test_rounds_are_independent(name: str) -> None:
    """No memory from one round to the next: weights of neighbouring rounds are uncorrelated (5 standard errors)."""
    centred = _drawn(name, EXAMPLE_A).weights - np.array(EXAMPLE_A)
    assert near(centred[1:, :, None] * centred[:-1, None, :], 0.0)


def test_mnist_population() -> None:
    """client-sampling.md 4.4, MNIST with MD: P(10 distinct) .628157, E[distinct] 9.5618, Var .00099, P(S) .09562."""
    assert math.prod(1 - i / 100 for i in range(10)) == pytest.approx(0.628157, abs=5e-7)
    law = drawn_law(MD(10), server_of("equal", seed=3, clients=100), 5000)
    distinct = law.contacted.sum(1)
    assert near((distinct == 10).astype(float), 0.628157)
    assert near(distinct.astype(float), 9.5618)
    assert near(np.square(law.weights - 0.01).mean(1), 9.9e-4)
    assert near(law.contacted.mean(1), 0.095618)


def test_cifar_population() -> None:
    """client-sampling.md 4.4, CIFAR unbalanced, m = 10: Sigma and E[N] of MD, Sigma and Var[sum] of Uniform."""
    sizes = np.repeat([100, 250, 500, 750, 1000], [10, 30, 30, 20, 10])
    p = sizes / sizes.sum()
    assert np.square(p).sum() == pytest.approx(0.01306196, abs=5e-9)
    server = server_of(p.tolist(), seed=4)
    md, uniform = drawn_law(MD(10), server, 3000), drawn_law(Uniform(10), server, 3000)
    assert near(np.square(md.weights - p).sum(1), 0.09869380)
    assert near(md.contacted.sum(1).astype(float), 9.4354)
    assert near(np.square(uniform.weights - p).sum(1), 0.11755766)
    assert near((uniform.weights.sum(1) - 1) ** 2, 0.02783602)


@pytest.mark.parametrize(("n", "gap"), [(10, 0.08), (20, 0.045), (40, 0.02375), (80, 0.0121875)])
def test_gap_between_md_and_uniform_shrinks(n: int, gap: float) -> None:
    """client-sampling.md 4.4: equal importance, m = n / 2, Sigma_MD - Sigma_U."""
    server = server_of("equal", seed=5, clients=n)
    spread = [np.square(drawn_law(s(n // 2), server, 800).weights - 1 / n).sum(1) for s in (MD, Uniform)]
    assert np.ptp(spread[1]) < 1e-12  # Uniform's is the same in every round
    assert near(spread[0] - spread[1], gap)
