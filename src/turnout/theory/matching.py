"""How well clients' data match the server's: divergence of profiles, and the chance to be drawn.

Wu, He, Lin, Mao, "FedProf", IEEE TPDS 2023; Wu's thesis (Warwick), sections 5.3 and 5.4. A profile is `[2, q]`: means
and variances of q Gaussian elements (see `turnout.local.profile`).

    KL_i = log(s*_i / s_i) + (s_i^2 + (m_i - m*_i)^2) / (2 s*_i^2) - 1/2       client relative to reference
    div  = mean of KL_i,    chance_k = exp(-alpha_k div_k) / sum_j exp(-alpha_j div_j)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.core.errors import UserError
from turnout.core.random import FloatArray

VAR_FLOOR = 1e-6
RELATIVE_FLOOR = 1e-6  # of the reference's variance


def kl(mean: ArrayLike, var: ArrayLike, reference_mean: ArrayLike, reference_var: ArrayLike) -> FloatArray:
    """KL(N(mean, var) || N(reference_mean, reference_var)), element by element."""
    m, v, m0, v0 = (np.asarray(part, np.float64) for part in (mean, var, reference_mean, reference_var))
    return np.asarray((np.log(v0 / v) + (v + np.square(m - m0)) / v0 - 1) / 2)


def informative(reference: FloatArray, var_floor: float = VAR_FLOOR) -> NDArray[np.bool_]:
    """`[q]` the elements that say something: a unit that is dead at the reference tells no client from another."""
    kept: NDArray[np.bool_] = np.isfinite(reference).all(0) & (reference[1] > var_floor)
    return kept


def divergence(
    profiles: ArrayLike, reference: ArrayLike, var_floor: float = VAR_FLOOR, *, legacy_kl: bool = False
) -> FloatArray:
    """`[...]` mean divergence of profiles `[..., 2, q]` from the reference `[2, q]`, over its informative elements.

    Variances of clients are raised to `max(var_floor, 1e-6 reference variance)`. A profile that is not finite, or has a
    variance below 0, is infinitely far; where no element says anything all others are at 0. `legacy_kl` is the formula
    as printed, without the -1/2.
    """
    given, target = np.asarray(profiles, np.float64), np.asarray(reference, np.float64)
    if given.shape[-2:] != target.shape:
        raise UserError(f"profile: {given.shape[-1]} elements cannot be compared with {target.shape[-1]}; same layer?")
    sound = np.asarray(np.isfinite(given).all((-2, -1)) & (given[..., 1, :] >= 0).all(-1))
    kept = informative(target, var_floor)
    if not kept.any():
        return np.where(sound, 0.0, np.inf)
    usable = np.where(sound[..., None, None], given, target)[..., kept]
    (mean, var), (mean0, var0) = np.moveaxis(usable, -2, 0), target[:, kept]
    with np.errstate(over="ignore"):  # infinitely far as well
        apart = kl(mean, np.maximum(var, np.maximum(var_floor, RELATIVE_FLOOR * var0)), mean0, var0).mean(-1)
    return np.where(sound, apart + 0.5 * legacy_kl, np.inf)


def selection_probabilities(divergences: ArrayLike, preference: ArrayLike, min_prob: float = 0.0) -> FloatArray:
    """`[n]` softmax(-alpha_k div_k): it cannot underflow to nothing. Infinite divergences have no chance, unless nobody
    has any: then all are alike. `min_prob` mixes in the uniform law, so that nobody else has less."""
    apart, alpha = np.asarray(divergences, np.float64), np.asarray(preference, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = np.where(np.isfinite(apart), -alpha * apart, -np.inf)
    scores = np.where(np.isnan(scores), -np.inf, scores)
    if not np.isfinite(scores).any():
        return np.full(len(apart), 1 / max(1, len(apart)))
    eligible = np.isfinite(apart)
    chances = np.exp(scores - scores.max())
    share = min(1.0, min_prob * int(eligible.sum()))
    return np.asarray((1 - share) * chances / chances.sum() + share * eligible / eligible.sum())
