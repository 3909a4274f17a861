"""FedCS: of the clients drawn, invite only those that can finish before the deadline.

Nishio, Yonetani, "Client selection for federated learning with heterogeneous resources in mobile edge", ICC 2019, as
the baseline of Wu et al., SAFA (IEEE Transactions on Computers 2021): the same draw as FedAvg, then the slow are left
out by their estimated time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnout.algorithms.fedavg import FedAvg
from turnout.errors import UserError
from turnout.sampling.sampler import Selection
from turnout.server.server import Server


@dataclass
class FedCS(FedAvg):
    """Invites the drawn clients whose expected download + training + upload fits into `deadline` seconds. Clients that
    never fit are never heard: the audit shows them."""

    reads_updates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deadline is None:
            raise UserError("algorithm.deadline: fedcs needs one")

    def choose(self, server: Server) -> Selection:
        drawn = super().choose(server)
        expected = server.durations(self.local).mean[drawn.clients]
        fits = expected <= (self.deadline or 0.0)
        return Selection(drawn.clients[fits], drawn.weights[fits])
