"""Constants and bounds of adversarial unavailability, against what they bound: oracles O4 to O6 and the statements.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, key, uniform
from turnout_studies.theory.unavailability import (
    descent,
    error_floor,
    local_drift,
    proximal_drift,
    selection_bias,
    theory_max_lr,
    tolerated,
)

# -- drift ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
@pytest.mark.parametrize("lr", [0.01, 0.2, 0.5])
def test_local_drift_is_bounded_and_the_bound_is_met(steps: int, lr: float) -> None:
    """O4 on losses c/2 theta^2, |c| <= L, whose s steps end at (1 - lr c)^s theta: met where c = -L."""
    L, theta = 2.0, 1.7
    for c in (-2.0, -1.3, -0.1, 0.4, 1.0, 2.0):
        away = abs(theta - (1 - lr * c) ** steps * theta - steps * lr * c * theta)
        bound = local_drift(lr, steps, L) * abs(c * theta)
        assert away <= bound + 1e-12
        if c == -L:
            assert away == pytest.approx(bound, abs=1e-12)
    assert local_drift(lr, 1, L) == pytest.approx(0, abs=1e-15)
    if steps > 1:
        kappa = ((1 + lr * L) ** steps - 1 - steps * lr * L) / (math.comb(steps, 2) * (lr * L) ** 2)
        assert local_drift(lr, steps, L) == pytest.approx(kappa * lr**2 * math.comb(steps, 2) * L)


@pytest.mark.parametrize("lr", [0.01, 0.2, 0.45])
def test_proximal_drift_is_bounded_and_the_bound_is_met(lr: float) -> None:
    """O5 on c/2 theta^2, whose proximal step ends at theta / (1 + lr c): met where c = -L = -L_-."""
    L, theta = 2.0, 1.7
    for c in (-2.0, -1.3, 0.4, 2.0):
        worst = max(0.0, -c)
        away = abs(theta - theta / (1 + lr * c) - lr * c * theta)
        bound = proximal_drift(lr, L, worst) * abs(c * theta)
        assert away <= bound + 1e-12
        if c == -L:
            assert away == pytest.approx(bound)
    with pytest.raises(UserError, match="below 1 / nonconvexity"):
        proximal_drift(0.5, 2.0, 2.0)


# -- one round ------------------------------------------------------------------------------------------------

DRAWS = np.array(list(itertools.combinations(range(8), 4)))  # [70, 4]
SETS = np.array(list(itertools.product([False, True], repeat=4)))  # [16, 4] who is silenced


def worst_round(p: FloatArray, c: FloatArray, a: FloatArray, theta: float, epsilon: float, lr: float, s: int) -> float:
    """E over all draws of the largest F any legal silencing leads to, of clients c/2 (theta - a)^2."""
    beta = 8 / 4
    change = p * ((1 - lr * c) ** s - 1) * (theta - a)
    legal = p[DRAWS] @ SETS.T <= epsilon * 4 / 8 + 1e-12  # [70, 16]
    steps = beta * (change[DRAWS].sum(1)[:, None] - change[DRAWS] @ SETS.T)
    after = theta + steps
    values = (p * c / 2 * (after[..., None] - a) ** 2).sum(-1)
    return float(np.where(legal, values, -np.inf).max(1).mean())


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 0.5])
def test_one_round_descends_as_promised_whoever_is_silenced(epsilon: float) -> None:
    """O6: M = 8, K = 4, all draws times all legal silencings, 100 unbalanced instances."""
    tight = np.inf
    for number in range(100):
        u = uniform(key(number, "instance"), 40)
        p, c, a = u[:8] + 0.05, 0.1 + 2 * u[8:16], 4 * u[16:24] - 2
        p = p / p.sum()
        L, s, theta = float(c.max()), 1 + int(5 * u[24]), 6 * u[25] - 3
        mean_c, square_c = float(p @ c), float(p @ c**2)
        B2 = 1.5 * square_c / mean_c**2
        # G^2 is the largest sum p (c (x - a))^2 - B^2 (sum p c (x - a))^2 over all x, a parabola that opens downwards
        lead = square_c - B2 * mean_c**2
        slope = float(-2 * (p * c**2) @ a + 2 * B2 * mean_c * (p * c) @ a)
        rest = float((p * c**2) @ a**2 - B2 * ((p * c) @ a) ** 2)
        G = math.sqrt(max(0.0, rest - slope**2 / (4 * lead)))
        B, lr = math.sqrt(B2), u[26] / (2 * s * L)
        bound = descent(epsilon, lr, L, 2.0, 0.5, steps=s, B=B, G=G)
        gradient = abs(float((p * c) @ (theta - a)))
        now = float(p * c / 2 @ (theta - a) ** 2)
        promised = now - bound.a * gradient**2 + bound.b * gradient + bound.c
        reached = worst_round(p, c, a, theta, epsilon, lr, s)
        assert reached <= promised + 1e-12
        tight = min(tight, (promised - reached) / promised)
    assert tight < 0.2  # the bound is not empty


def test_the_constants_as_printed() -> None:
    epsilon, lr, L, beta, p, s, B, G, sigma = 0.04, 0.01, 3.0, 2.0, 0.5, 5, 1.2, 0.7, 0.4
    kappa = ((1 + lr * L) ** s - 1 - s * lr * L) / (math.comb(s, 2) * (lr * L) ** 2)
    k = kappa * (s - 1) * lr * L / 2
    found = descent(epsilon, lr, L, beta, p, steps=s, B=B, G=G, sigma=sigma)
    reach = beta * p * s * lr
    assert found.a == pytest.approx(reach * (1 - 0.2 * B - k * B - beta * s * lr * L / 2 * (1 + k) ** 2 * B**2))
    assert found.b == pytest.approx(reach * (0.2 + k) * (G + sigma))
    assert found.c == pytest.approx(beta**2 * p * s**2 * lr**2 * L / 2 * (1 + k) ** 2 * (G**2 + sigma**2))


# -- limits and floors ----------------------------------------------------------------------------------------


def test_the_largest_learning_rate() -> None:
    assert theory_max_lr(10, 2.0, 1.5, steps=25) == pytest.approx(1 / (10 * 10 * 25 * 2 * 1.5**2))
    assert theory_max_lr(10, 2.0, steps=5, strong_convexity=0.5) == pytest.approx(0.5 / (10 * 10 * 5 * 4))
    assert theory_max_lr(10, 2.0, nonconvexity=1.0) == pytest.approx(1 / 200)
    assert theory_max_lr(0.1, 2.0, nonconvexity=1.0) == pytest.approx(1 / 20)  # the stricter of 1 / 10 L and 1 / 10 L_-
    assert theory_max_lr(0.1, 2.0, nonconvexity=4.0) == pytest.approx(1 / 40)


def test_a_round_at_that_rate_descends() -> None:
    """C_0 > 0 for every tolerated budget: .093 at sqrt(epsilon) B = .8 in the worst case of beta = 1 and many steps."""
    lr = theory_max_lr(1.0, 3.0, 1.0, steps=1000)
    found = {epsilon: descent(epsilon, lr, 3.0, 1.0, 0.5, steps=1000).a / (0.5 * 1000 * lr) for epsilon in (0.01, 0.64)}
    assert found == pytest.approx({0.01: 0.793, 0.64: 0.093}, abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "B", "ratio", "expected"),
    [
        (0.2, 1.0, None, True),
        (0.63, 1.0, None, True),
        (0.64, 1.0, None, False),
        (0.8, 1.0, None, False),
        (0.2, 2.0, None, False),
        (0.2, 1.0, 0.5, False),
        (0.1, 1.0, 0.5, True),
    ],
)
def test_what_is_tolerated(epsilon: float, B: float, ratio: float | None, expected: bool) -> None:
    """The experiments of the source, at .7 to .9, are outside of its theory."""
    assert tolerated(epsilon, B, ratio) == expected


def test_floors() -> None:
    assert [error_floor(e, 1.0) for e in (0.05, 0.1, 0.2, 0.4)] == pytest.approx(
        [0.01316, 0.02778, 0.0625, 0.16667], rel=1e-3
    )
    assert error_floor(0.2, 0.0, 3.0) == pytest.approx(9 * 0.0625)
    for G, sigma in ((1.0, 0.0), (1.0, 1.0), (2.0, 0.5)):
        assert error_floor(0.3, G, sigma) >= 0.3 / (8 * 0.7) * (G**2 + sigma**2)
    assert error_floor(0.3, 1.0, B=2.0) == math.inf
    assert error_floor(1.0, 1.0) == math.inf
    assert error_floor(0.0, 1.0) == 0
    with pytest.raises(UserError, match=r"epsilon: 1\.2 must be from 0 to 1"):
        error_floor(1.2, 1.0)


def test_the_selection_bias() -> None:
    assert selection_bias(0.25, 2.0, B=1.5, G=1.0, sigma=0.5) == pytest.approx(0.5 * 4.5)
