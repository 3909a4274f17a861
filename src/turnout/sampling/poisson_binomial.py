"""Poisson-binomial sampling: everybody with a probability in proportion to its importance.

Fraboni's thesis, section 2.3 and appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.core.errors import UserError
from turnout.sampling._sampler import FloatArray, Independent, water_fill

if TYPE_CHECKING:
    from turnout.clients.population import Population


@dataclass
class PoissonBinomial(Independent):
    """q_i = m p_i, so omega_i = 1 / m for whoever is drawn. It needs m p_i <= 1; with `cap` larger ones are 1 and the
    others share the rest."""

    looks_at_data = False

    cap: bool = False  # whether probabilities above 1 are cut, the others sharing the rest

    def most(self, population: Population) -> int:
        return super().most(population) if self.cap else int((1 + 1e-12) / population.base_importance.max())

    def probabilities(self, importance: FloatArray, m: int) -> FloatArray:
        if m * importance.max(initial=0.0) > 1 + 1e-12 and not self.cap:
            raise UserError(
                f"sampler.clients_per_round: {m} draws of a client with importance {importance.max():.4g}; "
                "their product must be at most 1, or set sampler.cap"
            )
        return water_fill(importance, min(m, len(importance)))
