"""Byzantine-resilient momentum: robust means of remembered momenta, for clients that are silent more often than not.

Karimireddy, He, Jaggi, ICML 2021 (centred clipping) and ICLR 2022 (buckets); Chen, Su, Xu, SIGMETRICS 2018 (the
geometric median); with the last momentum of silent clients, as Su, Xu, Yang, "Federated learning in the presence of
adversarial client unavailability", 2023, ran them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from turnout.aggregation.optimisers import Step
from turnout.aggregation.rules import CentredClipping, GeometricMedian, Mean, Rule
from turnout.algorithms._algorithm import tell_unused
from turnout.algorithms.fedavg import FedAvg
from turnout.core import random
from turnout.core.allowed import POSITIVE, Count, OneOf, Positive, Range, WholeNumber
from turnout.core.errors import UserError
from turnout.local.python_work import PythonWork
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import Selection
from turnout.server.averages import averaged
from turnout.server.server import Server
from turnout.server.updates import Updates

Combining = Annotated[str, OneOf(("centred_clipping", "geometric_median", "mean"))]


@dataclass
class RobustMomentum(FedAvg):
    """`m_i <- momentum m_i + (1 - momentum) g_i` of those who answered with the gradient g_i of one local step, then

        v <- rule({p_i, m_i} of all clients),    model <- model - server_lr * lr * v

    `rule` is centred_clipping (from the last v, `radius` 10 / (1 - momentum) unless given), geometric_median or mean;
    with `buckets` it sees the means of that many random buckets. `iterations` of the rule: 1 for clipping and 8 for the
    median unless given. Memory: N models. Who is silent counts with its last momentum, so there is no weight to give
    away (`normalise`) or to make up for (`wait_for` closes a round early and nothing else).
    """

    no_use_for = ("normalise",)
    cannot = {
        "weigh": "remembers momenta: every client counts its importance",
        "remember": "remembers momenta already",
        "rule": "has rules of its own (algorithm.rule)",
    }

    rule: Combining = field(default="centred_clipping", kw_only=True)  # what combines momenta
    momentum: Annotated[float, Range(least=0, below=1)] = 0.9  # share that a client's momentum keeps
    buckets: WholeNumber = 0  # random groups whose means the rule sees; 0: every momentum by itself
    radius: Positive | None = None  # of centred_clipping: the largest norm; none: 10 / (1 - momentum)
    iterations: Count | None = None  # of the rule; none: 1 for clipping, 8 for the median
    momenta: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)  # [N, P] m
    direction: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)  # [P] v

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.local, PythonWork):
            raise UserError(
                f"local: RobustMomentum needs the gradient of one step, and {self.local.called} is a Python function; "
                "take robust_mean"
            )
        POSITIVE.check("local.lr", self.local.lr)

    def begin(self, server: Server) -> None:
        first = () if self.local.nesterov or self.local.keeps else ("momentum",)  # of one step, after none
        tell_unused(server, self.local, *first, *(() if self.local.steps == 1 else ("epochs", "steps")))
        self.momenta = server.model.new_zeros(server.population.size, server.task.learnt)
        self.direction = torch.zeros_like(server.model[: server.task.learnt])

    def work(self, server: Server) -> LocalSGD:
        return self.local.bind({"steps": 1})

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        updates = server.finite(updates)
        if not len(updates):
            server.log("empty_round")
        lr, learnt = self.local.at(server.version).lr, server.task.learnt
        gradients = updates.deltas[:, :learnt] / -lr
        self.momenta[updates.clients] = torch.lerp(gradients, self.momenta[updates.clients], self.momentum)
        self.direction = self.robust_mean(server)
        model = server.model[:learnt] - self.server_lr * lr * self.direction
        if server.task.tail is not None:
            weights = server.importance[updates.clients]
            model = torch.cat([model, averaged(server, updates, weights, Step(self.server_lr), self.own_rule())])
        server.publish(model, updates, None)

    def robust_mean(self, server: Server) -> Tensor:
        """`[P]` what the rule makes of all momenta."""
        weights = torch.as_tensor(server.importance).to(self.momenta)
        key = random.key(server.seed, "buckets", server.version)  # who shares a bucket in this round
        return self.own_rule()(self.momenta, weights, self.direction, key)

    def own_rule(self) -> Rule:
        if self.rule == "centred_clipping":
            radius = 10 / (1 - self.momentum) if self.radius is None else self.radius
            return CentredClipping(radius, self.iterations or 1, buckets=self.buckets)
        if self.rule == "geometric_median":
            return GeometricMedian(self.iterations or 8, buckets=self.buckets)
        return Mean(buckets=self.buckets)
