"""Bounds of correlated-availability.md, section 3.6: worked numbers, inequalities on quadratics, optimal weights."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, generator, key
from turnout_studies.theory import correlated as theory

ALPHA, PI = np.array([0.5, 0.5]), np.array([0.9, 0.1])


def draws(number: int) -> np.random.Generator:
    return generator(key(number, "bounds"))


def simplex(chance: np.random.Generator, size: int) -> FloatArray:
    return chance.dirichlet(np.ones(size))


# -- O6 -------------------------------------------------------------------------------------------------------


def test_o6_effective_weights() -> None:
    chance = draws(6)
    alpha, pi = simplex(chance, 7), chance.uniform(0.01, 1, 7)
    assert theory.effective_weights(pi, alpha / pi) == pytest.approx(alpha, abs=1e-15)
    assert theory.effective_weights(pi, alpha) == pytest.approx(alpha * pi / (alpha @ pi), abs=1e-15)
    q = chance.uniform(0, 3, 7)
    assert theory.effective_weights(pi, 17 * q) == pytest.approx(theory.effective_weights(pi, q), abs=1e-15)


def test_weights_of_nobody_are_refused() -> None:
    with pytest.raises(UserError, match="nobody who is ever online"):
        theory.effective_weights([0.0, 0.5], [1.0, 0.0])


# -- O7: F_k(w) = (w - c_k)^2 / 2 -------------------------------------------------------------------------------


def test_o7_the_two_clients() -> None:
    optima, p = np.array([0.0, 1.0]), theory.effective_weights(PI, ALPHA)
    meant, reached = ALPHA @ optima, p @ optima
    assert p == pytest.approx([0.9, 0.1])
    assert (meant, reached) == pytest.approx((0.5, 0.1))
    bias = (reached - meant) ** 2 / 2
    assert bias == pytest.approx(0.08)
    assert theory.tv_distance(ALPHA, p) == pytest.approx(0.4)
    gamma, gamma_reached = (float((np.square(w - optima) / 2).max()) for w in (meant, reached))
    assert (gamma, gamma_reached) == pytest.approx((0.125, 0.405))
    assert theory.bias_bound_tv(ALPHA, p, 1.0, gamma_reached) == pytest.approx(0.2592)
    assert theory.chi2_divergence(ALPHA, p) == pytest.approx(16 / 9)
    assert theory.bias_bound_chi2(ALPHA, p, 1.0, gamma) == pytest.approx(2 / 9)


def test_bounds_grow_with_the_condition_number() -> None:
    p = theory.effective_weights(PI, ALPHA)
    assert theory.bias_bound_tv(ALPHA, p, 3.0, 0.405) == pytest.approx(9 * 0.2592)
    assert theory.bias_bound_chi2(ALPHA, p, 3.0, 0.125) == pytest.approx(2)
    assert theory.total_error_bound(3.0, 0.25, 0.5) == pytest.approx(13.5)


def test_a_client_without_weight_makes_one_bound_infinite() -> None:
    p = [1.0, 0.0]
    assert theory.chi2_divergence(ALPHA, p) == np.inf
    assert theory.chi2_divergence([1.0, 0.0], p) == 0
    assert theory.tv_distance(ALPHA, p) == 0.5


class Quadratics:
    """F_k(w) = (w - c_k)' H_k (w - c_k) / 2 in three dimensions."""

    def __init__(self, chance: np.random.Generator, clients: int) -> None:
        self.optima = chance.normal(size=(clients, 3))
        turned = np.linalg.qr(chance.normal(size=(clients, 3, 3)))[0]
        curvatures = chance.uniform(0.5, 3, (clients, 3))
        self.hessians = np.einsum("kij,kj,klj->kil", turned, curvatures, turned)
        self.kappa = float(curvatures.max() / curvatures.min())

    def losses(self, w: FloatArray) -> FloatArray:
        away = w - self.optima
        return np.asarray(np.einsum("ki,kij,kj->k", away, self.hessians, away) / 2)

    def minimum(self, weights: FloatArray) -> FloatArray:
        hessian = np.tensordot(weights, self.hessians, 1)
        pull = np.einsum("k,kij,kj->i", weights, self.hessians, self.optima)
        return np.linalg.solve(hessian, pull)


@pytest.mark.parametrize("number", range(20))
def test_o7_o9_bounds_hold_on_random_quadratics(number: int) -> None:
    chance = draws(number)
    problem, alpha, p = Quadratics(chance, 5), simplex(chance, 5), simplex(chance, 5)
    meant, reached = problem.minimum(alpha), problem.minimum(p)
    best, best_biased = alpha @ problem.losses(meant), p @ problem.losses(reached)
    bias = float(alpha @ problem.losses(reached) - best)
    assert bias <= theory.bias_bound_chi2(alpha, p, problem.kappa, float(problem.losses(meant).max()))
    assert bias <= theory.bias_bound_tv(alpha, p, problem.kappa, float(problem.losses(reached).max()))
    for w in chance.normal(size=(50, 3)):
        optimisation = float(p @ problem.losses(w) - best_biased)
        assert alpha @ problem.losses(w) - best <= theory.total_error_bound(problem.kappa, optimisation, bias)


# -- the optimisation bound -------------------------------------------------------------------------------------

