"""D-FedEM: FedEM without a server.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021,
section 3.3 and algorithm 4 (algorithm 8 of Marfoq's thesis). Every silo t has components Theta_t and weights pi_t:

    q, pi_t  <-  E-step and weights, by its own Theta_t
    Theta_t  <-  local steps on every component, gradients scaled by T omega_t
    Theta_t  <-  sum_s W[t, s] Theta_s                                           over whoever sends to t, and t itself
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from turnout.algorithms._mixtures import Mixtures
from turnout.algorithms.dpasgd import DPASGD
from turnout.peers.peers import Peers
from turnout.server.server import Server


@dataclass
class DFedEM(Mixtures, DPASGD):
    """With W = 1 1^T / T and silos of one size it is FedEM. The scale T omega_t (the paper: omega_t) makes learning
    rates mean the same as there; the `objective` equal does without. What is evaluated is the average of the silos'
    components, weighed by each silo's own pi. For the options see `Mixtures` and `DPASGD`."""

    cannot: ClassVar[dict[str, str]] = {
        "weigh": "has no server",
        "remember": "has no server",
        "rule": "has no server",
        "optimiser": "has no server",
        "serve": "has no server",
    }
    objective: str = "importance"  # importance or equal: how silos count

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()

    def run(self, server: Server) -> None:
        peers = Peers(server, self.silos, self.overlay, self.network, self.latency)
        work = self.predictor()
        for _ in server.rounds():
            size = server.population.size
            counts = np.full(size, 1 / size) if self.objective == "equal" else server.importance
            updates = peers.train(work.bind({"lr": size * counts * work.lr}))
            peers.mix(peers.mixing(self.mixing))
            server.publish(peers.average(), updates, counts[updates.clients])
            self.take_note(server, updates)
