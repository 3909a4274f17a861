"""FedNova: clients that do unequal amounts of local work, without minimising another objective.

Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from turnout.algorithms.fedprox import FedProx
from turnout.sampling._sampler import FloatArray, Selection
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class FedNova(FedProx):
    """`model <- model + server_lr * a_bar * sum_i omega_i delta_i / a_i`, a_i = |a_i|_1 the effective local steps.

    `a_bar = sum_j p_j a_j`, or with `observed` the weighted mean over those who answered.
    Equals FedAvg when all a_i agree. omega_i is as in FedAvg, `normalise` and `wait_for` included.
    """

    reads_updates: ClassVar[bool] = False

    mu: float = 0.0
    observed: bool = False

    def weights(self, server: Server, updates: Updates, chosen: Selection) -> FloatArray:
        omega = super().weights(server, updates, chosen)
        work = self.work(server).at(server.version)
        a = work.effective_steps(updates.steps)
        if self.observed:
            a_bar = (omega * a).sum() / max(omega.sum(), np.finfo(float).tiny)
        else:
            everybody = server.population.counts(server.population.ids, np.full(server.population.size, server.now))
            a_bar = (server.importance * work.effective_steps(work.num_steps(everybody))).sum()
        weights: FloatArray = np.divide(a_bar * omega, a, out=np.zeros_like(omega), where=a > 0)
        return weights
