"""DPASGD, decentralised periodic averaging SGD: silos train their own models and mix them with their neighbours'.

Marfoq, Xu, Neglia, Vidal, "Throughput-Optimal Topology Design for Cross-Silo Federated Learning", NeurIPS 2020, eq. 2:

    w_i <- w_i - lr * gradient of f_i on a mini-batch      s times
    w_i <- sum_j W[i, j] w_j                                 over whoever sends to i, and i itself

FedAvg with everybody where W = 1 1^T / N, local training where W = I, D-PSGD (Lian et al., NeurIPS 2017) with one step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from turnout.algorithms._algorithm import LAW, Algorithm
from turnout.core.allowed import OneOf
from turnout.core.errors import UserError
from turnout.local.sgd import LocalSGD
from turnout.peers.mixing import MIXINGS
from turnout.peers.network import Network, Overlay, PerRound
from turnout.peers.peers import Peers, Silos
from turnout.server.server import Server


@dataclass
class DPASGD(Algorithm):
    """There is no server. All silos begin with the same model, so the paper's first mixing changes nothing, and a round
    is a job and the mixing after it. What is evaluated is the average of the silos' models; mixing leaves it where it
    is, so that in a round it moves by the mean of their differences. The history has `consensus_distance`,
    sum_i |w_i - average|^2.

    `mixing` is `local_degree`, `metropolis` (the same), `fdla`, `uniform` or `none`; without one, what the overlay says
    itself (a star averages, MATCHA has its own), else `local_degree`. The `objective` counts silos equally; with
    `importance` a silo's difference counts N p_i times, so that the average moves by sum_i p_i difference_i.
    """

    cannot = dict.fromkeys(LAW, "has no server")
    local: LocalSGD
    overlay: Overlay | None = None
    network: Network | None = None
    mixing: Annotated[str, OneOf(tuple(MIXINGS))] | None = None  # of the models; not given: the overlay's own
    objective: Literal["equal", "importance"] = "equal"  # how silos count
    latency: PerRound | None = None
    silos: Silos = field(default_factory=Silos, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.report:
            raise UserError(f"local.report: {self.local.report}, but there is no server to report to; leave it out")

    def run(self, server: Server) -> None:
        peers = Peers(server, self.silos, self.overlay, self.network, self.latency)
        size, equal = server.population.size, self.objective == "equal"
        for _ in server.rounds():
            counts = np.full(size, 1 / size) if equal else server.importance
            updates = peers.train(self.local, None if equal else size * counts)
            peers.mix(peers.mixing(self.mixing))
            server.publish(peers.average(), updates, counts[updates.clients])
