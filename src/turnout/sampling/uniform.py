"""Uniform sampling without replacement, in its unbiased form.

Li et al., "On the convergence of FedAvg on non-iid data", ICLR 2020 (scheme II); Fraboni's thesis, section 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.sampling._sampler import FloatArray, Moments, Subset

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class Uniform(Subset):
    """omega_i = (n / m) p_i for the m drawn clients: E[omega_i] = p_i, but the weights sum to 1 only on average."""

    looks_at_data = False

    def moments(self, server: Server) -> Moments:
        importance = server.importance
        m, n, squares = self.size(server.population), int(np.count_nonzero(importance)), np.square(importance)
        alpha = (n - m) / (m * max(1, n - 1))
        inclusion = np.where(importance > 0, m / n, 0.0)
        return importance, (n / m - 1) * squares, inclusion, alpha * (n * float(squares.sum()) - 1), alpha

    def weigh(self, importance: FloatArray, candidates: int) -> FloatArray:
        return importance * candidates / max(1, len(importance))
