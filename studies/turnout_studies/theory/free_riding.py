"""What free-riders do to the model: its mean, its variance, and how much longer training takes.

Fraboni, Vidal, Lorenzi, "Free-rider attacks on model aggregation in federated learning", AISTATS 2021; Fraboni's
thesis, chapter 6. Everything is of one coordinate. An honest client j with M_j samples returns

    theta_j = eta_j (theta - theta_j*) + theta_j* + rho_j N(0, 1),        eta_j: retention, rho_j: noise,

a free-rider k, who declares M_k samples, returns theta + phi_k N(0, 1). With M_J and M_K the sums, N = M_J + M_K and
the share f = M_K / N, a round contracts the distance from the same fixed point by a without free-riders and by H with
them: 1 - H = (1 - f) (1 - a). All else follows from two first-order recurrences, exactly.

>>> riders = FreeRiding([100] * 5, [0.5] * 5, [1.0] * 5, [0, 1, 2, 3, 4], declared=[100])
>>> round(riders.contraction, 5), round(riders.slowdown, 3)
(0.58333, 1.2)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.core.random import FloatArray


class ClientMap(NamedTuple):
    """Of what local training does to the model received."""

    retention: float  # eta: the part of the distance from the local optimum that is left
    variance: float  # rho^2 of what it returns


def ou_map(
    lr: float, curvature: float, steps: float, grad_noise: float, batch_size: int = 1, mu: float = 0.0
) -> ClientMap:
    """SGD as an Ornstein-Uhlenbeck process over `steps` = E M / S units of time. `grad_noise` is the standard deviation
    of a sample's gradient, `mu` FedProx's pull: with kappa = r + mu and g = exp(-lr kappa n),

    eta = g + mu (1 - g) / kappa,    rho^2 = lr sigma^2 / (2 S kappa) (1 - g^2)."""
    kappa = _curvature(lr, curvature, batch_size, mu)
    kept = math.exp(-lr * kappa * steps)
    return ClientMap(kept + mu * (1 - kept) / kappa, lr * grad_noise**2 / (2 * batch_size * kappa) * (1 - kept**2))


def sgd_map(
    lr: float, curvature: float, steps: int, grad_noise: float, batch_size: int = 1, mu: float = 0.0
) -> ClientMap:
    """The same of SGD itself on a quadratic, exactly: g = (1 - lr kappa)^n and

    rho^2 = lr^2 sigma^2 / S (1 - g^2) / (1 - (1 - lr kappa)^2)."""
    kappa = _curvature(lr, curvature, batch_size, mu)
    kept = (1 - lr * kappa) ** steps
    return ClientMap(
        kept + mu * (1 - kept) / kappa, lr**2 * grad_noise**2 / batch_size * _geometric(1 - lr * kappa, steps)
    )


def _curvature(lr: float, curvature: float, batch_size: int, mu: float) -> float:
    for name, value in (("lr", lr), ("curvature", curvature), ("batch_size", batch_size)):
        POSITIVE.check(f"free-riders: {name}", value)
    if not mu >= 0:
        raise UserError(f"free-riders: mu {mu} must be at least 0")
    return curvature + mu


@dataclass(frozen=True)
class FreeRiding:
    """Honest clients (columns over them) and free-riders. `rounds` may be infinite everywhere; the run with free-riders
    and the run without them have independent noise."""

    samples: ArrayLike  # [J] M_j
    retention: ArrayLike  # [J] eta_j, or one for all
    noise: ArrayLike  # [J] rho_j, or one for all
    optima: ArrayLike = 0.0  # [J] theta_j*, or one for all
    declared: ArrayLike = ()  # [K] M_k
    disguise: ArrayLike = 0.0  # [K] phi_k, or one for all

    def __post_init__(self) -> None:
        for name in ("samples", "declared"):
            if not (np.asarray(getattr(self, name), np.float64) >= 0).all():
                raise UserError(f"free-riders: {name} {getattr(self, name)} must be at least 0")
        if not self._share.sum() > 0:
            raise UserError("free-riders: without an honest client the model stays what it was; give samples above 0")
        if not ((self._eta >= 0) & (self._eta < 1)).all():
            raise UserError(f"free-riders: retention {self._eta} must be at least 0 and below 1")

    @property
    def _share(self) -> FloatArray:
        """M_j / M_J."""
        samples = np.asarray(self.samples, np.float64)
        return np.asarray(samples / max(samples.sum(), 1e-300))

    @property
    def _eta(self) -> FloatArray:
        return np.asarray(self.retention, np.float64)

    @property
    def share(self) -> float:
        """f, the free-riders' share of all declared samples."""
        honest, declared = float(np.sum(self.samples)), float(np.sum(self.declared))
        return declared / (honest + declared)

    @property
    def fair_contraction(self) -> float:
        """a = sum_j M_j / M_J eta_j."""
        return float((self._share * self._eta).sum())

    @property
    def contraction(self) -> float:
        """H = sum_j M_j / N eta_j + f."""
        return 1 - (1 - self.share) * (1 - self.fair_contraction)

    @property
    def slowdown(self) -> float:
        """How many times as many rounds it takes, where honest training is slow: 1 / (1 - f)."""
        return 1 / (1 - self.share)

    def rounds_to(self, part: float) -> float:
        """Rounds until that part of the distance from the fixed point is left."""
        if not 0 < part <= 1:
            raise UserError(f"free-riders: a part of {part} of the distance; it must be above 0 and at most 1")
        return math.log(part) / math.log(self.contraction) if self.contraction > 0 else 1.0

    @property
    def fixed_point(self) -> float:
        """Where both runs go: sum_j M_j (1 - eta_j) theta_j* / sum_j M_j (1 - eta_j)."""
        pull = self._share * (1 - self._eta)
        return float((pull * np.asarray(self.optima)).sum() / pull.sum())

    def mean_gap(self, start: float, rounds: float) -> float:
        """E[with - without] after so many rounds from `start`: (H^t - a^t) (start - fixed point)."""
        kept = math.pow(self.contraction, rounds) - math.pow(self.fair_contraction, rounds)
        return kept * (start - self.fixed_point)

    @property
    def _fair_noise(self) -> float:
        """sum_j (M_j rho_j)^2 / M_J^2: the variance that a round adds without free-riders."""
        return float(np.square(self._share * np.asarray(self.noise)).sum())

    @property
    def _disguise_noise(self) -> float:
        """sum_k (M_k phi_k)^2 / N^2."""
        total = float(np.sum(self.samples)) + float(np.sum(self.declared))
        return float(np.square(np.asarray(self.declared) * np.asarray(self.disguise) / total).sum())

    @property
    def _noise(self) -> float:
        """The variance that a round adds with free-riders."""
        return (1 - self.share) ** 2 * self._fair_noise + self._disguise_noise

    def fair_variance(self, rounds: float = math.inf) -> float:
        """Var of the model without free-riders."""
        return _geometric(self.fair_contraction, rounds) * self._fair_noise

    def variance(self, rounds: float = math.inf) -> float:
        """Var of the model with them. It falls with every plain free-rider, since averaging with the model as it was
        damps the noise of the others; the source says that it grows."""
        return _geometric(self.contraction, rounds) * self._noise

    def variance_exact(self, rounds: float = math.inf) -> float:
        """Var[with - without]."""
        return self.variance(rounds) + self.fair_variance(rounds)

    def variance_upper_bound_paper(self) -> float:
        """The source's limit of the same, in which the fluctuation of the model without free-riders is left out where
        it pulls on the other: a bound from above, reached without free-riders only."""
        return (self._noise + self._fair_noise) * _geometric(self.contraction, math.inf)


def variance_path(riding: FreeRiding, disguise: ArrayLike, decay: ArrayLike = 1.0) -> FloatArray:
    """`[T + 1]` Var[with - without] where free-riders disguise themselves by `disguise[t]` (`[T]`, the same for all) in
    round t and the honest noise is `decay[t]` times what it is: V <- H^2 V + what the round adds."""
    levels, decays = np.broadcast_arrays(np.asarray(disguise, np.float64), np.asarray(decay, np.float64))
    with_them, without = np.zeros(len(levels) + 1), np.zeros(len(levels) + 1)
    unit = replace(riding, disguise=1.0)._disguise_noise
    honest = riding._fair_noise * decays**2
    for t, (own, other) in enumerate(zip(levels**2 * unit, honest, strict=True)):
        with_them[t + 1] = riding.contraction**2 * with_them[t] + (1 - riding.share) ** 2 * other + own
        without[t + 1] = riding.fair_contraction**2 * without[t] + other
    return with_them + without


def _geometric(contraction: float, rounds: float) -> float:
    """sum over t < rounds of contraction^(2t)."""
    if abs(contraction) == 1:
        return rounds
    return (1 - math.pow(contraction, 2 * rounds)) / (1 - contraction**2)
