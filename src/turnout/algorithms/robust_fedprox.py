"""Robust FedProx: the server of robust FedAvg, the clients of FedProx.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.robust_fedavg import RobustFedAvg
from turnout.core.allowed import Finite
from turnout.local.modifiers import Modifier, Proximal


@dataclass
class RobustFedProx(RobustFedAvg):
    """Clients minimise L_i(theta) + mu/2 |theta - received|^2 (mu is the paper's 1 / eta); the model moves by
    beta times the sum of p_i of those who answered times what they changed."""

    mu: Finite = 0.1  # strength of the proximal term

    def own_modifiers(self) -> tuple[Modifier, ...]:
        return (Proximal(self.mu),)
