"""What a run promises to those who may ask to be forgotten, decided before it begins, and how much noise that takes.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from scipy.special import log_ndtr, ndtr

from turnout.core.allowed import Count, Finite, Positive, Range
from turnout.core.errors import UserError
from turnout.core.spelling import Spelt, spelt

Chance = Annotated[float, Range(above=0, below=1)]
Calibration = Literal["analytic", "classic"]
Budget = Literal["per_branch", "per_client_total"]
Retention = Literal["all", "frugal", "thinned"]


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


@spelt
def noise_ratio(epsilon: Finite, delta: Chance, calibration: Calibration = "analytic") -> float:
    """sigma / psi: the noise that hides a sensitivity of 1."""
    if calibration == "classic":
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon else math.inf
    return _least(lambda sigma: sigma > 0 and achieved_delta(1 / sigma, epsilon) <= delta)


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


@dataclass(frozen=True)
class Unlearning(Spelt):
    """A budget (`epsilon`, `delta`), the noise `sigma` of every rollback, and how sensitivity is bounded and kept.

    `retention` says which models are kept to roll back to: `all`, every `every`-th (`thinned`), or for each client the
    last one it may be rolled back to (`frugal`). `bound` is `plain`, or `contracted` for losses of that
    `strong_convexity`. `group_rule` is the bound of clients that leave together: `sum`, `joint` for `groups` known
    before training, or `max` as in the paper, which covers each of them alone. `convex` and `smoothness` (L) are what
    you know of the loss: the certificate says what they are needed for. `weights` population is the paper's code.
    `budget` per_client_total keeps (epsilon, delta) over all requests; per_branch, the paper's, for every cut alone.
    """

    section: ClassVar[str] = "unlearning"
    track: bool = True  # whether what forgetting needs is kept
    epsilon: Finite = 10.0  # of the (epsilon, delta) guarantee: how much a forgotten client may still show
    delta: Chance = 0.01  # of the guarantee: the chance that it does not hold
    sigma: Finite = 0.05  # standard deviation of the noise of a rollback
    retention: Retention = "all"  # models that are kept
    every: Count = 10  # rounds from one kept model to the next, with thinned
    calibration: Calibration = "analytic"  # how noise becomes a bound; analytic is exact
    bound: Literal["plain", "contracted"] = "plain"  # of the sensitivity: contracted for strongly convex losses
    group_rule: Literal["sum", "max", "joint"] = "sum"  # bound of clients that leave together
    budget: Budget = "per_client_total"  # per_client_total: over all requests; per_branch: for every cut alone
    weights: Literal["realised", "population"] = "realised"  # realised, or population as in the paper's code
    convex: bool = False  # whether the loss is known to be
    smoothness: Positive | None = None  # L of the loss; none: not known
    strong_convexity: Finite = 0.0  # of the loss; 0: none known
    groups: Sequence[Sequence[int]] = ()  # clients that would leave together, known before training
    always_noise: bool = False  # also where the model rolled back to has seen no data

    def __post_init__(self) -> None:
        if self.group_rule == "joint" and not self.groups:
            raise UserError("unlearning.group_rule: joint needs unlearning.groups, known before training; use sum")
        if self.bound == "contracted" and self.retention == "frugal":
            raise UserError("unlearning.retention: frugal needs unlearning.bound=plain, since another may fall again")

    @cached_property
    def threshold(self) -> float:
        """psi*: the largest sensitivity the noise hides."""
        return self.sigma / noise_ratio(self.epsilon, self.delta, self.calibration)
