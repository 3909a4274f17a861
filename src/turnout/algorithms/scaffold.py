"""SCAFFOLD: local steps corrected by control variates, against client drift.

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnout.algorithms.fedavg import FedAvg
from turnout.local.modifiers import ControlVariates, Modifier


@dataclass
class Scaffold(FedAvg):
    """FedAvg with the modifier control_variates: the server holds c = sum_i p_i c_i; client i keeps c_i and steps along
    g - c_i + c."""

    FORMER: ClassVar[dict[str, str]] = {"control": "held/control"}  # where version 0.1 kept it

    def own_modifiers(self) -> tuple[Modifier, ...]:
        return (ControlVariates(),)
