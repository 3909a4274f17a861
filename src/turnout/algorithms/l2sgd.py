"""L2SGD, loopless local gradient descent: personal models drawn towards their average, at moments left to chance.

Hanzely and Richtárik, "Federated learning of a mixture of global and local models", 2020, algorithms 1 and 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from turnout.aggregation.weights import Nova
from turnout.algorithms._algorithm import tell_unused
from turnout.algorithms._personalised import Personalised
from turnout.core import random
from turnout.core.allowed import NotNegative, Range
from turnout.core.errors import UserError
from turnout.local.own import KeptModelSGD, LooplessSGD, PulledSGD
from turnout.local.sgd import LocalSGD
from turnout.server.server import Server


@dataclass
class L2SGD(Personalised):
    """Minimises `sum_i p_i (L_i(x_i) + mu/2 |x_i - average|^2)`. A coin is thrown for all clients at once:

        with probability 1 - p   x_i <- x_i - lr / (1 - p) grad L_i(x_i),
        with probability p       x_i <- x_i - lr mu / p (x_i - average),        p = `communication`.

    A round is a run of the second, which leaves the average as it is, and a run of the first after it: as many steps as
    come before the next time to communicate, whatever the local epochs are. A client never seen solves for x once, the
    average being what it is.
    """

    reads_updates = False
    trains = LooplessSGD

    mu: NotNegative = 0.1  # pull towards the average of all models
    communication: Annotated[float, Range(above=0, below=1)] = 0.1  # chance that a step is one of communication

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.weigh, Nova):
            raise UserError("weigh: L2SGD has equally many steps of all, of which Nova makes the same; leave it out")
        most = self.communication / self.local.lr if self.local.lr else math.inf
        if self.mu > most:
            raise UserError(f"algorithm.mu: {self.mu} must be from 0 to communication / lr = {most:g}")

    def begin(self, server: Server) -> None:
        tell_unused(server, self.local, "epochs", "steps")

    def work(self, server: Server) -> LocalSGD:
        pulls, steps = self.coins(server)
        local = self.local.at(server.version)
        keep = (1 - local.lr * self.mu / self.communication) ** pulls
        return LooplessSGD.extend(local, keep=keep).bind({"lr": local.lr / (1 - self.communication), "steps": steps})

    def coins(self, server: Server) -> tuple[int, int]:
        """How many throws of each kind this round has, at least one: two geometric draws."""
        pull, step = random.uniform(random.key(server.seed, "coins", server.version), 2)
        p = self.communication
        return 1 + int(math.log1p(-pull) / math.log(p)), 1 + int(math.log1p(-step) / math.log1p(-p))

    def predictor(self) -> KeptModelSGD:
        return KeptModelSGD.extend(self.local)

    def adaptation(self, unseen: bool) -> PulledSGD | None:
        return PulledSGD.extend(self.tuning, mu=self.mu) if unseen else None
