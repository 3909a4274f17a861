"""APFL: every client mixes the global model with one of its own.

Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", 2020, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms._personalised import Personalised
from turnout.core.allowed import Share
from turnout.local.own import InterpolatedSGD


@dataclass
class APFL(Personalised):
    """The global model w is FedAvg's. Client i serves the model `alpha v_i + (1 - alpha) w`, where v_i follows the
    gradient of that mixture in the same jobs. With alpha = 0 that is FedAvg, with alpha = 1 local training; `adaptive`
    lets every client find its own alpha by gradient steps, from the given one. For a client never seen w is frozen and
    v begins there.
    """

    reads_updates = False
    trains = InterpolatedSGD

    alpha: Share = 0.5  # share of the client's own model in what it serves: 0 is FedAvg, 1 local training
    adaptive: bool = False  # whether every client finds its own alpha by gradient steps

    def own_work(self) -> InterpolatedSGD:
        return InterpolatedSGD.extend(self.local, alpha=self.alpha, adaptive=self.adaptive)

    def adaptation(self, unseen: bool) -> InterpolatedSGD | None:
        if not unseen:
            return None
        return InterpolatedSGD.extend(self.tuning, alpha=self.alpha, adaptive=self.adaptive, frozen=True)
