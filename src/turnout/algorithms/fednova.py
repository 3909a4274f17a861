"""FedNova: clients that do unequal amounts of local work, without minimising another objective.

Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.aggregation.weights import Nova
from turnout.algorithms.fedprox import FedProx
from turnout.core.allowed import Finite


@dataclass
class FedNova(FedProx):
    """`model <- model + server_lr * a_bar * sum_i omega_i delta_i / a_i`, a_i = |a_i|_1 the effective local steps.

    `a_bar = sum_j p_j a_j`, or with `observed` the weighted mean over those who answered.
    Equals FedAvg when all a_i agree. omega_i is as in FedAvg, `normalise` and `wait_for` included.
    """

    reads_updates = False
    of_part = FedProx.of_part | {"weigh": ("observed",)}

    mu: Finite = 0.0  # strength of the proximal term
    observed: bool = False  # whether the mean number of steps is over those who answered, not over everybody

    def own_weigh(self) -> Nova:
        return Nova(self.observed)
