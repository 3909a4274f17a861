"""How much Gaussian noise hides how much sensitivity.

Two models at most psi apart, each with noise N(0, sigma^2), are told apart as well as N(0, 1) and N(mu, 1) are, with
mu = psi / sigma. That is (epsilon, delta)-indistinguishable exactly if (Balle and Wang, "Improving the Gaussian
mechanism for differential privacy", ICML 2018)

    delta >= Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

`analytic` solves this for mu. `classic` is sigma = psi sqrt(2 ln(1.25 / delta)) / epsilon, as the unlearning papers
print it; it is proved for epsilon < 1 only, and promises too much at epsilon = 10. Noise on several cuts adds up as
mu^2 = mu_1^2 + mu_2^2 + ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from scipy.special import log_ndtr, ndtr

from turnout.core.errors import UserError, unknown

CALIBRATIONS = ("analytic", "classic")


def check_budget(epsilon: float, delta: float) -> None:
    if not 0 <= epsilon < math.inf:
        raise UserError(f"unlearning.epsilon: {epsilon} must be a number of at least 0")
    if not 0 < delta < 1:
        raise UserError(f"unlearning.delta: {delta} must be between 0 and 1")


def achieved_delta(mu: float, epsilon: float) -> float:
    """The least delta that holds with this epsilon."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    near, far = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return max(0.0, float(ndtr(near)) - math.exp(epsilon + float(log_ndtr(far))))


def achieved_epsilon(mu: float, delta: float) -> float:
    """The least epsilon that holds with this delta."""
    if math.isinf(mu):
        return math.inf
    return _least(lambda epsilon: achieved_delta(mu, epsilon) <= delta)


def noise_ratio(epsilon: float, delta: float, calibration: str = "analytic") -> float:
    """sigma / psi: the noise that hides a sensitivity of 1."""
    check_budget(epsilon, delta)
    if calibration not in CALIBRATIONS:
        raise unknown("unlearning.calibration", calibration, CALIBRATIONS)
    if calibration == "classic":
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon else math.inf
    return _least(lambda sigma: sigma > 0 and achieved_delta(1 / sigma, epsilon) <= delta)


def threshold(epsilon: float, delta: float, sigma: float, calibration: str = "analytic") -> float:
    """psi*: the largest sensitivity that this noise hides."""
    return sigma / noise_ratio(epsilon, delta, calibration)


def composed(mus: Iterable[float]) -> float:
    """What several noised cuts amount to together."""
    return math.hypot(*mus)


def _least(holds: Callable[[float], bool]) -> float:
    """The least number from 0 on for which it holds, found from above; it must go on holding beyond."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
