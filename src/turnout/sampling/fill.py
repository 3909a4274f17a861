"""FedAvg as first printed: absent clients count as if they had returned the current model.

McMahan et al., AISTATS 2017. Exactly `uniform` with a server learning rate of m / n: slow rather than skewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.sampling._sampler import FloatArray, Moments, Subset
from turnout.sampling.uniform import Uniform

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class Fill(Subset):
    """omega_i = p_i for the drawn clients; E[omega_i] = (m / n) p_i. **Biased low**, in proportion."""

    looks_at_data = False

    def moments(self, server: Server) -> Moments:
        importance = server.importance
        m = self.size(server.population)
        share = m / int(np.count_nonzero(importance))  # everything as with uniform, times m / n
        mean, variance, inclusion, of_sum, alpha = Uniform(m).moments(server)
        return (
            share * mean,
            share**2 * variance,
            inclusion,
            share**2 * of_sum,
            None if alpha is None else share**2 * alpha,
        )

    def weigh(self, importance: FloatArray, candidates: int) -> FloatArray:
        return importance
