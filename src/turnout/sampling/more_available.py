"""Only clients that are online most of the time: fast, and to the optimum of these.

Marfoq's thesis, section 2.2.6.1 (a baseline of Rodio et al., INFOCOM 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core.allowed import Share
from turnout.core.errors import UserError
from turnout.sampling._presence import Weighted
from turnout.sampling._sampler import FloatArray

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class MoreAvailable(Weighted):
    """q_k = alpha_k / pi_k where pi_k >= `threshold`, else 0. **Biased**: the others never count.

    `renormalise` divides by the share of importance that is left, so that the weights still sum to 1 on average; False
    is the paper, whose steps are shorter for it.
    """

    looks_at_data = False

    threshold: Share = 0.5  # share of the rounds online from which a client counts
    renormalise: bool = True  # whether weights still sum to 1 on average

    def begin(self, server: Server) -> None:
        super().begin(server)
        often = self.availability(server) >= self.threshold
        if self.estimator == "oracle" and not (often & (server.population.base_importance > 0)).any():
            raise UserError(f"sampler.threshold: no client is online {self.threshold} of the time; choose a lower one")

    def weights(self, importance: FloatArray, availability: FloatArray) -> FloatArray:
        kept = np.where(availability >= self.threshold, importance, 0.0)
        left = kept.sum() if self.renormalise and kept.any() else 1.0
        weights: FloatArray = kept / availability / left
        return weights
