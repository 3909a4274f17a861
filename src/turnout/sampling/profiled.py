"""Profiled: clients whose data look like the server's own are more likely to be drawn.

Wu, He, Lin, Mao, "FedProf: selective federated learning based on distributional representation profiling", IEEE
Transactions on Parallel and Distributed Systems 2023; Wu's thesis (Warwick), chapter 5, algorithm 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from turnout.aggregation.encryption import key_holder
from turnout.clients.columns import PerClient, column
from turnout.core import random
from turnout.core.allowed import Count, Positive, Range, Share
from turnout.core.errors import UserError, check_room
from turnout.core.trees import Tree
from turnout.local.answers import ProfileReport
from turnout.local.profile import profile_of
from turnout.sampling._sampler import DEFAULT_SIZE, FloatArray, IntArray, Sampler, Selection, in_proportion
from turnout.theory import matching

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates


@dataclass
class Profiled(Sampler):
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

    depends_on = "the profiles"

    clients_per_round: Count = DEFAULT_SIZE  # draws of a round
    preference: Annotated[PerClient, Range(least=0)] = 10.0  # alpha: how strongly data like the server's is preferred
    layer: str | None = None  # whose outputs are profiled; none: the first fully connected one
    reference: FloatArray | None = None  # [m, ...] inputs that the server holds; none: the central test set
    aggregation: Literal["full", "partial"] = "full"  # full: who is not drawn counts as unchanged; partial: the mean
    replace: bool = True  # whether a client can be drawn twice
    refresh_every: Count | None = None  # rounds after which a profile is asked for anew; none: never
    min_prob: Share = 0.0  # least chance of a client to be drawn
    var_floor: Positive = matching.VAR_FLOOR  # least variance of an element of a profile
    cipher: Literal["plain", "additive"] = "plain"  # additive: the server never reads a profile
    divergences: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N]
    versions: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N] profiled; -1: none
    matched: FloatArray = field(default_factory=lambda: np.zeros((2, 0)), init=False)  # [2, q] the reference's profile

    def __post_init__(self) -> None:
        check_room(f"sampler.clients_per_round: {self.clients_per_round} draws", 8 * self.clients_per_round)
        self._key_holder = key_holder(self.cipher, self.var_floor)

    def reports(self, server: Server) -> str:
        return f"profile:{self._layer(server)}"

    def sample(self, server: Server) -> Selection:
        if len(self.versions) != server.population.size:
            self.divergences = np.full(server.population.size, np.inf)
            self.versions = np.full(server.population.size, -1)
        self._look(server)
        self._ask(server, self._due(server))
        clients = self.present(server)
        clients, times = self.draw(server, clients[self.versions[clients] >= 0])
        if self.aggregation == "full":
            return Selection(clients, server.importance[clients])
        return Selection(clients, times / max(1, times.sum()))

    def settle(self, server: Server, chosen: Selection, answers: Updates) -> tuple[Updates, Selection]:
        if len(self.versions):  # before its first draw it remembers nothing
            self._match(server, answers)
        return super().settle(server, chosen, answers)

    # -- the draw ---------------------------------------------------------------------------------------------

    def chances(self, clients: IntArray) -> FloatArray:
        """Of each of these clients in one draw among them."""
        alpha = column("sampler.preference", self.preference, clients)
        return matching.selection_probabilities(self.divergences[clients], alpha, self.min_prob)

    def draw(self, server: Server, clients: IntArray) -> tuple[IntArray, IntArray]:
        """Who is drawn, and how often."""
        if not len(clients):
            return clients, clients
        key, chances = self.key(server), self.chances(clients)
        if self.replace:
            return np.unique(clients[in_proportion(key, chances, self.clients_per_round)], return_counts=True)
        # The first of exponential clocks that tick at these rates: where all are equal, in the order of
        # `random.permutation`, so that uniform sampling draws the same clients.
        shares = (random.bits(key, server.population.size)[clients] >> 11) * 2.0**-53 + 0.5
        possible = np.flatnonzero(chances)
        order = np.argsort(-np.log1p(-shares[possible]) / chances[possible], kind="stable")[: self.clients_per_round]
        return clients[possible[order]], np.ones(len(order), np.int64)

    # -- profiles ---------------------------------------------------------------------------------------------

    def _layer(self, server: Server) -> str:
        return server.task.first_linear if self.layer is None else self.layer

    def _look(self, server: Server) -> None:
        """Profile the reference with the current model."""
        with server.cohort.all_threads():
            self.matched = profile_of(server.task, server.model, self._inputs(server), self._layer(server))
        if not matching.informative(self.matched, self.var_floor).any():
            server.log("dead_layer", layer=self._layer(server), why="nothing varies at the reference: all are alike")

    def _inputs(self, server: Server) -> Tensor:
        """`[m, ...]` the reference, where the engine computes."""
        if self.reference is None and server.whole_population.central is None:
            raise UserError("sampler.reference: the server holds no data; take a dataset with a test set, or give it")
        if self.reference is None:
            return self._tensor(server.cohort.place(server.central[0]))
        shape, given = self._tensor(server.cohort.stored[0]).shape[1:], torch.as_tensor(self.reference)
        if not given.numel() or given.numel() % shape.numel() or not bool(torch.isfinite(given).all()):
            wanted = f"samples of {shape.numel()} finite numbers each"
            raise UserError(f"sampler.reference: {given.numel()} values are no {wanted}")
        return self._tensor(server.cohort.place(given.reshape(-1, *shape)))

    @staticmethod
    def _tensor(inputs: Tree) -> Tensor:
        if not isinstance(inputs, Tensor):
            raise UserError("sampler.name: profiled looks at inputs that are one tensor, and these are a tree of them")
        return inputs

    def _due(self, server: Server) -> IntArray:
        """Who is online and has to send a profile before it can be drawn."""
        online = server.online().ids
        due = self.versions[online] < 0
        if self.refresh_every is not None:
            due |= server.version - self.versions[online] >= self.refresh_every
        return online[due]

    def _ask(self, server: Server, clients: IntArray) -> None:
        """Have these clients profile the current model; the first one they can make themselves."""
        if len(clients):
            work = ProfileReport.like(server.algorithm.stepping(server), report=self.reports(server))
            self._match(server, self.answers_of(server, clients, work, server.current if server.version == 0 else None))

    def _match(self, server: Server, updates: Updates) -> None:
        """Compare profiles with the reference's of the same model. Who sends none keeps the divergence it has."""
        if not len(updates):
            return
        found = self._key_holder.divergences(updates["profile"].double().cpu().numpy(), self.matched)
        for client in updates.clients[np.isinf(found)].tolist():
            server.log("rejected_profile", client=client, why="infinitely far from the reference")
        self.divergences[updates.clients] = found
        self.versions[updates.clients] = updates.versions
