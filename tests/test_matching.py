"""Divergence of profiles, chances and the bound: oracles O1 to O5, O8, O17 and O18 of the FedProf spec."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from turnout import UserError
from turnout.core.random import FloatArray, key, normal, uniform
from turnout.theory.matching import divergence, informative, kl, selection_probabilities
from turnout_studies.theory.fedprof_bound import Convergence, preference_for_weights


def profiles(clients: int, q: int = 6, seed: int = 0) -> FloatArray:
    """`[clients, 2, q]` ordinary ones."""
    means = normal(key(seed, "means"), clients * q).reshape(clients, q)
    return np.stack([means, 0.5 + uniform(key(seed, "variances"), clients * q).reshape(clients, q)], axis=1)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((0, 1), (0, 1), 0.0), ((0, 1), (1, 1), 0.5), ((0, 1), (0, 4), 0.318147), ((0, 4), (0, 1), 0.806853)],
)
def test_known_values(one: tuple[float, float], other: tuple[float, float], expected: float) -> None:
    """O1: (mean, variance) relative to (mean, variance)."""
    assert float(kl(*one, *other)) == pytest.approx(expected, abs=1e-6)


def test_it_is_the_divergence_of_torch() -> None:
    """O1: never negative, and not symmetric."""
    one, other = profiles(2, 50)
    ours = kl(*one, *other)
    normals = [Normal(torch.as_tensor(mean), torch.as_tensor(var).sqrt()) for mean, var in (one, other)]
    assert ours == pytest.approx(kl_divergence(*normals).numpy(), abs=1e-6)
    assert (ours >= 0).all()
    assert not np.allclose(ours, kl(*other, *one))


def test_the_printed_formula_lacks_a_half() -> None:
    """O2: with one alpha for all the chances are the same."""
    *clients, reference = profiles(6)
    right, printed = (divergence(clients, reference, legacy_kl=legacy) for legacy in (False, True))
    assert printed == pytest.approx(right + 0.5, abs=1e-12)
    assert selection_probabilities(printed, 10) == pytest.approx(selection_probabilities(right, 10), abs=1e-9)
    own = np.linspace(1, 10, 5)
    assert not np.allclose(selection_probabilities(printed, own), selection_probabilities(right, own))


def test_what_it_does_not_depend_on() -> None:
    """O3: a common affine map, the order of the elements, every element twice."""
    client, reference = profiles(2)
    base = divergence(client, reference)
    scale, shift = 3.0, -7.0
    one, other = (np.stack([scale * mean + shift, scale**2 * var]) for mean, var in (client, reference))
    assert divergence(one, other) == pytest.approx(base, abs=1e-12)
    order = [3, 0, 5, 1, 4, 2]
    assert divergence(client[:, order], reference[:, order]) == pytest.approx(base, abs=1e-12)
    assert divergence(np.tile(client, 2), np.tile(reference, 2)) == pytest.approx(base, abs=1e-12)


def test_chances() -> None:
    """O4."""
    apart = np.array([0.3, 0.1, 2.0, 0.1])
    assert selection_probabilities(apart, 0.0).tolist() == [0.25] * 4
    assert selection_probabilities(np.full(3, 7.0), 10.0).tolist() == [1 / 3] * 3
    assert selection_probabilities(apart, 1e6) == pytest.approx(np.array([0, 0.5, 0, 0.5]))
    chances = selection_probabilities(apart, 10.0)
    assert chances.sum() == pytest.approx(1)
    assert chances[1] == chances[3] > chances[0] > chances[2] > 0
    assert chances[0] / chances[1] == pytest.approx(np.exp(-10 * 0.2))


def test_large_divergences_do_not_underflow() -> None:
    """3.9: exp(-10 * 400) is nothing, the probabilities are not."""
    assert selection_probabilities([400.0, 400.1], 10.0) == pytest.approx(np.array([1, np.exp(-1)]) / (1 + np.exp(-1)))


def test_preference_for_wanted_weights() -> None:
    """O5, for any divergence above 0."""
    wanted = np.array([0.5, 0.3, 0.15, 0.05])
    for apart in (np.array([1e-8, 0.2, 5.0, 1e3]), np.full(4, 0.7)):
        alpha = preference_for_weights(wanted, apart)
        assert selection_probabilities(apart, alpha) == pytest.approx(wanted, abs=1e-9)
    nobody = preference_for_weights([1.0, 0.0], [0.1, 0.1])
    assert selection_probabilities([0.1, 0.1], nobody).tolist() == [1.0, 0.0]
    with pytest.raises(UserError, match=r"sum to 0\.8"):
        preference_for_weights([0.5, 0.3], [1, 1])


def test_profiles_that_are_not_sound_are_infinitely_far() -> None:
    """3.9: and never poison others."""
    *clients, reference = profiles(6)
    before = divergence(clients, reference)
    for row, value in ((0, np.nan), (1, np.inf), (2, -1.0)):
        clients[row] = clients[row].copy()
        clients[row][1, 2] = value
    after = divergence(clients, reference)
    assert after[:3].tolist() == [np.inf] * 3
    assert (after[3:] == before[3:]).all()
    chances = selection_probabilities(after, 0.0)
    assert chances.tolist() == [0, 0, 0, 0.5, 0.5]
    assert selection_probabilities(np.full(4, np.inf), 10.0).tolist() == [0.25] * 4


def test_constant_elements_of_a_client_are_far_but_finite() -> None:
    """3.9: variance 0 is raised to max(floor, 1e-6 reference variance)."""
    reference = np.array([[0.0], [4.0]])
    constant = divergence(np.zeros((2, 1)), reference)
    assert constant == pytest.approx((np.log(1e6) + 1e-6 - 1) / 2)
    assert np.isfinite(constant)
    assert divergence(np.zeros((2, 1)), reference, var_floor=1e-2) == pytest.approx((np.log(400) + 0.01 / 4 - 1) / 2)


def test_dead_units_of_the_reference_are_skipped() -> None:
    """3.9: the mean is over the elements kept; with none kept all are alike."""
    client, reference = profiles(2)
    dead = reference.copy()
    dead[1, :2] = 0.0
    assert informative(dead).tolist() == [False, False, True, True, True, True]
    assert divergence(client, dead) == pytest.approx(divergence(client[:, 2:], reference[:, 2:]))
    dead[1] = 0.0
    assert divergence([client, reference], dead).tolist() == [0.0, 0.0]


def test_profiles_of_different_layers_are_refused() -> None:
    with pytest.raises(UserError, match="5 elements cannot be compared with 6"):
        divergence(profiles(1, 5), profiles(1, 6)[0])


def test_everybody_has_the_least_chance() -> None:
    chances = selection_probabilities([0.0, 50.0, np.inf], 10.0, min_prob=0.1)
    assert chances == pytest.approx(np.array([0.9, 0.1, 0.0]))
    assert selection_probabilities([0.0, 50.0], 10.0, min_prob=1.0).tolist() == [0.5, 0.5]


def test_clients_like_the_reference_come_close() -> None:
    """O8: the expected divergence of n Gaussian samples is about 1 / n; 4,000 elements, so 5 % is enough."""
    q, reference = 4000, np.stack([np.zeros(4000), np.ones(4000)])
    for n, expected in ((20, 0.0525), (100, 0.00997), (500, 0.00200)):
        samples = normal(key(3, "like the reference", n), n * q).reshape(n, q)
        assert divergence(np.stack([samples.mean(0), samples.var(0)]), reference) == pytest.approx(expected, rel=0.05)
    many = normal(key(3, "like the reference", 0), 400_000).reshape(100_000, 4)
    assert divergence(np.stack([many.mean(0), many.var(0)]), reference[:, :4]) < 1e-4


# -- the bound ------------------------------------------------------------------------------------------------

THEORY = Convergence(
    smoothness=4.0,
    convexity=0.5,
    local_steps=5,
    clients_per_round=3,
    weights=np.array([0.5, 0.3, 0.2]),
    noise=np.array([0.1, 0.2, 0.3]),
    gradient=2.0,
    heterogeneity=0.4,
    distance=9.0,
)


def test_constants_by_hand() -> None:
    assert THEORY.gamma == 63
    assert THEORY.drift == pytest.approx(0.05**2 + 0.06**2 + 0.06**2 + 6 * 4 * 0.4 + 8 * 16 * 4)
    assert THEORY.sampling == pytest.approx(4 / 3 * 25 * 4)
    expected = 4 / 68 * (2 * (THEORY.drift + THEORY.sampling) / 0.25 + 32 * 9)
    assert float(THEORY.bound(5)) == pytest.approx(expected)


def test_shape_of_the_bound() -> None:
    """O17. It is linear in L at fixed gamma only without heterogeneity: B holds 6 L Gamma."""
    steps = np.arange(0, 1000, 5)
    assert (np.diff(THEORY.bound(steps)) < 0).all()
    assert replace(THEORY, clients_per_round=6).bound(10) < THEORY.bound(10)
    flat = replace(THEORY, heterogeneity=0.0, smoothness=0.1)  # gamma = E - 1
    assert flat.gamma == replace(flat, smoothness=0.2).gamma == 4
    assert float(replace(flat, smoothness=0.2).bound(10)) == pytest.approx(2 * float(flat.bound(10)))
    for theory in (THEORY, flat):
        assert theory.lr(1) <= 1 / (4 * theory.smoothness) + 1e-15
        later = np.arange(1, 500)
        assert (theory.lr(later) <= 2 * theory.lr(later + theory.local_steps) + 1e-15).all()


def test_the_recursion_stays_below() -> None:
    """O17: Delta <- (1 - eta mu) Delta + eta^2 (B + C) stays below nu / (gamma + t)."""
    for theory in (THEORY, replace(THEORY, distance=1e4)):
        error = theory.drift + theory.sampling
        nu = max(4 * error / theory.convexity**2, (theory.gamma + 1) * theory.distance)
        gap = theory.distance
        for t in range(1, 2000):
            assert gap <= nu / (theory.gamma + t) * (1 + 1e-12)
            rate = float(theory.lr(t))
            gap = (1 - rate * theory.convexity) * gap + rate**2 * error


def test_a_quadratic_stays_below_the_bound() -> None:
    """O18: F_k = c_k (w - b_k)^2 / 2, noisy gradients, K draws by rho, the mean of E steps each; 2,000 runs at once."""
    c, b, rho, runs = np.array([0.5, 1.0, 2.0]), np.array([-1.0, 0.5, 2.0]), np.array([0.5, 0.3, 0.2]), 2000
    optimum = (rho * c * b).sum() / (rho * c).sum()

    def objective(w: FloatArray) -> FloatArray:
        return (rho * c * np.square(w[..., None] - b)).sum(-1) / 2

    local_steps, draws, noise, start = 4, 2, 0.3, 4.0
    far = c.max() * (start - b.min() + 1)  # a bound on every gradient, noise included
    theory = Convergence(
        2.0, 0.5, local_steps, draws, rho, np.full(3, noise), far, float(objective(np.array(optimum))),
        (start - optimum) ** 2,
    )  # fmt: skip
    w, largest = np.full(runs, start), 0.0
    for round in range(60):
        chosen = np.searchsorted(np.cumsum(rho), uniform(key(1, "draw", round), runs * draws)).reshape(runs, draws)
        own = np.repeat(w[:, None], draws, axis=1)
        for step in range(local_steps):
            t = round * local_steps + step + 1
            gradient = c[chosen] * (own - b[chosen])
            gradient += noise * normal(key(1, "noise", t), runs * draws).reshape(runs, draws)
            largest = max(largest, float(np.abs(gradient).max()))
            own = own - theory.lr(t) * gradient
        w = own.mean(1)
        gap = float(objective(w).mean() - objective(np.array(optimum)))
        assert 0 <= gap <= float(theory.bound((round + 1) * local_steps))
    assert largest <= far
    assert gap < 0.05  # and it converges
