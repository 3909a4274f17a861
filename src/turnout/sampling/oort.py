"""Oort: clients whose loss is large and who answer fast enough.

Lai, Zhu, Madhyastha, Chowdhury, "Oort: efficient federated learning via guided participant selection", OSDI 2021,
algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from turnout.core import random
from turnout.core.allowed import Count, NotNegative, Seconds, Share
from turnout.sampling._sampler import DEFAULT_SIZE, FloatArray, IntArray, Sampler, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates


@dataclass
class Oort(Sampler):
    """Round R draws from clients tried before in proportion to their utility

        (n_k |loss_k| + sqrt(0.1 log R / last_k)) * (T / t_k)^`penalty` where t_k > T

    loss_k and t_k are those of the client's last job (the paper takes the root mean square of the samples' losses; here
    it is their mean), last_k the round of it, T is `preferred_seconds` or else the median of all t_k. Only clients that
    reach `cutoff` of the utility that is just good enough are drawn from. A share `explore` of the places, times
    `decay` a round and at least `least_explore`, goes to clients never tried. All count 1 / m. **Biased**.
    """

    report = "loss"
    depends_on = "losses and times"

    clients_per_round: Count = DEFAULT_SIZE  # clients invited in a round
    explore: Share = 0.9  # share of the places for clients never tried
    decay: Share = 0.98  # factor of that share from round to round
    least_explore: Share = 0.2  # share that always explores
    cutoff: Share = 0.95  # share of the utility that is just good enough
    preferred_seconds: Seconds | None = None  # of a job; none: the median of all
    penalty: NotNegative = 2.0  # power by which slower clients lose utility
    losses: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N] n_k |loss_k|
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N] t_k
    last: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N] round; 0: never tried

    def observe(self, updates: Updates) -> None:
        if len(updates) and len(self.losses):  # before its first draw it remembers nothing
            losses = np.abs(updates["loss"].double().cpu().numpy())
            self.losses[updates.clients] = updates.samples * np.nan_to_num(losses, nan=0.0, posinf=0.0)
            self.seconds[updates.clients] = updates.arrived_at - updates.sent_at
            self.last[updates.clients] = updates.versions + 1

    def utility(self, clients: IntArray, number: int) -> FloatArray:
        """Of clients tried before, in the round of that number (from 1)."""
        utility = self.losses[clients] + np.sqrt(0.1 * math.log(number) / self.last[clients])
        preferred = self.preferred_seconds or float(np.median(self.seconds[self.last > 0]))
        return utility * np.minimum(1, preferred / self.seconds[clients]) ** self.penalty

    def sample(self, server: Server) -> Selection:
        if len(self.last) != server.population.size:
            self.losses, self.seconds = np.zeros(server.population.size), np.zeros(server.population.size)
            self.last = np.zeros(server.population.size, np.int64)
        clients = self.present(server)
        tried = self.last[clients] > 0
        known, new = clients[tried], clients[~tried]
        m = min(self.clients_per_round, len(clients))
        share = max(self.least_explore, self.explore * self.decay**server.version)
        exploring = min(max(round(share * m), m - len(known)), len(new))
        chosen = [self._exploit(server, known, m - exploring), self._first(server, new, np.ones(len(new)), exploring)]
        return Selection(np.sort(np.concatenate(chosen)), np.full(m, 1 / max(1, m)))

    def _exploit(self, server: Server, known: IntArray, count: int) -> IntArray:
        if not count:
            return known[:0]
        utility = self.utility(known, server.version + 1)
        enough = self.cutoff * np.sort(utility)[-count]
        good = utility >= enough
        return self._first(server, known[good], utility[good], count)

    @staticmethod
    def _first(server: Server, clients: IntArray, rates: FloatArray, count: int) -> IntArray:
        """`count` distinct clients in proportion to their rates: the first of exponential clocks."""
        draws = random.exponential(random.key(server.seed, "sampling oort", server.version, clients), 1)[:, 0]
        return clients[np.argsort(draws / np.maximum(rates, 1e-300), kind="stable")[:count]]
