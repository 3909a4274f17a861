"""FedProx: FedAvg whose clients are pulled towards the model they received.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnout.algorithms.fedavg import FedAvg
from turnout.core.errors import UserError
from turnout.local.modifiers import Proximal
from turnout.local.sgd import LocalSGD
from turnout.server.server import Server


@dataclass
class FedProx(FedAvg):
    """Clients minimise L_i(theta) + mu/2 |theta - received|^2; mu = 0 is FedAvg."""

    reads_updates: ClassVar[bool] = False

    mu: float = 0.1  # strength of the proximal term

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise UserError(f"algorithm.mu: {self.mu} must be at least 0")

    def work(self, server: Server) -> LocalSGD:
        return self.local.modified(Proximal(self.mu))
