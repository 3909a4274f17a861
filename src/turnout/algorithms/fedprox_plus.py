"""FedProx+: FedProx's global model, fine-tuned by every client on its own data before it is used.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, with the last step of FedAvg+.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedavg_plus import FedAvgPlus
from turnout.core.allowed import Finite
from turnout.local.modifiers import Modifier, Proximal


@dataclass
class FedProxPlus(FedAvgPlus):
    """Trains as FedProx, serves as FedAvg+: nothing holds a client back in its last passes."""

    reads_updates = False

    mu: Finite = 0.1  # strength of the proximal term

    def own_modifiers(self) -> tuple[Modifier, ...]:
        return (Proximal(self.mu),)
