"""FedAvg over data streams: how much clients count is chosen for what they will have seen in the end.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, algorithm 13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from turnout.algorithms.fedavg import FedAvg
from turnout.errors import UserError, check_positive, unknown
from turnout.population.population import Population
from turnout.sampling.sampler import FloatArray, Selection
from turnout.server.optimisers import Gradient, Projected
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout.theory.streams import grouped, optimal_importance, uniform

WEIGHTINGS = ("uniform", "historical", "fresh", "optimal", "memory")
OUTPUTS = ("last", "averaged")


@dataclass
class StreamFedAvg(FedAvg):
    """`weighting` is how much clients count, in training alone: by all the samples they will have had (`uniform`), the
    same among `historical` or among `fresh` clients only, a number for the share of all that historical ones have, as
    minimises the bound for a `ratio` c2 / c1 (`optimal`), or by what those who answer have stored now (`memory`).

    Clients without a sample are not asked, and their weight is lost unless `normalise` is responders. `averaged` output
    is the mean of the rounds' models, sum_t q^(t) theta^(t), q^(t) in proportion to the weights used in round t. With a
    `radius` the model stays in that ball around 0.
    """

    weighting: str | float = "uniform"
    ratio: float | None = None
    output_of: str = "last"
    radius: float | None = None
    average: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)
    total: float = field(default=0.0, init=False)  # weights used so far

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.weighting, str) and self.weighting not in WEIGHTINGS:
            raise unknown("algorithm.weighting", self.weighting, WEIGHTINGS)
        if (self.ratio is None) != (self.weighting != "optimal"):
            raise UserError(f"algorithm.ratio: {self.ratio} with weighting {self.weighting}; optimal alone needs one")
        if self.output_of not in OUTPUTS:
            raise unknown("algorithm.output_of", self.output_of, OUTPUTS)
        check_positive("algorithm.radius", self.radius)

    def training_population(self, population: Population) -> Population:
        n, stream = population.train.counts * (population.base_importance > 0), population.stream
        fresh = np.zeros(len(n), bool) if stream is None else stream.fresh
        if self.ratio is not None:
            importance = optimal_importance(n, fresh, self.ratio)
        elif self.weighting in ("uniform", "memory"):
            importance = uniform(n, fresh)
        else:
            share = {"historical": 1.0, "fresh": 0.0}.get(str(self.weighting), self.weighting)
            importance = grouped(n, fresh, float(share))
        return replace(population, importance=importance)

    def weights(self, server: Server, updates: Updates, chosen: Selection) -> FloatArray:
        if self.weighting == "memory":
            return np.asarray(updates.samples / max(1, updates.samples.sum()))
        return super().weights(server, updates, chosen)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        weight = float(self.weights(server, updates, chosen).sum())
        self.total += weight
        if weight:
            before = server.model if self.total == weight else self.average
            self.average = before + (weight / self.total) * (server.model - before)
        super().aggregate(server, updates, chosen)

    def output(self, model: Tensor) -> Tensor:
        return self.average if self.output_of == "averaged" and self.total else model

    def optimiser(self) -> Gradient:
        return Gradient(self.server_lr) if self.radius is None else Projected(self.server_lr, self.radius)
