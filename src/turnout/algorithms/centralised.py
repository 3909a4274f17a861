"""Centralised: one machine trains on everybody's data. The baseline above, where privacy would allow it."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnout.algorithms.fedavg import FedAvg
from turnout.clients.population import Population
from turnout.sampling._sampler import Sampler
from turnout.sampling.full import Full


@dataclass
class Centralised(FedAvg):
    """FedAvg with a single client that holds the union of the data; evaluated over the clients as they are.

    Every sample counts the same, so where importance is not `samples` it minimises another objective."""

    cannot = {
        "remember": "has one client, which is always heard",
        "rule": "has one client",
        "weigh": "has one client",
        "serve": "trains one machine on everybody's data, and the clients none",
    }
    waits = None
    no_use_for = ("sampler", "wait_for", "wait_for_crashed", "retry", "normalise")

    sampler: Sampler = field(default_factory=Full)  # there is one client to ask

    def training_population(self, population: Population) -> Population:
        return population.pooled()
