"""How far regions stray: edge-hierarchy-hybridfl.md O17 and 3.6."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout_studies.theory.hierarchy import convergence_bound, divergence_bound

FINE = {"beta": 2.0, "rho": 0.1, "delta": 0.01, "epsilon": 0.5, "omega": 1.0}


def test_divergence_by_number() -> None:
    """O17: delta 1, beta 2, lr .1."""
    values = divergence_bound(np.arange(6), 1.0, 2.0, 0.1)
    np.testing.assert_allclose(values, [0, 0, 0.02, 0.064, 0.1368, 0.24416], atol=1e-12)


@pytest.mark.parametrize(("delta", "beta", "lr"), [(1.0, 2.0, 0.1), (0.3, 0.5, 1.0), (2.0, 10.0, 0.01)])
def test_divergence_in_general(delta: float, beta: float, lr: float) -> None:
    """O17: nothing up to the first step, lr^2 beta delta after the second, then ever more."""
    assert divergence_bound(2, delta, beta, lr) == pytest.approx(lr**2 * beta * delta)
    values = divergence_bound(np.arange(20), delta, beta, lr)
    np.testing.assert_allclose(values[:2], 0, atol=1e-15)
    assert (np.diff(values[1:]) > 0).all()


def test_convergence_bound_by_hand() -> None:
    drift = 0.1 * float(divergence_bound(5, 0.01, 2.0, 0.1)) / (5 * 0.25)
    expected = 1 / (40 * 5 * (1.0 * 0.1 * (1 - 2.0 * 0.1 / 2) - drift))
    assert convergence_bound(40, 5, 0.1, **FINE) == pytest.approx(expected)
    assert convergence_bound(80, 5, 0.1, **FINE) == pytest.approx(expected / 2)


def test_without_divergence_it_is_gradient_descent() -> None:
    assert convergence_bound(10, 3, 0.1, **{**FINE, "delta": 0.0}) == pytest.approx(1 / (30 * 0.1 * 0.9))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.6}, "lr 0.6 must be at most 1 / beta = 0.5"),
        ({"delta": 50.0}, "take fewer steps or a smaller lr"),
        ({"epsilon": 0.0}, "epsilon: 0.0 must be above 0"),
        ({"omega": -1.0}, "omega: -1.0 must be above 0"),
        ({"rounds": 0}, "rounds: 0 must be above 0"),
        ({"beta": 0.0}, "beta: 0.0 must be above 0"),
    ],
)
def test_a_bound_that_does_not_hold_is_refused(changes: dict[str, float], words: str) -> None:
    values = {"rounds": 40, "steps": 5, "lr": 0.1, **FINE, **changes}
    with pytest.raises(UserError, match=words):
        convergence_bound(**values)  # type: ignore[arg-type]