CONSTANTS = {
    "local_steps": 1, "smoothness": 1.0, "gradient": 1.0, "second_moment": 1.0, "variance": [0.0, 0.0],
    "loss_range": 0.5, "heterogeneity": 0.125, "diameter": 1.0, "states": 4, "slem": 0.9, "spectral": 8.0,
}  # fmt: skip
RATES = 0.1 * np.arange(1.0, 401) ** -0.6


def bound(q: FloatArray = ALPHA / PI, rates: FloatArray = RATES, **changes: object) -> float:
    return theory.optimisation_bound(PI, q, rates, **{**CONSTANTS, **changes})  # type: ignore[arg-type]


def test_the_optimisation_bound_term_by_term() -> None:
    """Against the formula of theorem D.20, summed one round at a time."""
    q, e, variance = np.array([0.7, 2.0]), 3, np.array([0.2, 0.5])
    found = bound(q, local_steps=e, variance=variance, second_moment=4.0, gradient=1.5)
    total, decay = 2.7, np.log(1 / 0.95)
    squares = sum(eta**2 for eta in RATES)
    sigma = np.diag(2 * (e + 1) * variance * PI * squares)
    start = 2 / e + 4 * total / 4 * sum(eta**2 + 1 / t**2 for t, eta in enumerate(RATES, 1))
    psi = (4 * (1 + e * total) * 0.125 + 2 * e**2 * 4) * squares
    late = 0.0
    for t in range(1, 401):
        log = np.log(2 * 8 * 0.5 * t)
        lag = min(int(np.ceil(log / decay)), t)
        late += log * RATES[max(t - lag, 1) - 1] ** 2
    phi = 2 * e * 1.5 * 2 * total * late
    expected = ((q @ sigma @ q / 2 + start) / (PI @ q) + psi + phi / decay) / RATES.sum()
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_optimisation_bound_grows_with_correlation() -> None:
    bounds = [bound(slem=slem) for slem in (0.0, 0.5, 0.9, 0.99)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1] / 10


def test_a_chain_that_never_mixes_is_refused() -> None:
    with pytest.raises(UserError, match=r"modulus 1\.0"):
        bound(slem=1.0)


def test_the_largest_first_rate() -> None:
    assert theory.largest_rate(2.0, 5, 1.5) == 1 / 64


# -- O14 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("b", "weights", "value"),
    [
        (5.0, [1.947, 1.053, 0.0], 3.06436),
        (1.0, [1.1191, 1.0866, 0.7942], 1.15975),
        (0.1, [0.626, 0.728, 1.6461], 0.49845),
    ],
)
def test_o14_optimal_weights(b: float, weights: list[float], value: float) -> None:
    """Weights fall with availability for a small b: guideline A is no law."""
    pi = np.array([0.9, 0.5, 0.1])
    q = theory.optimal_weights(pi, pi, b, 3.0)
    assert q == pytest.approx(weights, abs=1e-4)
    assert q.sum() == pytest.approx(3)
    assert (pi @ q**2 / 2 + b) / (pi @ q) == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("number", range(5))
def test_no_other_weights_are_better(number: int) -> None:
    chance = draws(number)
    pi, a = chance.uniform(0.05, 1, 4), chance.uniform(0.1, 2, 4)
    b, total = float(chance.uniform(0.1, 3)), float(chance.uniform(0.5, 3))

    def value(q: FloatArray) -> float:
        return float((a @ q**2 / 2 + b) / (pi @ q))

    constraint = {"type": "eq", "fun": lambda q: q.sum() - total}
    other = minimize(value, np.full(4, total / 4), bounds=[(0, None)] * 4, constraints=constraint, tol=1e-12)  # type: ignore[call-overload]
    found = theory.optimal_weights(pi, a, b, total)
    assert value(found) == pytest.approx(other.fun, rel=1e-7)
    assert found == pytest.approx(other.x, abs=1e-3)


def test_weights_that_cannot_be() -> None:
    with pytest.raises(UserError, match="total: 0 must be above 0"):
        theory.optimal_weights(PI, PI, 1.0, 0)
    with pytest.raises(UserError, match="every a above 0"):
        theory.optimal_weights(PI, [1.0, 0.0], 1.0, 1.0)


# -- O15 ------------------------------------------------------------------------------------------------------


def test_o15_chi2_is_convex_where_the_weights_sum_to_a_constant() -> None:
    chance = draws(15)
    alpha, pi = simplex(chance, 4), chance.uniform(0.05, 1, 4)

    def chi2(q: FloatArray) -> float:
        return theory.chi2_divergence(alpha, theory.effective_weights(pi, q))

    for _ in range(200):
        one, other = 3 * simplex(chance, 4), 3 * simplex(chance, 4)
        assert chi2((one + other) / 2) <= (chi2(one) + chi2(other)) / 2 + 1e-12


def test_o15_and_nowhere_else() -> None:
    """pi = 1, q = alpha and q' = Q / N: with a large Q the middle is q', whose divergence is not halved."""
    alpha, equal = np.array([0.7, 0.2, 0.1]), np.full(3, 1 / 3)
    one, other = alpha, 1e6 * equal

    def chi2(q: FloatArray) -> float:
        return theory.chi2_divergence(alpha, theory.effective_weights(np.ones(3), q))

    assert chi2((one + other) / 2) > (chi2(one) + chi2(other)) / 2 + 0.1
