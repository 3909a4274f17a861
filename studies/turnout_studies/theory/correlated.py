"""Errors of training under heterogeneous and correlated availability: bias, optimisation, and the weights between them.

Rodio, Faticanti, Marfoq, Neglia, Leonardi, "Federated learning under heterogeneous and correlated client
availability", INFOCOM 2023; Marfoq's thesis, section 2.2.3 and appendix D.

alpha: importance, sums to 1. pi: availability. q: aggregation weights of whoever is online. Training with q leads to
the minimum of F_B = sum_k p_k F_k with p_k in proportion to pi_k q_k, where F = sum_k alpha_k F_k was meant.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.core.random import FloatArray

_HALVINGS = 100  # of an interval: down to the last bit


def _column(values: ArrayLike) -> FloatArray:
    return np.asarray(values, np.float64)


def effective_weights(pi: ArrayLike, q: ArrayLike) -> FloatArray:
    """p_k = pi_k q_k / sum_h pi_h q_h: whose loss is minimised how much."""
    mass = _column(pi) * _column(q)
    if not mass.sum() > 0:
        raise UserError("effective weights: nobody who is ever online has a weight above 0; raise one")
    return np.asarray(mass / mass.sum())


def tv_distance(alpha: ArrayLike, p: ArrayLike) -> float:
    """1/2 sum_k |alpha_k - p_k|."""
    return float(np.abs(_column(alpha) - _column(p)).sum() / 2)


def chi2_divergence(alpha: ArrayLike, p: ArrayLike) -> float:
    """sum_k (alpha_k - p_k)^2 / p_k; infinite where a client that matters has no weight."""
    alpha, p = _column(alpha), _column(p)
    square = np.square(alpha - p)
    return float(np.divide(square, p, out=np.where(square > 0, np.inf, 0.0), where=p > 0).sum())


def bias_bound_chi2(alpha: ArrayLike, p: ArrayLike, kappa: float, heterogeneity: float) -> float:
    """F(w_B*) - F* <= kappa^2 chi^2(alpha, p) Gamma, with kappa = L / mu and Gamma = max_k F_k(w*) - F_k*."""
    return kappa**2 * chi2_divergence(alpha, p) * heterogeneity


def bias_bound_tv(alpha: ArrayLike, p: ArrayLike, kappa: float, heterogeneity: float) -> float:
    """F(w_B*) - F* <= 4 kappa^2 d_TV(alpha, p)^2 Gamma', with Gamma' = max_k F_k(w_B*) - F_k*."""
    return 4 * kappa**2 * tv_distance(alpha, p) ** 2 * heterogeneity


def total_error_bound(kappa: float, optimisation: float, bias: float) -> float:
    """F(w) - F* <= 2 kappa^2 (F_B(w) - F_B* + F(w_B*) - F*)."""
    return 2 * kappa**2 * (optimisation + bias)


def largest_rate(smoothness: float, local_steps: int, total_weight: float) -> float:
    """The largest first learning rate of the theorem, 1 / (2 L (1 + 2 E Q))."""
    return 1 / (2 * smoothness * (1 + 2 * local_steps * total_weight))


def optimisation_bound(
    pi: ArrayLike,
    q: ArrayLike,
    rates: ArrayLike,
    *,
    local_steps: int,
    smoothness: float,
    gradient: float,
    second_moment: float,
    variance: ArrayLike,
    loss_range: float,
    heterogeneity: float,
    diameter: float,
    states: int,
    slem: float,
    spectral: float,
) -> float:
    """E[F_B(w) - F_B*] of the iterates' mean, weighted by their learning rates (theorem D.20; T_P = 0).

        1 / sum_t eta_t  [ (q' Sigma q / 2 + v) / (pi' q)  +  psi  +  phi / ln(1 / lambda) ]

        Sigma = diag(2 (E + 1) sigma_k^2 pi_k sum_t eta_t^2)
        v     = 2 / E diam(W)^2 + M Q / 4 sum_t (eta_t^2 + t^-2)
        psi   = (4 L (1 + E Q) Gamma + 2 E^2 G^2) sum_t eta_t^2
        phi   = 2 E D G Q sum_t ln(2 C_P H t) eta_(t - J_t)^2

    `rates` are eta_1, ..., eta_T. The chain of who is online has M `states`, second largest eigenvalue modulus `slem`
    and lambda = (1 + slem) / 2; `spectral` is C_P = sqrt(M - 1) |U| |U^-1| of its eigenvectors, for a chain that can be
    diagonalised. D bounds gradients, G^2 (`second_moment`) the mean square of stochastic ones, H (`loss_range`) the
    distance of a loss from that at the optimum. J_t = min(ceil(ln(2 C_P H t) / ln(1 / lambda)), t), at least 0; before
    the first step the rate is eta_1.
    """
    pi, q, eta = _column(pi), _column(q), _column(rates)
    if not 0 <= slem < 1:
        raise UserError(f"optimisation bound: a second eigenvalue of modulus {slem} must be at least 0 and below 1")
    e, total, squares = local_steps, float(q.sum()), float(np.square(eta).sum())
    time = np.arange(1, len(eta) + 1)
    decay = -np.log((1 + slem) / 2)
    logs = np.log(2 * spectral * loss_range * time)
    lag = np.clip(np.ceil(logs / decay), 0, time).astype(np.int64)
    noise = float((e + 1) * squares * (_column(variance) * pi * q**2).sum())
    start = 2 / e * diameter**2 + states * total / 4 * float((np.square(eta) + 1 / time**2).sum())
    psi = (4 * smoothness * (1 + e * total) * heterogeneity + 2 * e**2 * second_moment) * squares
    late = float((logs * np.square(eta[np.maximum(time - lag, 1) - 1])).sum())
    phi = 2 * e * gradient * np.sqrt(second_moment) * total * late
    return float(((noise + start) / (pi @ q) + psi + phi / decay) / eta.sum())


def optimal_weights(pi: ArrayLike, a: ArrayLike, b: float, total: float) -> FloatArray:
    """The q >= 0 with sum `total` that minimises (1/2 sum_k a_k q_k^2 + b) / (pi' q).

    q_k = max(0, iota pi_k - theta) / a_k, where iota is the minimum itself: both by bisection.
    """
    pi, a = _column(pi), _column(a)
    POSITIVE.check("optimal weights: total", total)
    if not (b >= 0 and (a > 0).all() and (pi >= 0).all() and pi.any()):
        raise UserError("optimal weights: b and pi must be at least 0, some pi and every a above 0")

    def weights(iota: float) -> FloatArray:
        low, high = float((iota * pi - total * a).min()), float((iota * pi).max())
        for _ in range(_HALVINGS):
            theta = (low + high) / 2
            q = np.maximum(0, iota * pi - theta) / a
            low, high = (theta, high) if q.sum() > total else (low, theta)
        return np.asarray(q * total / q.sum())

    def value(q: FloatArray) -> float:
        return float((a @ q**2 / 2 + b) / (pi @ q))

    low, high = 0.0, value(weights(0.0))
    for _ in range(_HALVINGS):
        iota = (low + high) / 2
        low, high = (iota, high) if value(weights(iota)) > iota else (low, iota)
    return weights(high)
