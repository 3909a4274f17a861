"""Poisson-binomial sampling: everybody with a probability in proportion to its importance.

Fraboni's thesis, section 2.3 and appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnout.errors import UserError
from turnout.sampling.sampler import FloatArray, Independent, water_fill


@dataclass
class PoissonBinomial(Independent):
    """q_i = m p_i, so omega_i = 1 / m for whoever is drawn. It needs m p_i <= 1; with `cap` larger ones are 1 and the
    others share the rest."""

    looks_at_data: ClassVar[bool] = False

    cap: bool = False

    def probabilities(self, importance: FloatArray) -> FloatArray:
        m = self.clients_per_round
        if m * importance.max() > 1 + 1e-12 and not self.cap:
            raise UserError(
                f"sampler.clients_per_round: {m} draws of a client with importance {importance.max():.4g}; "
                "their product must be at most 1, or set sampler.cap"
            )
        return water_fill(importance, min(m, len(importance)))
