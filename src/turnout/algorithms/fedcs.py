"""FedCS: of the clients drawn, invite only those that can finish before the deadline.

Nishio, Yonetani, "Client selection for federated learning with heterogeneous resources in mobile edge", ICC 2019, as
the baseline of Wu et al., SAFA (IEEE Transactions on Computers 2021): the same draw as FedAvg, then the slow are left
out by their estimated time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from turnout.algorithms._algorithm import expected_deadline
from turnout.algorithms.fedavg import FedAvg
from turnout.sampling._sampler import Selection
from turnout.server.durations import Durations
from turnout.server.policy import Policy
from turnout.server.server import Server


@dataclass
class FedCS(FedAvg):
    """Invites the drawn clients whose expected download + training + upload fits into `deadline` seconds, unless given
    the time that nine clients in ten are expected to need. Clients that never fit are never heard: the audit shows
    them."""

    reads_updates = False

    chosen_deadline: float | None = field(default=None, init=False)  # where none was given

    def begin(self, server: Server) -> None:
        if self.time_limit is None:
            self.chosen_deadline = expected_deadline(server, self.local, lambda each: float(np.quantile(each, 0.9)))

    def policy(self, durations: Durations, version: int = 0) -> Policy | None:
        return None  # the slow are never asked

    def choose(self, server: Server) -> Selection:
        drawn = super().choose(server)
        expected = server.durations(self.local).mean[drawn.clients]
        fits = expected <= (self.time_limit or 0.0)
        return Selection(drawn.clients[fits], drawn.weights[fits])
