"""MIFA: the server remembers every client's last update and uses it while the client is silent.

Gu, Huang, Zhang, Huang, "Fast federated learning in the presence of arbitrary device unavailability", NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from turnout.aggregation.remember import LastUpdate
from turnout.algorithms.fedavg import FedAvg
from turnout.sampling._sampler import Selection
from turnout.sampling.full import Full
from turnout.server.server import Server


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

    first_round: Literal["everybody", "zero"] = "everybody"  # whom it asks, or a memory of zeros
    remember: LastUpdate | None = field(default_factory=LastUpdate, kw_only=True, metadata={"part": True})

    def choose(self, server: Server) -> Selection:
        if server.version == 0 and self.first_round == "everybody":
            return Full().sample(server)
        return super().choose(server)
