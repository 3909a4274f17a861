"""Who is invited, and with which weight: what every sampling scheme returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from turnout.core import random
from turnout.core.allowed import Count
from turnout.core.errors import UserError
from turnout.core.spelling import Spelt

if TYPE_CHECKING:
    from turnout.clients.population import Population
    from turnout.local.sgd import LocalSGD
    from turnout.sampling._statistics import Statistics
    from turnout.server.server import ModelChoice, Server
    from turnout.server.updates import Updates

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
DEFAULT_SIZE = 10  # clients a round


@dataclass(frozen=True)
class Selection:
    """Distinct clients and the weight omega_i each contribution has if it arrives."""

    clients: IntArray
    weights: FloatArray
    informed: bool = False  # whether they have been sent the current model already, to report on it

    def weights_of(self, clients: IntArray) -> FloatArray:
        """The weights of those who answered, in their order."""
        order = np.argsort(self.clients)
        return self.weights[order[np.searchsorted(self.clients, clients, sorter=order)]]


Moments = tuple[FloatArray, FloatArray, FloatArray, float, float | None]


@dataclass
class Sampler(Spelt):
    """Draws are keyed by (seed, round): a scheme has no hidden state, and a resumed run draws the same."""

    section: ClassVar[str] = "sampler"
    # Whether the choice follows from data or updates of clients: a class in which it does not declares False itself.
    looks_at_data: ClassVar[bool] = True
    decides_later: ClassVar[bool] = False  # whether it asks for updates only after it has seen their norms
    report: ClassVar[str] = ""  # what it wants to be told beside every update: see `turnout.local.reports`
    depends_on: ClassVar[str] = ""  # what a draw follows from that nobody knows beforehand

    def sample(self, server: Server) -> Selection:
        """Who is invited in this round."""
        raise NotImplementedError

    def reports(self, server: Server) -> str:
        """What it wants to be told beside every update."""
        return self.report

    def invite(self, server: Server, chosen: Selection, work: LocalSGD, model: ModelChoice = None) -> float:
        """Ask those chosen for that work, and for what the scheme wants to know; returns the seconds until all copies
        of the model are out."""
        report, informed = self.reports(server), chosen.informed and model is None
        work = work.reporting(report) if report else work
        server.invite(chosen.clients, work, server.current if informed else model, hold=self.decides_later)
        return 0.0 if informed else server.push_seconds(len(chosen.clients), work)

    def settle(self, server: Server, chosen: Selection, answers: Updates) -> tuple[Updates, Selection]:
        """The updates that count, and whose they are, once a round is closed."""
        server.cancel(chosen.clients)
        self.observe(answers)
        return answers, chosen

    def observe(self, updates: Updates) -> None:
        """What came back from the clients invited; for schemes that learn from it."""

    def moments(self, server: Server) -> Moments | None:
        """Expectation, variance and inclusion of every client, the variance of the sum of weights and the covariance
        coefficient, in closed form; None where there is none. See `statistics`."""
        if self.depends_on:
            name = type(self).__module__.rpartition(".")[2]
            raise UserError(f"sampler.name: {name} depends on {self.depends_on}; it has no statistics beforehand")
        return None

    def statistics(self, population: Population, **options: int) -> Statistics:
        """What it does to the weights of one round; `options` are those of `turnout.sampling._statistics.statistics`.

        >>> turnout.MD(10).statistics(population).total_variance
        """
        from turnout.sampling._statistics import statistics

        return statistics(self, population, **options)

    @staticmethod
    def present(server: Server) -> IntArray:
        """Clients that matter and are online: O(N)."""
        clients = np.flatnonzero(server.importance)
        return clients[server.online().contains(clients)]

    @staticmethod
    def answers_of(server: Server, clients: IntArray, work: LocalSGD, model: ModelChoice = None) -> Updates:
        """Reports of these clients before anybody is chosen; whoever is later than the algorithm's deadline is not
        waited for."""
        deadline = server.algorithm.time_limit
        sending = server.push_seconds(len(clients), work) if model is None else 0.0
        server.invite(clients, work, model)
        answers = server.wait(len(clients), of=clients, seconds=None if deadline is None else deadline + sending)
        server.cancel(clients)
        return answers

    @staticmethod
    def key(server: Server) -> IntArray:
        return random.key(server.seed, "sampling", server.version)


@dataclass
class Limited(Sampler):
    """Draws `clients_per_round` (m) different clients: unless given, ten, or as many as there can be."""

    clients_per_round: Count | None = None  # none: ten, or as many as there are

    def most(self, population: Population) -> int:
        """The largest m that this population allows."""
        return population.mattering

    def size(self, population: Population) -> int:
        """m."""
        given = self.clients_per_round
        return min(DEFAULT_SIZE, self.most(population)) if given is None else given


@dataclass
class Subset(Limited):
    """A uniformly drawn subset of m of the n clients that matter; subclasses weigh it."""

    def size(self, population: Population) -> int:
        m, everybody = super().size(population), population.mattering
        if m > everybody:
            raise UserError(f"sampler.clients_per_round: {m} must be from 1 to the {everybody} clients")
        return m

    def sample(self, server: Server) -> Selection:
        m, everybody = self.size(server.population), server.population.mattering
        clients = server.online().sample(m, server.seed, "sampling", server.version)
        importance = server.importance
        if importance is not server.population.base_importance:  # some are no members now
            everybody = int(np.count_nonzero(importance))
        return Selection(clients, self.weigh(importance[clients], everybody))

    def weigh(self, importance: FloatArray, candidates: int) -> FloatArray:
        """Weights of the drawn clients, from their importance and n."""
        raise NotImplementedError


@dataclass
class Independent(Limited):
    """Each client by a coin of its own: with probability q_i it is invited, with weight p_i / q_i. Unbiased; the
    weights sum to 1 only on average, and a round may be empty; m are drawn on average. Subclasses say q."""

    def probabilities(self, importance: FloatArray, m: int) -> FloatArray:
        """`[n]` q_i of the clients that matter."""
        raise NotImplementedError

    def moments(self, server: Server) -> Moments:
        importance = server.importance
        chance = np.zeros(len(importance))
        matter = importance > 0
        chance[matter] = self.probabilities(importance[matter], self.size(server.population))
        variance = np.zeros(len(importance))
        variance[matter] = (1 / chance[matter] - 1) * importance[matter] ** 2
        return importance, variance, chance, float(variance.sum()), 0.0

    def sample(self, server: Server) -> Selection:
        matter = np.flatnonzero(server.importance)
        importance = server.importance[matter]
        chance = self.probabilities(importance, self.size(server.population))
        coins = random.uniform(random.key(server.seed, "sampling coin", server.version, matter), 1)[:, 0]
        drawn = coins < chance
        drawn[drawn] = server.online().contains(matter[drawn])
        return Selection(matter[drawn], importance[drawn] / chance[drawn])


def in_proportion(key: IntArray, shares: FloatArray, count: int) -> IntArray:
    """So many draws with replacement, as positions: each in proportion to its share."""
    edges = np.cumsum(shares)
    places: IntArray = np.searchsorted(edges, random.uniform(key, count) * edges[-1], side="right")
    return places


def water_fill(sizes: FloatArray, total: float) -> FloatArray:
    """`min(1, c * sizes)` with c such that they sum to `total`: probabilities in proportion, none above 1."""
    filled = np.zeros(len(sizes), bool)
    while True:
        rest = sizes[~filled].sum()
        scale = (total - filled.sum()) / rest if rest > 0 else 0.0
        chance = np.where(filled, 1.0, scale * sizes)
        above = (chance > 1) & ~filled
        if not above.any():
            return chance
        filled |= above
