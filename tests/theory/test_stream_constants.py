"""Constants of the bound for data streams: oracles 16 and 18 of data-streams.md, and its section 4."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.core.random import generator, key
from turnout.theory.streams import estimated_ratio
from turnout_studies.theory.stream_constants import bound_constants, gradient_limit, optimisation_bound

FINE: dict[str, Any] = {"D": 2.0, "L": 1.5, "B": 3.0, "lr": 0.1, "steps": 4, "first_round": 0.01}


def test_o18_ratios_of_two_datasets() -> None:
    femnist = estimated_ratio(3.5, 5.9, 12.9, 867_390, 817_851, 0.8 * 3597)
    shakespeare = estimated_ratio(6.1, 2.6, 1.4, 226_180, 3_436_096, 0.8 * 916)
    assert (femnist, shakespeare) == pytest.approx((0.0011, 0.0645), abs=5e-5)


def test_the_printed_inputs_of_cifar_do_not_give_the_printed_ratio() -> None:
    found = [estimated_ratio(2.3, 1.0, 5.5, 3_353_034, samples, 25) for samples in (50_000, 500_000)]
    assert found == pytest.approx([0.381, 0.178], abs=5e-4)


def test_the_estimate_is_the_ratio_of_the_constants_under_its_approximations() -> None:
    B, D, G, samples, fresh = 2.3, 1.7, 0.9, 1e6, 30
    pdim = samples / math.exp(3)  # so that sqrt(1 + ln(N / Pdim)) = 2
    c1, c2 = bound_constants(B, D, 2 * G, pdim, samples, fresh, 10**18, B)
    assert c2 / c1 == pytest.approx(estimated_ratio(B, D, G, pdim * (10 * B) ** 2, samples, fresh), rel=1e-8)


def test_constants_by_hand() -> None:
    c1, c2 = bound_constants(0.7, 3.0, 0.5, 100, 10_000, 16, 25, 0.2)
    assert c1 == pytest.approx(0.5 * 4 * 3.4)
    assert c2 == pytest.approx(7 * math.sqrt(1 + math.log(100)) * 0.1 + 0.4)


@pytest.mark.parametrize("number", range(20))
def test_o16_gradients_of_smooth_bounded_functions(number: int) -> None:
    """Sums of a (1 + sin(w x + phase)): values in [0, 2 sum a], second derivative at most sum a w^2."""
    chance = generator(key(number, "smooth"))
    a, w, phase = chance.uniform(0.1, 2, (3, 4, 1))
    x = np.linspace(-50, 50, 20_001)
    gradient = (a * w * np.cos(w * x + 3 * phase)).sum(0)
    assert np.abs(gradient).max() <= gradient_limit(float((a * w**2).sum()), 2 * float(a.sum()))


def test_o16_a_parabola_reaches_the_limit() -> None:
    smoothness, height = 3.0, 2.0
    x = math.sqrt(2 * height / smoothness)  # where it is `height` high
    assert gradient_limit(smoothness, height) == pytest.approx(smoothness * x)


def test_the_optimisation_bound_by_hand() -> None:
    h, G = 0.4, 3.0
    C1 = G * (2.5 * G + 1.5 * 2 * math.sqrt(1.5))
    C2 = 2 * 1.5**2 * G**2 * 0.75
    expected = 0.5 * 2 + 0.01 * 4 / (2 * h) + h * 0.25 + h * C1 + h**3 * C2
    assert optimisation_bound(0.5, **FINE) == pytest.approx(expected)


def test_one_local_step_does_not_drift() -> None:
    found = optimisation_bound(0.0, **{**FINE, "steps": 1})
    assert found == pytest.approx(0.01 * 4 / 0.2 + 0.1 * 2.5 * 9)


def test_noise_stays_however_many_rounds_there_are() -> None:
    def after(rounds: float, noise: float) -> float:
        return optimisation_bound(noise, **{**FINE, "lr": 1 / math.sqrt(rounds), "first_round": 1 / rounds})

    assert after(1e16, 0.5) == pytest.approx(0.5 * FINE["D"], rel=1e-4)
    assert after(1e16, 0.0) < 1e-5


def test_gradient_descent_on_alternating_losses_stays_below() -> None:
    """(theta - z)^2 / 2 on [-1, 1], z = 1/2 and -1/2 in turn: the gradient is always 1/2 away from that of the mean."""
    rounds = 400
    lr, theta, total = 1 / math.sqrt(rounds), 1.0, 0.0
    for number in range(rounds):
        theta = min(1.0, max(-1.0, theta - lr * (theta - (0.5 if number % 2 else -0.5))))
        total += theta / rounds
    limit = optimisation_bound(0.5, D=2, L=1, B=1.125, lr=lr, steps=1, first_round=1 / rounds)
    assert total**2 / 2 <= limit


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: estimated_ratio(2.3, 0.0, 5.5, 100, 50, 25), "D: 0.0 must be above 0"),
        (lambda: estimated_ratio(2.3, 1.0, 5.5, 100, 50, 0), "fresh_clients: 0 must be above 0"),
        (lambda: bound_constants(1, 1, 1, 20, 10, 5, 10, 0), "pdim: 20 must be above 0 and at most the 10 samples"),
        (lambda: optimisation_bound(0.5, **{**FINE, "lr": 0.0}), "lr: 0.0 must be above 0"),
    ],
)
def test_mistakes_are_sentences(call: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call()
