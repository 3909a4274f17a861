"""WERM: weighted empirical risk minimisation over private and reference data, the baseline of empirical privacy.

Kaplan, Xu, Marfoq, Neglia, Santana de Oliveira, "A cautionary tale: on the role of reference data in empirical privacy
defenses", PoPETs 2024. Reference data come from the same distribution as the training data, and may be private too:

    minimise  w L_T + (1 - w) L_R        L_T, L_R: the *mean* losses over training and over reference data
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from turnout.algorithms.fedavg import FedAvg
from turnout.clients.population import Population
from turnout.core import random
from turnout.core.allowed import Range, Share
from turnout.core.errors import UserError
from turnout.core.random import FloatArray

Holders = Annotated[float | list[int], Range(least=0)]


@dataclass
class WERM(FedAvg):
    """FedAvg in which the clients that hold training data share the importance w, the `train_weight`, and those that
    hold reference data 1 - w, each group in the proportions it has in the population.

    A larger w learns more from (and leaks more of) the training data. `reference_clients` are the ids of those who hold
    reference data, or how many do (below 1: which share), drawn by the population's seed. Two clients, one of each
    kind, that make one step a round are the centralised form: a mini-batch of either, and one weighted step. Where
    clients join or leave, the two shares are those of everybody, not of those present.
    """

    reads_updates = False

    train_weight: Share = 0.5  # w: share of the training data in the loss
    reference_clients: Holders = 0.5  # who holds reference data: ids, how many, or (below 1) which share

    def training_population(self, population: Population) -> Population:
        reference = self.holds_reference(population)
        return replace(population, importance=weighted(population.base_importance, reference, self.train_weight))

    def holds_reference(self, population: Population) -> NDArray[np.bool_]:
        """`[N]` whose data are reference data."""
        given, size = self.reference_clients, population.size
        if isinstance(given, Sequence):
            ids = np.asarray(given, np.int64)
        elif 0 <= given <= size and (given < 1 or given == int(given)):
            count = round(given * size) if given < 1 else int(given)
            ids = random.subset(random.key(population.seed, "reference clients"), count, size)
        else:
            ids = np.array([-1])
        if len(np.unique(ids)) < len(ids) or not np.isin(ids, population.ids).all():
            allowed = f"a share below 1, a number of the {size} clients, or a list of their ids"
            raise UserError(f"algorithm.reference_clients: {given} must be {allowed}")
        return np.isin(population.ids, ids)


def weighted(importance: FloatArray, reference: NDArray[np.bool_], train_weight: float) -> FloatArray:
    """`[N]` importance, of which those without reference data have `train_weight` in all, and the others the rest."""
    shares = np.zeros(len(importance))
    for group, weight, name in ((~reference, train_weight, "training"), (reference, 1 - train_weight, "reference")):
        total = importance[group].sum()
        if weight and not total:
            raise UserError(
                f"algorithm.train_weight: {train_weight} gives weight to {name} data, but no client holds any"
            )
        shares[group] = weight * importance[group] / total if weight else 0.0
    return shares
