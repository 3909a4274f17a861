"""Robust FedAvg: who does not answer counts as no change, and nobody counts for it.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023, eq. (2).
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Positive
from turnout.core.errors import UserError
from turnout.sampling._sampler import FloatArray, Selection
from turnout.sampling.renormalised import Renormalised
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class RobustFedAvg(FedAvg):
    """`model <- model + beta * sum over those who answered of p_i (returned_i - model)`.

    Importance p is over all M clients and beta is the `amplification`, by default what makes the sampler's draw
    unbiased: M / K for K uniformly drawn. Nothing is divided by who answered, so that the step shrinks when few do: to
    2 / 10 if 2 of 10 equal clients answer. That bounds the harm of an adversary who chooses them, up to an error that
    no method avoids (Rizk et al.). The sampler must not divide by whom it drew, either: `uniform`,
    `md`, ... but not `renormalised`. For the same reason `wait_for` closes a round early and scales nobody up. It is
    FedAvg with `normalise` invited and a beta of one's own; what most frameworks do is FedAvg with the sampler
    `renormalised` and `normalise` responders.
    """

    amplification: Positive | None = None  # beta, a factor of the step; none: what makes the sampler's draw unbiased

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.sampler, Renormalised):
            raise UserError("sampler.name: renormalised divides by whom it drew, which is not robust; use uniform")
        if self.normalise != "invited":
            raise UserError(f"algorithm.normalise: {self.normalise} is not robust; use fedavg or fedprox for that")

    def weights(self, server: Server, updates: Updates, chosen: Selection) -> FloatArray:
        if self.amplification is None:
            return chosen.weights_of(updates.clients)
        return self.amplification * server.importance[updates.clients]
