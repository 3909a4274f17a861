"""Quadratic clients, on which one round of most algorithms is an affine map of the model that can be written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import turnout
from support import Vector, quadratic_loss
from turnout import Algorithm, Evaluation, FedAvg, Full, LocalSGD, Plan, Population, Result, Task
from turnout.sampling._sampler import Selection
from turnout.server.server import Server
from turnout.server.updates import Updates

EXACT = Plan(precision="float64", threads=1)
SELDOM = Evaluation(rounds=None)  # only at the end
EXAMPLE_A = (0.4, 0.3, 0.2, 0.1)


def point(start: float | Sequence[float] = 0.0) -> Task:
    """A model that is one vector, at `start`."""
    values = torch.atleast_1d(torch.tensor(start, dtype=torch.float64))
    module = Vector(len(values))
    module.theta = torch.nn.Parameter(values)
    return Task(module, quadratic_loss)


def clients(
    optima: Sequence[Any] | NDArray[Any], importance: Sequence[float] | str, curvatures: Any = None, **columns: Any
) -> Population:
    data = turnout.datasets.load("quadratics", optima=list(optima), curvatures=curvatures)
    return Population.of(data, len(optima), "natural", test="none", importance=importance, **columns)


def steps(count: int, lr: float, **options: Any) -> LocalSGD:
    """So many full-gradient steps."""
    return LocalSGD(lr, steps=count, batching="full", **options)


def simulate(algorithm: Algorithm, people: Population, rounds: int | None, start: Any = 0.0, **options: Any) -> Result:
    options = {"plan": EXACT, "evaluation": SELDOM, **options}
    return turnout.simulate(point(start), people, algorithm, rounds, **options)


def fixed_point(algorithm: Algorithm, people: Population) -> float:
    """Where one round changes nothing: f(x) = f(0) + (f(1) - f(0)) x."""
    at_zero, at_one = (float(simulate(algorithm, people, 1, start).model[0]) for start in (0.0, 1.0))
    return at_zero / (1 - (at_one - at_zero))


@dataclass
class Unequal(FedAvg):
    """FedAvg whose clients have their own numbers: arrays over the invited, all of them."""

    sampler: Full = field(default_factory=Full)
    own: dict[str, Any] = field(default_factory=dict)

    def work(self, server: Server) -> LocalSGD:
        return replace(super().work(server), **{name: np.array(values) for name, values in self.own.items()})  # type: ignore[arg-type]


@dataclass
class Watched(FedAvg):
    """FedAvg that remembers what came back."""

    sampler: Full = field(default_factory=Full)
    seen: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        order = np.argsort(updates.clients)
        self.seen.append(
            {
                "clients": updates.clients[order],
                "returned": updates.returned().numpy()[order],
                "deltas": updates.deltas.numpy()[order],
                "staleness": updates.staleness[order],
            }
        )
        super().aggregate(server, updates, chosen)
