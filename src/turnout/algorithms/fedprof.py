"""FedProf: clients whose data look like the server's own are more likely to take part.

Wu, He, Lin, Mao, "FedProf: selective federated learning based on distributional representation profiling", IEEE
Transactions on Parallel and Distributed Systems 2023; Wu's thesis (Warwick), chapter 5, algorithm 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from turnout.aggregation.encryption import key_holder
from turnout.algorithms.fedavg import FedAvg
from turnout.clients.columns import PerClient, column
from turnout.core import random
from turnout.core.errors import UserError, check_positive, check_room, unknown
from turnout.core.random import FloatArray, IntArray
from turnout.local.answers import ProfileReport
from turnout.local.profile import profile_of
from turnout.local.sgd import LocalSGD
from turnout.sampling._sampler import Sampler, Selection
from turnout.server.server import CURRENT, Server
from turnout.server.updates import Updates
from turnout.theory import matching

AGGREGATIONS = ("full", "partial")


@dataclass
class FedProf(FedAvg):
    """`clients_per_round` draws with P(k) = exp(-alpha_k div_k) / sum_j exp(-alpha_j div_j), alpha the `preference`.

    div_k is the divergence of the client's profile (means and variances of the elements of `layer`, by default the
    first fully connected one) from that of the `reference`: inputs the server holds, by default the central test set.
    Both are made with the model the client received, before it trains. All clients send a profile at the start, of the
    first model, which follows from a seed; then with every update. A client counts p_k once (`aggregation` full: who is
    not drawn counts as if it had returned the model) or times drawn / draws (partial: the mean). Without `replace`
    clients are distinct, and the likely ones are drawn **less** often than P(k) says.

    Only clients online are drawn, and only those that have sent a profile: newcomers are asked for one first, and with
    `refresh_every` whoever's is that many rounds old. A profile that is not finite has no chance until there is a
    better one; `min_prob` is the least chance of all others. With `cipher` additive the server never reads a profile;
    the record still counts 8 bytes an element. Only inputs are profiled: wrong labels are not seen.
    """

    sampler: Sampler = field(default_factory=Sampler, init=False, repr=False)  # not asked
    normalise: str = "responders"  # responders: the weight of the silent goes to the others; invited: it is lost
    clients_per_round: int = 10  # draws of a round
    preference: PerClient = 10.0  # alpha: how strongly clients like the server's data are preferred; one, or one each
    layer: str | None = None  # whose outputs are profiled; none: the first fully connected one
    reference: FloatArray | None = None  # [m, ...]
    aggregation: str = "full"  # full: who is not drawn counts as unchanged; partial: the mean of those drawn
    replace: bool = True  # whether a client can be drawn twice
    refresh_every: int | None = None  # rounds after which a profile is asked for anew; none: never
    min_prob: float = 0.0  # least chance of a client to be drawn
    var_floor: float = matching.VAR_FLOOR  # least variance of an element of a profile
    cipher: str = "plain"  # plain, or additive: the server never reads a profile
    divergences: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N]
    versions: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N] profiled; -1: none
    matched: FloatArray = field(default_factory=lambda: np.zeros((2, 0)), init=False)  # [2, q] the reference's profile

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregation not in AGGREGATIONS:
            raise unknown("algorithm.aggregation", self.aggregation, AGGREGATIONS)
        for name in ("clients_per_round", "refresh_every", "var_floor"):
            check_positive(f"algorithm.{name}", getattr(self, name))
        check_room(f"algorithm.clients_per_round: {self.clients_per_round} draws", 8 * self.clients_per_round)
        if not np.all(np.asarray(self.preference) >= 0):
            raise UserError(f"algorithm.preference: {self.preference} must be at least 0")
        if not 0 <= self.min_prob <= 1:
            raise UserError(f"algorithm.min_prob: {self.min_prob} must be from 0 to 1")
        self._key_holder = key_holder(self.cipher, self.var_floor)

    def begin(self, server: Server) -> None:
        self.divergences = np.full(server.population.size, np.inf)
        self.versions = np.full(server.population.size, -1)

    def choose(self, server: Server) -> Selection:
        self._look(server)
        self._ask(server, self._due(server))
        online = server.online().ids
        clients, times = self.draw(server, online[(self.versions[online] >= 0) & (server.importance[online] > 0)])
        if self.aggregation == "full":
            return Selection(clients, server.importance[clients])
        return Selection(clients, times / max(1, times.sum()))

    def work(self, server: Server) -> LocalSGD:
        return self.local.reporting(f"profile:{self._layer(server)}")

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        self._match(server, updates)
        super().aggregate(server, updates, chosen)

    def chances(self, clients: IntArray) -> FloatArray:
        """Of each of these clients in one draw among them."""
        alpha = column("algorithm.preference", self.preference, clients)
        return matching.selection_probabilities(self.divergences[clients], alpha, self.min_prob)

    def draw(self, server: Server, clients: IntArray) -> tuple[IntArray, IntArray]:
        """Who is drawn, and how often."""
        if not len(clients):
            return clients, clients
        key, chances = Sampler.key(server), self.chances(clients)
        if self.replace:
            edges = np.cumsum(chances)
            places = np.searchsorted(edges, random.uniform(key, self.clients_per_round) * edges[-1], side="right")
            return np.unique(clients[places], return_counts=True)
        # The first of exponential clocks that tick at these rates: where all are equal, in the order of
        # `random.permutation`, so that uniform sampling draws the same clients.
        shares = (random.bits(key, server.population.size)[clients] >> 11) * 2.0**-53 + 0.5
        possible = np.flatnonzero(chances)
        order = np.argsort(-np.log1p(-shares[possible]) / chances[possible], kind="stable")[: self.clients_per_round]
        return clients[possible[order]], np.ones(len(order), np.int64)

    def _layer(self, server: Server) -> str:
        return server.task.first_linear if self.layer is None else self.layer

    def _look(self, server: Server) -> None:
        """Profile the reference with the current model."""
        if self.reference is not None:
            shape, given = server.cohort.inputs.shape[1:], torch.as_tensor(self.reference)
            if not given.numel() or given.numel() % shape.numel() or not bool(torch.isfinite(given).all()):
                raise UserError(
                    f"algorithm.reference: {given.numel()} values are no samples of {shape.numel()} finite numbers each"
                )
            inputs = server.cohort.place(given.reshape(-1, *shape))
        elif server.whole_population.central is not None:
            inputs = server.central[0]
        else:
            raise UserError("algorithm.reference: the server holds no data; take a dataset with a test set, or give it")
        with server.cohort.all_threads():
            self.matched = profile_of(server.task, server.model, inputs, self._layer(server))
        if not matching.informative(self.matched, self.var_floor).any():
            server.log("dead_layer", layer=self._layer(server), why="nothing varies at the reference: all are alike")

    def _due(self, server: Server) -> IntArray:
        """Who is online and has to send a profile before it can be drawn."""
        online = server.online().ids
        due = self.versions[online] < 0
        if self.refresh_every is not None:
            due |= server.version - self.versions[online] >= self.refresh_every
        return online[due]

    def _ask(self, server: Server, clients: IntArray) -> None:
        """Have these clients profile the current model; the first one they can make themselves."""
        if not len(clients):
            return
        work = ProfileReport.like(self.local, report=f"profile:{self._layer(server)}")
        self._match(server, Sampler.hear(server, clients, work, CURRENT if server.version == 0 else None))

    def _match(self, server: Server, updates: Updates) -> None:
        """Compare profiles with the reference's of the same model. Who sends none keeps the divergence it has."""
        if not len(updates):
            return
        found = self._key_holder.divergences(updates["profile"].double().cpu().numpy(), self.matched)
        for client in updates.clients[np.isinf(found)].tolist():
            server.log("rejected_profile", client=client, why="infinitely far from the reference")
        self.divergences[updates.clients] = found
        self.versions[updates.clients] = updates.versions
