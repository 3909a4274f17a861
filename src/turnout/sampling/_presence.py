"""How often each client is online, known or estimated: what availability-aware weights are made of.

Rodio, Faticanti, Marfoq, Neglia, Leonardi, "Federated learning under heterogeneous and correlated client
availability", INFOCOM 2023; Marfoq's thesis, section 2.2.4.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.clients.columns import column
from turnout.core.allowed import WholeNumber
from turnout.core.errors import UserError
from turnout.sampling._sampler import FloatArray, IntArray, Sampler, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server

Prior = tuple[float, float]


def _nothing() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass(kw_only=True)
class Presence(Sampler):
    """pi_k, the share of rounds in which client k is online, and lambda_k, how much a round tells of the next (the
    second eigenvalue of its chain). Subclasses make weights of them.

    `estimator`: `oracle` asks the population, which only a simulation can; the others count who is online when a round
    begins, and have watched `observed` rounds before the first.

    - `beta`: pi = (rounds online + n) / (rounds + n + m), with `prior` (n, m); lambda as below.
    - `transitions`: of the rounds that found a client offline (online), p0 (p1) is the share after which it still was:
      (kept + a) / (kept + changed + a + b), with `transition_prior` (a, b). Then lambda = p0 + p1 - 1 and
      pi = (1 - p0) / (2 - p0 - p1).
    """

    estimator: Literal["oracle", "beta", "transitions"] = "oracle"  # how presence is known
    observed: WholeNumber = 0  # rounds that it has watched before the first
    prior: Prior = (1.0, 1.0)  # (n, m) of beta: rounds online and offline
    transition_prior: Prior = (1.0, 1.0)  # (a, b) of transitions: kept and changed
    rounds: IntArray = field(default_factory=_nothing, init=False)  # [N] watched
    online_rounds: IntArray = field(default_factory=_nothing, init=False)  # [N] of these
    before: IntArray = field(default_factory=_nothing, init=False)  # [N] 1: online when last seen, 0: not, -1: not seen
    transitions: IntArray = field(default_factory=lambda: np.zeros((0, 2, 2), np.int64), init=False)  # [N, from, to]

    def __post_init__(self) -> None:
        if not (min(self.prior) >= 0 and 0 < sum(self.prior) < np.inf):
            raise UserError(f"sampler.prior: {self.prior} must be two finite numbers of at least 0, not both 0")
        if not 0 < min(self.transition_prior) <= max(self.transition_prior) < np.inf:
            raise UserError(f"sampler.transition_prior: {self.transition_prior} must be two finite numbers above 0")

    def watch(self, server: Server) -> IntArray:
        """Who is online of those who matter; to be asked once a round."""
        if server.version == 0 or len(self.rounds) != server.population.size:
            self.begin(server)
        online = server.online().contains(server.population.ids)
        matter = server.importance > 0
        if self.estimator != "oracle":
            self._count(online, matter)
        return np.flatnonzero(online & matter)

    def begin(self, server: Server) -> None:
        """Forget what was seen of another run, and look at the rounds before the first."""
        people, size = server.population, server.population.size
        self.rounds, self.online_rounds, self.before = np.zeros(size, int), np.zeros(size, int), np.full(size, -1)
        self.transitions = np.zeros((size, 2, 2), int)
        if self.estimator == "oracle" or not self.observed:
            return
        if people.availability.clock != "round":
            raise UserError(
                f"sampler.observed: {self.observed} rounds ago is no time on a clock of seconds; set it to 0"
            )
        for number in range(-self.observed, 0):
            self._count(people.availability.online(people.seed, people.ids, number), np.ones(size, bool))

    def _count(self, online: NDArray[np.bool_], watched: NDArray[np.bool_]) -> None:
        again = np.flatnonzero(watched & (self.before >= 0))
        self.transitions[again, self.before[again], online[again].astype(int)] += 1
        self.rounds += watched
        self.online_rounds += online & watched
        self.before = np.where(watched, online, -1)

    def availability(self, server: Server) -> FloatArray:
        """`[N]` pi; where it would be 0, 1 / (t + 2) after t rounds."""
        if self.estimator == "oracle":
            pi = self._truth(server, "probability")
        elif self.estimator == "beta":
            pi = beta_estimate(self.online_rounds, self.rounds, self.prior)
        else:
            pi, _ = transition_estimate(self.transitions, self.transition_prior)
        return np.where(pi > 0, pi, 1 / (self.observed + server.version + 3))

    def correlation(self, server: Server) -> FloatArray:
        """`[N]` lambda."""
        if self.estimator == "oracle":
            return self._truth(server, "correlation")
        return transition_estimate(self.transitions, self.transition_prior)[1]

    @staticmethod
    def _truth(server: Server, name: str) -> FloatArray:
        people = server.population
        value = getattr(people.availability, name)
        if value is None:
            kind = type(people.availability).__name__.lower()
            raise UserError(
                f"sampler.estimator: oracle, but the {name} of a {kind} is not known; use beta or transitions"
            )
        return column(f"availability: {name}", value, people.ids)


@dataclass
class Weighted(Presence):
    """Everybody online counts, with a weight q_k that depends on nobody else's presence. Subclasses say which."""

    def sample(self, server: Server) -> Selection:
        here = self.watch(server)
        q = self.weights(server.importance, self.availability(server))[here]
        return Selection(here[q > 0], q[q > 0])

    def weights(self, importance: FloatArray, availability: FloatArray) -> FloatArray:
        """`[N]` q, from alpha and pi."""
        raise NotImplementedError


def beta_estimate(online: IntArray, rounds: IntArray, prior: Prior = (1.0, 1.0)) -> FloatArray:
    """pi, from the numbers of rounds online and watched."""
    pi: FloatArray = (online + prior[0]) / (rounds + sum(prior))
    return pi


def transition_estimate(counts: IntArray, prior: Prior = (1.0, 1.0)) -> tuple[FloatArray, FloatArray]:
    """pi and lambda, from `[N, 2, 2]` counts of how often state i was followed by state j (0: offline, 1: online)."""
    p0, p1 = ((counts[:, state, state] + prior[0]) / (counts[:, state].sum(1) + sum(prior)) for state in (0, 1))
    return (1 - p0) / (2 - p0 - p1), p0 + p1 - 1
