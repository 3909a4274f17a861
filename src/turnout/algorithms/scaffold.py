"""SCAFFOLD: local steps corrected by control variates, against client drift.

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnout.algorithms.fedavg import FedAvg
from turnout.local.modifiers import ControlVariates, Modifier
from turnout.sampling._sampler import Selection
from turnout.server.server import Server
from turnout.server.updates import Updates


@dataclass
class Scaffold(FedAvg):
    """The server keeps c = sum_i p_i c_i; client i keeps c_i and steps along g - c_i + c."""

    control: Tensor | None = field(default=None, init=False)  # [P] c

    def begin(self, server: Server) -> None:
        self.control = torch.zeros_like(server.model)

    def own_modifiers(self) -> tuple[Modifier, ...]:
        return () if self.control is None else (ControlVariates(self.control),)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        used = server.step(updates, self.weights(server, updates, chosen))
        if len(used) and self.control is not None:
            self.control = self.control + used.weighted_sum(server.importance[used.clients], "control")
