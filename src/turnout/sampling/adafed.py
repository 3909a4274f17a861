"""AdaFed with full participation: the unbiased weights, made to sum to 1 in every round.

Tan, Zhang, Zhou, Che, Hu, Chen, Wu, "AdaFed: optimizing participation-aware federated learning with adaptive
aggregation weights", IEEE TNSE 2022; as a baseline in Marfoq's thesis, section 2.2.6.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.sampling._presence import Presence
from turnout.sampling._sampler import Selection

if TYPE_CHECKING:
    from turnout.server.server import Server


@dataclass
class AdaFed(Presence):
    """omega_k = (alpha_k / pi_k) / sum over those online of alpha_h / pi_h. **Biased** towards clients that are often
    online, but no round takes a larger step than another."""

    looks_at_data = False

    def sample(self, server: Server) -> Selection:
        here = self.watch(server)
        q = server.importance[here] / self.availability(server)[here]
        return Selection(here, q / q.sum() if len(q) else q)
