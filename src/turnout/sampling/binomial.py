"""Binomial sampling: everybody with the same probability.

Fraboni's thesis, section 2.3 and appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.core.errors import UserError
from turnout.sampling._sampler import FloatArray, Independent


@dataclass
class Binomial(Independent):
    """q_i = m / n, so omega_i = (n / m) p_i for whoever is drawn."""

    looks_at_data = False

    def probabilities(self, importance: FloatArray, m: int) -> FloatArray:
        if m > len(importance):
            raise UserError(f"sampler.clients_per_round: {m} of {len(importance)} clients")
        return np.full(len(importance), m / len(importance))
