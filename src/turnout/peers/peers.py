"""Peers: training without a server. Every silo has a model of its own, trains it, and mixes it with its neighbours'.

Rounds, evaluation, record, checkpoints and the cohort that trains are the server's; nothing is sent to it or by it. A
silo starts its next round as soon as its neighbours' models are there, whatever the others do:

    t_i(k + 1) = max over j that send to i, and i itself, of t_j(k) + d(j, i)

A round of the run closes when the last silo may start the next.

How long a silo computes is the population's business (`devices`), as for any algorithm, stragglers included; how long a
message takes is the network's. Silos whose training fails, because they are away or crash, still pass on the model that
they have, and their neighbours wait for them as if it had not failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.names import called
from turnout.core.random import FloatArray, IntArray
from turnout.local.sgd import LocalSGD
from turnout.peers.mixing import mixing_matrix
from turnout.peers.network import BoolArray, Exchange, Network, Overlay, PerRound
from turnout.server.server import Among, Server
from turnout.server.updates import Updates
from turnout.task.task import Task


@dataclass
class Silos:
    """What must survive a crash."""

    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [N, P]
    times: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N] ticks each has come to
    jobs: int = field(default=0, init=False)  # that each has begun


def ring(silos: int) -> Overlay:
    """Each sends to the next, the last to the first."""
    everybody = np.arange(silos)
    return Overlay("ring", (everybody[:, None] + 1) % silos == everybody if silos > 1 else np.zeros((1, 1), np.bool_))


def over_own_links(people: Population) -> Network:
    """Silos that meet over the links they have: their access is all that is narrow, latencies add up."""
    links, seed, ids = people.links, people.seed, people.ids
    latency = links.latencies(seed, ids)
    others = ~np.eye(people.size, dtype=np.bool_)
    return Network(
        tuple(called(people.names, i) for i in ids),
        np.where(others, latency[:, None] + latency, 0.0),
        np.full(others.shape, np.inf),
        links.rates("up", seed, ids),
        links.rates("down", seed, ids),
        others,
    )


def check_silos(network: Network, people: Population) -> None:
    if len(network) != people.size:
        raise UserError(
            f"network: it has {len(network)} silos and there are {people.size} clients; "
            f"set clients.count={len(network)} or choose another network"
        )


def message_bytes(people: Population, task: Task, dtype: torch.dtype) -> int:
    """Of what a silo sends; `model_bytes` is the size of one model, of which a mixture has several."""
    if people.model_bytes is None:
        return task.size * dtype.itemsize
    return round(people.model_bytes * task.size / task.layout.size)


class Peers:
    """The clients of a server as silos.

    Without an overlay they stand in a ring, in their order; without a network they meet over their own links.
    `latency(round)` gives `[N, N]` seconds in its place, for jitter.
    """

    def __init__(
        self,
        server: Server,
        silos: Silos,
        overlay: Overlay | None = None,
        network: Network | None = None,
        latency: PerRound | None = None,
    ) -> None:
        people = server.population
        self.server, self.silos, self.latency = server, silos, latency
        self.overlay = overlay or ring(people.size)
        self.network = network or over_own_links(people)
        check_silos(self.network, people)
        self._bytes = message_bytes(people, server.task, server.plan.dtype)
        self._message = Exchange(8 * self._bytes)
        self._mixing: tuple[BoolArray, str | None, FloatArray] | None = None  # of an overlay that stays the same
        self._delays()  # an overlay that does not fit is told of before anything is trained
        if not len(silos.models):
            silos.models = server.model.repeat(people.size, 1)
            silos.times = np.zeros(people.size, np.int64)

    @property
    def models(self) -> Tensor:
        """`[N, P]`"""
        return self.silos.models

    def train(self, work: LocalSGD, scale: FloatArray | None = None) -> Updates:
        """One job at every silo, from its own model, to which the difference is added, `scale[i]` times. Returns what
        counted: a silo that failed keeps its model."""
        server, silos, ids = self.server, self.silos, self.server.population.ids
        arcs = self.overlay.arcs(server.version)
        down, up = (self._bytes * arcs.sum(axis) for axis in (0, 1))
        server.invite(ids, work, (silos.models, ids), among=Among(silos.times, down, up))
        ticks = server.population.ticks_per_second
        seconds = server.durations(work).compute(silos.jobs)
        silos.jobs += 1
        silos.times = silos.times + np.maximum(1, np.rint(seconds * ticks).astype(np.int64))
        updates = self._wait()
        updates = updates.select(np.argsort(updates.clients))  # as the cohort and the models have them
        server.cancel(ids)  # whose failure nobody has heard of
        models = self._moved(updates, scale)
        if not bool(torch.isfinite(models.sum())):
            updates = server.finite(updates)
            models = self._moved(updates, scale)
        silos.models = models
        return updates

    def _moved(self, updates: Updates, scale: FloatArray | None) -> Tensor:
        """`[N, P]` the models with the differences of those who have learnt something."""
        models, differences = self.models, updates.deltas
        if scale is not None:
            differences = differences * torch.as_tensor(scale[updates.clients]).to(models)[:, None]
        return models.index_add(0, torch.as_tensor(updates.clients, device=models.device), differences)

    def mixing(self, rule: str | None = None) -> FloatArray:
        """`[N, N]` what is mixed in this round, by a rule of `turnout.peers.mixing` or as the overlay has it."""
        arcs = self.overlay.arcs(self.server.version)
        if self._mixing is None or self._mixing[0] is not arcs or self._mixing[1] != rule:
            self._mixing = arcs, rule, mixing_matrix(self.overlay, self.server.version, rule)
        return self._mixing[2]

    def mix(self, weights: FloatArray) -> None:
        """Exchange the models, and replace each by `sum_j weights[i, j] * model_j`."""
        server, silos = self.server, self.silos
        delays = self._delays()
        ticks = np.rint(np.where(delays > -np.inf, delays, 0.0) * server.population.ticks_per_second).astype(np.int64)
        silos.times = np.where(delays > -np.inf, silos.times[:, None] + ticks, 0).max(0)
        self._wait()
        silos.models = torch.as_tensor(weights).to(silos.models) @ silos.models
        server.note(consensus_distance=self.consensus_distance())

    def average(self) -> Tensor:
        """`[P]` the mean of the silos' models."""
        return self.models.mean(0)

    def consensus_distance(self) -> float:
        """`sum_i |w_i - mean|^2`"""
        return float(torch.linalg.vector_norm(self.models - self.average()) ** 2)

    def _delays(self) -> FloatArray:
        """`[N, N]` seconds of this round's messages; -inf where nothing is sent."""
        version, network = self.server.version, self.network
        if self.latency is not None:
            network = replace(network, latency=self.latency(version))
        return self.overlay.delays(network, self._message, version)

    def _wait(self) -> Updates:
        """Until every silo has come to its time."""
        server = self.server
        seconds = int(self.silos.times.max()) / server.population.ticks_per_second - server.now
        return server.wait(seconds=max(0.0, seconds))
