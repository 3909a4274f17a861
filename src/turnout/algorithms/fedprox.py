"""FedProx: FedAvg whose clients are pulled towards the model they received.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Finite
from turnout.local.modifiers import Modifier, Proximal


@dataclass
class FedProx(FedAvg):
    """Clients minimise L_i(theta) + mu/2 |theta - received|^2; mu = 0 is FedAvg."""

    reads_updates = False

    mu: Finite = 0.1  # strength of the proximal term

    def own_modifiers(self) -> tuple[Modifier, ...]:
        return (Proximal(self.mu),)
