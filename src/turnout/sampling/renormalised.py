"""What most frameworks call FedAvg: a uniform subset whose weights are rescaled to sum to 1."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.sampling._sampler import FloatArray, Subset


@dataclass
class Renormalised(Subset):
    """omega_i = p_i / sum over the drawn of p_j. **Biased**: E[omega] is not p unless all p are equal."""

    looks_at_data = False

    def weigh(self, importance: FloatArray, candidates: int) -> FloatArray:
        return importance / importance.sum() if len(importance) else importance
