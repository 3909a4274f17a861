"""Uniform sampling without replacement, in its unbiased form.

Li et al., "On the convergence of FedAvg on non-iid data", ICLR 2020 (scheme II); Fraboni's thesis, section 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.sampling.sampler import FloatArray, Subset


@dataclass
class Uniform(Subset):
    """omega_i = (n / m) p_i for the m drawn clients: E[omega_i] = p_i, but the weights sum to 1 only on average."""

    def weigh(self, importance: FloatArray, candidates: int) -> FloatArray:
        return importance * candidates / max(1, len(importance))
