"""FedAvg with a robust mean: some of the clients may send anything.

The rules and their papers are in `turnout.aggregation.rules`. With `buckets` the rule sees the means of random
buckets, whose rows differ less: Karimireddy, He, Jaggi, "Byzantine-robust learning on heterogeneous datasets via
bucketing", ICLR 2022.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from turnout.aggregation.rules import RULES, bucketed
from turnout.algorithms.fedavg import FedAvg
from turnout.core import random
from turnout.core.errors import UserError, check_positive, unknown
from turnout.sampling._sampler import Selection
from turnout.server.server import Server
from turnout.server.updates import Updates

OPTIONS = ("trim", "liars", "keep", "radius", "iterations")


@dataclass
class RobustMean(FedAvg):
    """`model <- model + server_lr * W * rule({omega_i / W, returned_i - model})`, W the sum of omega_i.

    `rule` is one of `turnout.aggregation.rules.RULES`; with `mean` this is FedAvg. What a rule is to know: `trim`,
    the share of values a trimmed_mean leaves out on either side; `liars`, how many krum and multi_krum expect, and
    `keep`, of how many rows multi_krum is the mean; `radius` of a clipping; `iterations` of centred_clipping, which
    begins at the last result, and of the geometric_median.
    """

    rule: str = "coordinate_median"
    buckets: int = 0
    trim: float | None = None
    liars: int | None = None
    keep: int | None = None
    radius: float | None = None
    iterations: int | None = None
    direction: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)  # [P] the last result

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule not in RULES:
            raise unknown("algorithm.rule", self.rule, RULES)
        known = inspect.signature(RULES[self.rule]).parameters
        for name in OPTIONS:
            if getattr(self, name) is not None and name not in known:
                raise UserError(f"algorithm.{name}: rule {self.rule} does not take it; leave it out")
            if name in known and getattr(self, name) is None and known[name].default is inspect.Parameter.empty:
                raise UserError(f"algorithm.{name}: missing; rule {self.rule} needs it")
        if self.trim is not None and not 0 <= self.trim < 0.5:
            raise UserError(f"algorithm.trim: {self.trim} must be at least 0 and below 0.5")
        for name in ("buckets", "liars"):
            if (getattr(self, name) or 0) < 0:
                raise UserError(f"algorithm.{name}: {getattr(self, name)} must be at least 0")
        for name in ("keep", "radius", "iterations"):
            check_positive(f"algorithm.{name}", getattr(self, name))

    def begin(self, server: Server) -> None:
        self.direction = torch.zeros_like(server.model)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        def rule(rows: Tensor, weights: Tensor) -> Tensor:
            if self.buckets:
                key = random.key(server.seed, "buckets", server.version)
                rows, weights = bucketed(rows, weights, min(self.buckets, len(rows)), key)
            if "krum" in self.rule and len(rows) <= 2 * (1 if self.liars is None else self.liars) + 2:
                server.log("too_few_rows", rows=len(rows), why=f"{self.rule} needs more than 2 liars + 2")
            self.direction = RULES[self.rule](rows, weights, **self.options)
            return self.direction

        server.step(updates, self.weights(server, updates, chosen), rule)

    @property
    def options(self) -> dict[str, Any]:
        """What the rule is given."""
        given = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        return given | ({"start": self.direction} if self.rule == "centred_clipping" else {})
