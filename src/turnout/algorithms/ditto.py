"""Ditto: beside the global model every client keeps one of its own, pulled towards the global one.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms._personalised import Personalised
from turnout.core.allowed import NotNegative
from turnout.local.own import DittoSGD, PulledSGD


@dataclass
class Ditto(Personalised):
    """The global model w is FedAvg's. In the same jobs, and on the same mini-batches, client i also does

        v_i <- v_i - lr (grad L_i(v_i) + mu (v_i - w))

    and serves v_i. With mu = 0 that is local training; a large mu leaves w. A client never seen begins at v = w.
    """

    reads_updates = False
    trains = DittoSGD

    mu: NotNegative = 0.1  # pull of the own model towards the global one; 0: local training

    def own_work(self) -> DittoSGD:
        return DittoSGD.extend(self.local, mu=self.mu)

    def adaptation(self, unseen: bool) -> PulledSGD | None:
        return PulledSGD.extend(self.tuning, mu=self.mu) if unseen else None
