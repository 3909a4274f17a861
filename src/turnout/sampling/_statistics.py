"""What a sampling scheme does to the aggregation weights, before anything is trained.

Fraboni, Vidal, Kameni, Lorenzi, "A general theory for client sampling in federated learning", 2022: convergence
worsens with the total variance of the weights and with `gamma`. Fraboni's thesis, table 2.1 and appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from turnout.clients.availability import Always
from turnout.clients.online import OnlineSet
from turnout.clients.population import Population
from turnout.core.allowed import Count
from turnout.core.random import FloatArray
from turnout.core.spelling import spelt
from turnout.sampling._sampler import Sampler

ROUNDS = 20_000


@dataclass(frozen=True)
class Statistics:
    """Of the weights omega of one round with everybody online; by client where `[N]`."""

    importance: FloatArray  # [N] p_i
    expectation: FloatArray  # [N] E[omega_i]
    variance: FloatArray  # [N] Var[omega_i]
    inclusion: FloatArray  # [N] P(i is invited)
    sum_variance: float  # of the sum of the weights
    covariance_coefficient: float | None  # alpha, where Cov[omega_i, omega_j] = -alpha p_i p_j for all pairs
    standard_error: float = 0.0  # the largest of an expectation; 0 where everything is exact

    @property
    def total_variance(self) -> float:
        """Sigma, the sum of the variances."""
        return float(self.variance.sum())

    @property
    def gamma(self) -> float | None:
        """Sigma + alpha * sum of p_i^2."""
        alpha = self.covariance_coefficient
        return None if alpha is None else self.total_variance + alpha * float(np.square(self.importance).sum())

    @property
    def distinct_clients(self) -> float:
        """Expected number of clients invited."""
        return float(self.inclusion.sum())

    @property
    def bias(self) -> FloatArray:
        """`[N]` E[omega_i] - p_i."""
        return self.expectation - self.importance


class Occasion:
    """What a sampler looks at of a server, in a round with everybody online and nobody busy."""

    def __init__(self, population: Population, seed: int) -> None:
        self.population, self.seed, self.version = replace(population, availability=Always()), seed, 0
        self.importance = population.base_importance
        self.model = torch.zeros(0)

    def online(self) -> OnlineSet:
        return OnlineSet(self.population, self.version, 0.0)


def statistics(sampler: Sampler, population: Population, seed: int = 0, rounds: int = ROUNDS) -> Statistics:
    """In closed form where the scheme has one, else from so many draws, with the error that has.

    >>> statistics(turnout.MD(10), population).total_variance
    """
    occasion = Occasion(population, seed)
    exact = sampler.moments(occasion)  # type: ignore[arg-type]
    return drawn(sampler, population, seed, rounds) if exact is None else Statistics(occasion.importance, *exact)


@spelt
def drawn(sampler: Sampler, population: Population, seed: int = 0, rounds: Count = ROUNDS) -> Statistics:
    """By Monte Carlo: the first `rounds` rounds of a run with that seed."""
    occasion, clients = Occasion(population, seed), population.size
    sums, squares, invited = np.zeros(clients), np.zeros(clients), np.zeros(clients)
    totals = np.zeros(rounds)
    for number in range(rounds):
        occasion.version = number
        chosen = sampler.sample(occasion)  # type: ignore[arg-type]
        sums[chosen.clients] += chosen.weights
        squares[chosen.clients] += np.square(chosen.weights)
        invited[chosen.clients] += 1
        totals[number] = chosen.weights.sum()
    mean = sums / rounds
    variance = np.maximum(squares / rounds - np.square(mean), 0)
    error = float(np.sqrt(variance.max(initial=0.0) / rounds))
    return Statistics(
        occasion.importance, mean, variance, invited / rounds, float(totals.var()), None, standard_error=error
    )
