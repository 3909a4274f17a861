"""pFedMe: personal models as proximal points of a global one, which descends their Moreau envelopes.

Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turnout.algorithms._personalised import Personalised
from turnout.core.allowed import Count, NotNegative, Positive
from turnout.local.own import KeptModelSGD, MoreauSGD, PulledSGD


@dataclass
class PFedMe(Personalised):
    """`moreau`: on every mini-batch client i nears theta_i = argmin L_i(theta) + mu/2 |theta - w_i|^2 in `inner_steps`,
    then moves its copy of the global model, `w_i <- w_i - outer_lr mu (w_i - theta_i)`; the server averages the w_i
    (`server_lr` is the paper's beta) and the client serves theta_i.

    `averaged`, the variant of the comparisons in Marfoq's thesis: the clients train their own models theta_i, each
    pulled by mu towards the global one, which is the average of those. With mu = 0 that is local training.

    A client never seen solves for theta once, from the global model.
    """

    reads_updates = False
    trains = MoreauSGD

    mu: NotNegative = 1.0  # pull of the personal model towards the global one
    variant: Literal["moreau", "averaged"] = "moreau"  # moreau: as published
    outer_lr: Positive = 0.1  # learning rate of the client's copy of the global model
    inner_steps: Count = 5  # steps towards the proximal point, a mini-batch

    def own_work(self) -> KeptModelSGD:
        if self.variant == "averaged":
            return PulledSGD.extend(self.local, mu=self.mu)
        return MoreauSGD.extend(self.local, mu=self.mu, outer_lr=self.outer_lr, inner_steps=self.inner_steps)

    def adaptation(self, unseen: bool) -> PulledSGD | None:
        return PulledSGD.extend(self.tuning, mu=self.mu) if unseen else None
