"""Pictures of the optimal weights for data streams, without training: figures 4.2, 4.3 and G.22 of Marfoq's thesis.

Clients of a group have equally many samples. With s what historical clients count together, psi / c1 is

    (1 - s) / sqrt(M_f) + rho sqrt(s^2 / nu + (1 - s)^2 / (1 - nu)).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.allowed import POSITIVE
from turnout.core.random import FloatArray
from turnout.record.curves import line_chart
from turnout.theory.streams import optimal_historical_share

NU = (0.05, 0.2, 0.5, 0.8)
NEAR = (1 / 3, 2 / 3, 1.0, 4 / 3, 2.0)  # ratios of the pictures over nu, as multiples of the marked one


def pictures(fresh_clients: int = 25, ratio: float = 0.15) -> dict[str, str]:
    """SVG by name; `ratio` is marked."""
    POSITIVE.check("streams.ratio", ratio)
    rho, nu = ratio * np.geomspace(0.1, 20, 401), np.linspace(0.05, 0.95, 181)
    over_ratio = partial(line_chart, x="c2 / c1", log_x=True, mark=(ratio, f"c2 / c1 = {ratio:g}"))
    over_nu = partial(line_chart, x="nu, the share of historical samples", y="difference of psi / c1")
    best = {share: optimal_historical_share(share, rho, fresh_clients) for share in NU}
    bounds = {f"c2 / c1 = {near * ratio:.3g}": _bounds(nu, near * ratio, fresh_clients) for near in NEAR}
    return {
        "historical_share": over_ratio(
            {f"nu = {share:g}": (rho, s) for share, s in best.items()},
            title="What historical clients count together in the optimum",
            y="share of historical clients",
        ),
        "effective_samples": over_ratio(
            {f"nu = {share:g}": (rho, 1 / _spread(s, share)) for share, s in best.items()},
            title="Effective samples in the optimum",
            y="effective samples / all samples",
        ),
        "noise": over_ratio(
            {f"nu = {share:g}": (rho, 1 - s) for share, s in best.items()},
            title="Bound of the gradients' noise in the optimum",
            y="sigma / sigma0",
        ),
        "historical_over_optimum": over_nu(
            {name: (nu, old - least) for name, (old, _, least) in bounds.items()},
            title="Bound of Historical above the least one",
        ),
        "uniform_over_optimum": over_nu(
            {name: (nu, alike - least) for name, (_, alike, least) in bounds.items()},
            title="Bound of Uniform above the least one",
        ),
        "historical_over_uniform": over_nu(
            {name: (nu, old - alike) for name, (old, alike, _) in bounds.items()},
            title="Bound of Historical above that of Uniform",
        ),
    }


def _bounds(nu: FloatArray, ratio: float, fresh_clients: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """psi / c1 of Historical, Uniform and the optimum."""

    def bound(s: ArrayLike) -> FloatArray:
        return np.asarray((1 - np.asarray(s)) / math.sqrt(fresh_clients) + ratio * np.sqrt(_spread(s, nu)))

    return bound(1.0), bound(nu), bound(optimal_historical_share(nu, ratio, fresh_clients))


def _spread(s: ArrayLike, nu: ArrayLike) -> FloatArray:
    """sum_m p_m^2 / n_m."""
    s, nu = np.asarray(s, np.float64), np.asarray(nu, np.float64)
    return np.asarray(s**2 / nu + (1 - s) ** 2 / (1 - nu))
