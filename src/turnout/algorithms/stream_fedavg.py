"""FedAvg over data streams: how much clients count is chosen for what they will have seen in the end.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, algorithm 13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from turnout.aggregation.optimisers import Projected, Step
from turnout.algorithms.fedavg import FedAvg
from turnout.clients.population import Population
from turnout.core.allowed import NotNegative, Positive
from turnout.core.errors import UserError, unknown
from turnout.sampling._sampler import FloatArray, Selection
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout.theory.streams import grouped, optimal_importance, uniform

WEIGHTINGS = ("uniform", "historical", "fresh", "optimal", "memory")


@dataclass
class StreamFedAvg(FedAvg):
    """`weighting` is how much clients count, in training alone: by all the samples they will have had (`uniform`), the
    same among `historical` or among `fresh` clients only, a number for the share of all that historical ones have, as
    minimises the bound for a `ratio` c2 / c1 (`optimal`), or by what those who answer have stored now (`memory`).

    In a round p_m^(t) is p_m over the sum of those who have a sample then: the others are not asked. Who is away all
    the same loses its weight, unless `normalise` is responders. `averaged` output is sum_t q^(t) theta^(t), the mean of
    the rounds' models by the p_m that had a part in them. With a `radius` the model stays in that ball around 0.
    """

    reads_updates = False
    of_part = FedAvg.of_part | {"optimiser": ("server_lr", "radius")}

    weighting: str | float = "uniform"  # uniform, historical, fresh, optimal, memory, or historical clients' share
    ratio: NotNegative | None = None  # c2 / c1 of the bound that optimal minimises
    output_of: Literal["last", "averaged"] = "last"  # last, or averaged over the rounds
    radius: Positive | None = None  # of the ball around 0 that the model stays in; none: anywhere
    average: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)
    total: float = field(default=0.0, init=False)  # what had a part so far
    filled: float = field(default=1.0, init=False)  # p_m of those with a sample in this round

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.weighting, str) and self.weighting not in WEIGHTINGS:
            raise unknown("algorithm.weighting", self.weighting, WEIGHTINGS)
        if (self.ratio is None) != (self.weighting != "optimal"):
            raise UserError(f"algorithm.ratio: {self.ratio} with weighting {self.weighting}; optimal alone needs one")

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

    def choose(self, server: Server) -> Selection:
        empty = ~server.population.has_samples(server.population.ids, server.now)
        self.filled = 1.0 if empty.all() else 1.0 - float(server.importance[empty].sum())
        return super().choose(server)

    def weights(self, server: Server, updates: Updates, chosen: Selection) -> FloatArray:
        if self.weighting == "memory":
            return np.asarray(updates.samples / max(1, updates.samples.sum()))
        return super().weights(server, updates, chosen) / self.filled

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        part = self.filled * float(self.weights(server, updates, chosen).sum())
        self.total += part
        if part:
            before = server.model if self.total == part else self.average
            self.average = before + (part / self.total) * (server.model - before)
        super().aggregate(server, updates, chosen)

    def output(self, model: Tensor) -> Tensor:
        return self.average if self.output_of == "averaged" and self.total else model

    def own_optimiser(self) -> Step:
        return Step(self.server_lr) if self.radius is None else Projected(self.server_lr, radius=self.radius)
