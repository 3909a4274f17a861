"""A real server over a handful of one-dimensional clients, and the laws of aggregation weights taken from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import turnout
from support import Vector, quadratic_loss
from turnout.clients.availability import Availability
from turnout.core import random
from turnout.sampling._sampler import Sampler, Selection
from turnout.server.server import Server

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
EXAMPLE_A = (0.4, 0.3, 0.2, 0.1)
EXAMPLE_B = (0.6, 0.2, 0.1, 0.1)


def task() -> turnout.Task:
    """A model that is one number, pulled towards each client's optimum."""
    return turnout.Task(Vector(1), quadratic_loss)


def population(
    importance: Sequence[float] | str,
    optima: Sequence[float] | None = None,
    availability: Availability | None = None,
    clients: int | None = None,
) -> turnout.Population:
    size = clients or len(importance)
    data = turnout.datasets.load("quadratics", optima=list(optima or range(size)))
    return turnout.Population.of(
        data, size, "natural", test="none", importance=importance, availability=availability or turnout.Always()
    )


def server_of(importance: Sequence[float] | str, seed: int = 0, **options: Any) -> Server:
    """The server as an algorithm meets it before its first round; set `version` to get another round's draw."""
    algorithm = turnout.FedAvg(turnout.LocalSGD(0.5, steps=1, batching="full"))
    return turnout.Simulation(task(), population(importance, **options), algorithm, seed=seed)


def sample(sampler: Sampler, server: Server, version: int) -> Selection:
    server.version = version
    return sampler.sample(server)


def weights_of(selection: Selection, clients: int) -> FloatArray:
    weights = np.zeros(clients)
    weights[selection.clients] = selection.weights
    return weights


@dataclass(frozen=True)
class Law:
    """Every outcome of one round: its probability, its weights, who was contacted."""

    probability: FloatArray  # [outcomes]
    weights: FloatArray  # [outcomes, n]
    contacted: BoolArray  # [outcomes, n]

    def mean(self, values: FloatArray | BoolArray) -> FloatArray:
        return np.tensordot(self.probability, values, 1)

    @property
    def expected(self) -> FloatArray:
        return self.mean(self.weights)

    @property
    def covariance(self) -> FloatArray:
        centred = self.weights - self.expected
        return self.mean(centred[:, :, None] * centred[:, None, :])

    @property
    def variance_of_sum(self) -> float:
        total = self.weights.sum(1)
        return float(self.mean((total - self.mean(total)) ** 2))

    @property
    def distinct(self) -> tuple[float, float]:
        """Mean and variance of the number of distinct clients."""
        count = self.contacted.sum(1).astype(float)
        mean = float(self.mean(count))
        return mean, float(self.mean((count - mean) ** 2))


def _law(rows: Iterator[tuple[float, Selection]], clients: int) -> Law:
    probability, weights, contacted = [], [], []
    for chance, selection in rows:
        probability.append(chance)
        weights.append(weights_of(selection, clients))
        contacted.append(np.isin(np.arange(clients), selection.clients))
    return Law(np.array(probability), np.array(weights), np.array(contacted))


def exact_law(monkeypatch: Any, sampler: Sampler, importance: Sequence[float]) -> Law:
    """By enumeration: the sampler's only source of chance is replaced by each of its outcomes in turn."""
    server, p = server_of(importance), np.array(importance)
    if isinstance(sampler, turnout.MD):
        centres = np.cumsum(p) - p / 2  # a uniform number that falls to client i

        def outcomes() -> Iterator[tuple[float, Selection]]:
            for draws in itertools.product(np.flatnonzero(p), repeat=sampler.clients_per_round):
                with monkeypatch.context() as patch:
                    patch.setattr(random, "uniform", lambda *_, draws=draws: centres[list(draws)])
                    yield float(np.prod(p[list(draws)])), sampler.sample(server)
    elif isinstance(sampler, turnout.Full):

        def outcomes() -> Iterator[tuple[float, Selection]]:
            yield 1.0, sampler.sample(server)
    else:
        orders = list(itertools.permutations(range(len(p))))

        def outcomes() -> Iterator[tuple[float, Selection]]:
            for order in orders:
                with monkeypatch.context() as patch:
                    patch.setattr(random, "_subsets", random._subsets.__wrapped__)  # which remembers nothing
                    patch.setattr(random, "permutation", lambda keys, _, order=order: np.tile(order, (*keys.shape, 1)))
                    yield 1 / len(orders), sampler.sample(server)

    return _law(outcomes(), len(p))


def drawn_law(sampler: Sampler, server: Server, rounds: int) -> Law:
    """By sampling: `rounds` consecutive rounds, equally likely."""
    rows = ((1 / rounds, sample(sampler, server, version)) for version in range(rounds))
    return _law(rows, server.population.size)


def near(values: FloatArray, expected: float | FloatArray, errors: float = 5.0) -> bool:
    """Whether the mean over rounds `[R, ...]` is within so many of its standard errors, everywhere."""
    error = values.std(axis=0) / np.sqrt(len(values))
    return bool((np.abs(values.mean(axis=0) - expected) <= errors * error + 1e-12).all())
