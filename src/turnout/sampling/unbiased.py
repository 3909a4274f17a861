"""Unbiased aggregation: whoever is online counts in inverse proportion to how often it is.

Marfoq's thesis, section 2.2.2 (the baseline of Rodio et al., INFOCOM 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.sampling._presence import Weighted
from turnout.sampling._sampler import FloatArray


@dataclass
class Unbiased(Weighted):
    """q_k = alpha_k / pi_k: E[omega_k] = alpha_k, and the weights sum to 1 only on average. A client that is seldom
    online moves the model far when it is."""

    looks_at_data = False

    def weights(self, importance: FloatArray, availability: FloatArray) -> FloatArray:
        return importance / availability
