"""What drawing clients by how well their data match guarantees, and how to draw them as wanted.

Wu, He, Lin, Mao, "FedProf", IEEE TPDS 2023; Wu's thesis (Warwick), section 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.errors import UserError
from turnout.core.random import FloatArray


def preference_for_weights(weights: ArrayLike, divergences: ArrayLike) -> FloatArray:
    """alpha_k = -ln(rho_k) / div_k, with which the chances are the wanted rho_k."""
    wanted = np.asarray(weights, np.float64)
    if (wanted < 0).any() or abs(wanted.sum() - 1) > 1e-6:
        raise UserError(f"weights: they sum to {wanted.sum():.6g}; they must be at least 0 and sum to 1")
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(wanted) / np.maximum(np.asarray(divergences, np.float64), 1e-8))


@dataclass(frozen=True)
class Convergence:
    """Theorem 5.1, for mean aggregation of K draws with chance rho_k and strongly convex losses:

        E[F(w(t))] - F* <= L / (gamma + t) * (2 (B + C) / mu^2 + (gamma + 1) / 2 * Delta_1)
        B = sum_k rho_k^2 noise_k^2 + 6 L Gamma + 8 (E - 1)^2 G^2,    C = 4 E^2 G^2 / K
        eta_t = 2 / (mu (t + gamma)),    gamma = max(8 L / mu, E) - 1

    at steps t that are multiples of E.
    """

    smoothness: float  # L
    convexity: float  # mu
    local_steps: int  # E
    clients_per_round: int  # K
    weights: FloatArray  # [N] rho
    noise: FloatArray  # [N] standard deviation of a stochastic gradient
    gradient: float  # G, a bound on its norm
    heterogeneity: float  # Gamma = F* - sum_k rho_k F_k*
    distance: float  # Delta_1, squared, of the first model from the optimum

    @property
    def gamma(self) -> float:
        return max(8 * self.smoothness / self.convexity, self.local_steps) - 1

    @property
    def drift(self) -> float:
        """B."""
        noise = float(np.sum(np.square(np.asarray(self.weights) * self.noise)))
        apart = 8 * (self.local_steps - 1) ** 2 * self.gradient**2
        return noise + 6 * self.smoothness * self.heterogeneity + apart

    @property
    def sampling(self) -> float:
        """C."""
        return 4 / self.clients_per_round * self.local_steps**2 * self.gradient**2

    def lr(self, t: ArrayLike) -> FloatArray:
        return 2 / (self.convexity * (np.asarray(t, np.float64) + self.gamma))

    def bound(self, t: ArrayLike) -> FloatArray:
        """Of the expected gap after t steps."""
        constant = 2 * (self.drift + self.sampling) / self.convexity**2 + (self.gamma + 1) / 2 * self.distance
        return self.smoothness / (self.gamma + np.asarray(t, np.float64)) * constant
