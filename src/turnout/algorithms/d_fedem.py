"""D-FedEM: FedEM without a server.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021,
section 3.3 and algorithm 4 (algorithm 8 of Marfoq's thesis). Every silo t has components Theta_t and weights pi_t:

    q, pi_t  <-  E-step and weights, by its own Theta_t
    Theta_t  <-  local steps on every component, gradients scaled by T omega_t
    Theta_t  <-  sum_s W[t, s] Theta_s                                           over whoever sends to t, and t itself
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.algorithms._algorithm import LAW
from turnout.algorithms._mixtures import note_weights, weight_columns
from turnout.algorithms.dpasgd import DPASGD
from turnout.core.allowed import Count
from turnout.core.random import IntArray
from turnout.local.mixture import Least, MixtureSGD, MixtureTask, Outputs
from turnout.peers.peers import Peers
from turnout.server.server import Server
from turnout.task.task import Task


@dataclass
class DFedEM(DPASGD):
    """With W = 1 1^T / T and silos of one size it is FedEM. The scale T omega_t (the paper: omega_t) makes learning
    rates mean the same as there; the `objective` equal does without. What is evaluated is the average of the silos'
    components, weighed by each silo's own pi. For the options see `FedEM` and `DPASGD`."""

    cannot = dict.fromkeys((*LAW, "serve"), "has no server")
    trains = MixtureSGD

    objective: Literal["equal", "importance"] = "importance"  # how silos count
    components: Count = 3  # models that are trained at once
    min_weight: Least = 0.0  # least weight that a silo gives a component
    unseen_steps: Count = 1  # updates in which a client never seen finds its weights
    outputs: Outputs | None = None  # what is averaged; none: what the loss says
    starved: list[int] = field(default_factory=list, init=False)

    def trained_task(self, task: Task) -> MixtureTask:
        return MixtureTask(task, self.components, self.outputs)

    def own_work(self) -> MixtureSGD:
        return MixtureSGD.extend(self.local, components=self.components, min_weight=self.min_weight)

    def adaptation(self, unseen: bool) -> MixtureSGD | None:
        return replace(self.own_work(), steps=0, weight_steps=self.unseen_steps) if unseen else None

    def run(self, server: Server) -> None:
        peers = Peers(server, self.silos, self.overlay, self.network, self.latency)
        work = self.own_work()
        for _ in server.rounds():
            size = server.population.size
            counts = np.full(size, 1 / size) if self.objective == "equal" else server.importance
            updates = peers.train(work.bind({"lr": size * counts * work.lr}))
            peers.mix(peers.mixing(self.mixing))
            server.publish(peers.average(), updates, counts[updates.clients])
            self.starved = note_weights(server, work, updates, self.starved)

    def about(self, server: Server, clients: IntArray) -> dict[str, NDArray[Any]]:
        return weight_columns(server, self.own_work(), clients)
