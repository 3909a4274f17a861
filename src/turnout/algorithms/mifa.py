"""MIFA: the server remembers every client's last update and uses it while the client is silent.

Gu, Huang, Zhang, Huang, "Fast federated learning in the presence of arbitrary device unavailability", NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from turnout.aggregation.remember import LastUpdate
from turnout.algorithms.fedavg import FedAvg
from turnout.core.errors import unknown
from turnout.sampling._sampler import Selection
from turnout.sampling.full import Full
from turnout.server.server import Server

FIRST_ROUNDS = ("everybody", "zero")


@dataclass
class Mifa(FedAvg):
    """`model <- model + server_lr * sum over all i of p_i * (last update of i)`; where the learning rate falls, updates
    are taken as they would be at the current one.

    The first round asks everybody, as the paper needs (for an adversary that keeps to that: `begins` = 1), or starts
    with a memory of zeros (`first_round` zero). Memory: N models; the audit counts an update in the
    round it is new, not while it is remembered. A client that is silenced for good keeps pulling
    where it pulled last, which can be arbitrarily wrong. Who is silent loses no weight, so there is none to give away
    (`normalise`) or to make up for (`wait_for` closes a round early and nothing else).
    """

    FORMER: ClassVar[dict[str, str]] = {"memory": "remember/memory"}  # where version 0.1 kept it
    no_use_for = ("normalise",)
    cannot = {"weigh": "remembers: every client counts its importance"}

    first_round: str = "everybody"  # everybody: all are asked; zero: the memory begins with zeros
    remember: LastUpdate | None = field(default_factory=LastUpdate, kw_only=True, metadata={"part": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_round not in FIRST_ROUNDS:
            raise unknown("algorithm.first_round", self.first_round, FIRST_ROUNDS)

    def choose(self, server: Server) -> Selection:
        if server.version == 0 and self.first_round == "everybody":
            return Full().sample(server)
        return super().choose(server)
