"""What algorithms share whose clients weigh the same few models, each in its own way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from turnout.core.random import FloatArray
from turnout.local.mixture import MixtureSGD
from turnout.server.server import Server
from turnout.server.updates import Updates

STARVED = 0.01  # a component that makes up less than this of the samples learns next to nothing


def weights_of(server: Server, work: MixtureSGD, clients: ArrayLike) -> FloatArray:
    """`[len(clients), M]` pi: only a simulation knows it, nobody sends it."""
    kept = server.store.get(work.state_shapes(server.task), np.asarray(clients, np.int64))["weights"]
    weights: FloatArray = kept.double().cpu().numpy()
    return np.where(weights.sum(1, keepdims=True) > 0, weights, 1 / work.components)


def weight_columns(server: Server, work: MixtureSGD, clients: ArrayLike) -> dict[str, NDArray[Any]]:
    """Columns of the table of clients, `weight_0`, `weight_1`, ...: pi."""
    return {f"weight_{m}": column for m, column in enumerate(weights_of(server, work, clients).T)}


def note_weights(server: Server, work: MixtureSGD, updates: Updates, starved: list[int]) -> list[int]:
    """Tell the history of this round's clients: the share of each component in their samples, `mass_0`, `mass_1`, ...,
    and the mean entropy of their weights. A share that falls below 1 % is an event; returns the components below."""
    if not len(updates):
        return starved
    weights = weights_of(server, work, updates.clients)
    mass = np.average(weights, axis=0, weights=updates.samples)
    server.note(**{f"mass_{m}": float(share) for m, share in enumerate(mass)})
    server.note(weights_entropy=float(entr(weights).sum(1).mean()))
    below: list[int] = np.flatnonzero(mass < STARVED).tolist()
    for component in sorted(set(below) - set(starved)):
        server.log("starved_component", component=component, mass=float(mass[component]))
    return below
