"""FedAvg as first printed: absent clients count as if they had returned the current model.

McMahan et al., AISTATS 2017. Exactly `uniform` with a server learning rate of m / n: slow rather than skewed.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.sampling.sampler import FloatArray, Subset


@dataclass
class Fill(Subset):
    """omega_i = p_i for the drawn clients; E[omega_i] = (m / n) p_i. **Biased low**, in proportion."""

    def weigh(self, importance: FloatArray, candidates: int) -> FloatArray:
        return importance
