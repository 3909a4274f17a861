"""Robust FedProx: the server of robust FedAvg, the clients of FedProx.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedprox import FedProx
from turnout.algorithms.robust_fedavg import RobustFedAvg


@dataclass
class RobustFedProx(RobustFedAvg, FedProx):
    """Clients minimise L_i(theta) + mu/2 |theta - received|^2 (mu is the paper's 1 / eta); the model moves by
    beta times the sum of p_i of those who answered times what they changed."""
