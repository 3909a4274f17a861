"""The algebra of chains: oracles O1 to O4 and O17 of correlated availability."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.clients.chains import feasible, lowest_correlation
from turnout.core.errors import UserError
from turnout_studies.theory.chain_algebra import (
    from_transitions,
    hitting_times,
    mixing_time,
    product_chain,
    relaxation_time,
    slem,
    stationary,
    transition_matrix,
)

PAIRS = [(0.1, 0.9), (0.9, 0.5), (0.5, -0.9), (0.3, 0.0), (0.9, -0.1), (0.2, -0.2)]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[float, float]:
    share = draw(st.floats(0.01, 0.99))
    lowest = float(lowest_correlation(share))
    return share, lowest + draw(st.floats(0, 0.999)) * (1 - lowest)


@given(pairs(), st.integers(0, 30))
def test_powers_eigenvalues_and_stationary_law(pair: tuple[float, float], steps: int) -> None:
    """O1: eigenvalues 1 and lambda; [P^t]_11 = pi + (1 - pi) lambda^t; autocovariance pi (1 - pi) lambda^t."""
    share, correlation = pair
    chain = transition_matrix(share, correlation)
    assert (chain >= -1e-12).all()
    assert chain.sum(1) == pytest.approx([1, 1])
    assert np.sort(np.linalg.eigvals(chain)) == pytest.approx(np.sort([1, correlation]), abs=1e-9)
    assert stationary(chain) == pytest.approx([1 - share, share])
    power = np.linalg.matrix_power(chain, steps)
    assert power[1, 1] == pytest.approx(share + (1 - share) * correlation**steps)
    assert share * power[1, 1] - share**2 == pytest.approx(share * (1 - share) * correlation**steps, abs=1e-12)


def test_the_worked_example() -> None:
    """O1: pi = 0.1, lambda = 0.9."""
    chain = transition_matrix(0.1, 0.9)
    np.testing.assert_allclose(chain, [[0.99, 0.01], [0.09, 0.91]], rtol=1e-12)
    assert np.linalg.matrix_power(chain, 10)[1, 1] == pytest.approx(0.41381, abs=5e-6)


@given(pairs())
def test_round_trip(pair: tuple[float, float]) -> None:
    """O2."""
    chain = transition_matrix(*pair)
    assert from_transitions(chain[0, 0], chain[1, 1]) == pytest.approx(pair, rel=0, abs=1e-12)


@pytest.mark.parametrize(
    ("share", "correlation"), [(0.9, -0.2), (0.5, 1.0), (0.0, -0.1), (1.0, -0.1), (0.5, -1.1), (0.5, np.nan)]
)
def test_impossible_chains_are_refused(share: float, correlation: float) -> None:
    """O2: (0.9, -0.2) would need probabilities below 0."""
    assert not feasible(share, correlation)
    with pytest.raises(UserError, match=r"correlation is .*; it must be from .* to below 1"):
        transition_matrix(share, correlation)


def test_the_lowest_correlation_has_a_zero_in_its_chain() -> None:
    """max{-pi / (1 - pi), -(1 - pi) / pi}: a step further and a probability is negative."""
    assert lowest_correlation([0.0, 0.1, 0.5, 0.9, 1.0]) == pytest.approx([0, -1 / 9, -1, -1 / 9, 0])
    for share in (0.1, 0.4, 0.5, 0.9):
        assert transition_matrix(share, float(lowest_correlation(share))).min() == pytest.approx(0, abs=1e-12)
    assert feasible(0.9, -1 / 9)  # up to rounding


@pytest.mark.parametrize("shares", [(1.2, 0.1), (-0.1, 0.5)])
def test_shares_are_shares(shares: tuple[float, float]) -> None:
    with pytest.raises(UserError, match="probability"):
        transition_matrix(*shares)
    with pytest.raises(UserError, match="between 0 and 1"):
        from_transitions(*shares)


def test_a_chain_that_never_changes_has_no_share() -> None:
    with pytest.raises(UserError, match="not both 1"):
        from_transitions(1.0, 1.0)


def test_product_of_independent_chains() -> None:
    """O3: eigenvalues multiply, so the SLEM is the largest of the SLEMs; the stationary law is the product."""
    one, other = transition_matrix(0.1, 0.9), transition_matrix(0.9, 0.5)
    both = product_chain(one, other)
    assert np.sort(np.abs(np.linalg.eigvals(both))) == pytest.approx([0.45, 0.5, 0.9, 1])
    assert slem(both) == pytest.approx(0.9)
    assert stationary(both) == pytest.approx(np.kron([0.9, 0.1], [0.1, 0.9]))
    three = product_chain(both, transition_matrix(0.5, -0.95))
    assert three.shape == (8, 8)
    assert slem(three) == pytest.approx(0.95)


@pytest.mark.parametrize(("share", "correlation"), PAIRS)
def test_hitting_time(share: float, correlation: float) -> None:
    """O4: 1 / ((1 - lambda) pi) from offline to online; 100 for (0.1, 0.9)."""
    chain = transition_matrix(share, correlation)
    assert hitting_times(chain, 1) == pytest.approx([1 / ((1 - correlation) * share), 0])
    assert hitting_times(chain, 0) == pytest.approx([0, 1 / ((1 - correlation) * (1 - share))])
    assert hitting_times(transition_matrix(0.1, 0.9), 1)[0] == pytest.approx(100)


def test_hitting_time_of_a_walk() -> None:
    """A walk on 0..4 that turns round at its ends: 16 = n^2 steps from one to the other."""
    walk = np.diag([0.5] * 4, 1) + np.diag([0.5] * 4, -1)
    walk[0, 1] = walk[4, 3] = 1
    assert hitting_times(walk, 4) == pytest.approx([16 - i**2 for i in range(5)])


@settings(max_examples=50)
@given(pairs(), st.floats(0.001, 0.4))
def test_mixing_time_of_two_states(pair: tuple[float, float], distance: float) -> None:
    """d(t) = max(pi, 1 - pi) |lambda|^t in closed form; the first t at which it is small enough."""
    share, correlation = pair
    if abs(correlation) > 0.9999:
        return
    found, worst = mixing_time(transition_matrix(share, correlation), distance), max(share, 1 - share)
    assert worst * abs(correlation) ** found <= distance * (1 + 1e-6)
    assert found == 0 or worst * abs(correlation) ** (found - 1) > distance * (1 - 1e-6)


@pytest.mark.parametrize("distance", [0.25, 0.05, 0.001])
def test_mixing_time_sandwich(distance: float) -> None:
    """O17: (t_rel - 1) ln(1 / (2 eps)) <= t_mix(eps) <= t_rel ln(1 / (eps rho_min)), alone and side by side."""
    alone = [transition_matrix(*pair) for pair in PAIRS]
    for chain in [*alone, product_chain(*alone[:3]), product_chain(*alone)]:
        steps, relaxation = mixing_time(chain, distance), relaxation_time(chain)
        assert (relaxation - 1) * np.log(1 / (2 * distance)) <= steps
        assert steps <= np.ceil(relaxation * np.log(1 / (distance * stationary(chain).min())))


def test_chains_that_never_mix_are_refused() -> None:
    for chain in (transition_matrix(0.5, -1.0), np.eye(2)):
        with pytest.raises(UserError, match="never forgets"):
            mixing_time(chain)
    assert relaxation_time(np.eye(2)) == np.inf


def test_a_distance_below_rounding_is_refused() -> None:
    with pytest.raises(UserError, match=r"mixing_time: a distance of 0\.0"):
        mixing_time(transition_matrix(0.1, 0.9), 0.0)
