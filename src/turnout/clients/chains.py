"""Presence that changes from step to step: for each client a chain of its own; a step is a round or an interval.

Rodio, Faticanti, Marfoq, Neglia, Leonardi, "Federated learning under heterogeneous and correlated client
availability", INFOCOM 2023; Marfoq's thesis, section 2.2.5.1 and appendix D.

With lambda the correlation of two successive steps, a chain *renews* at each step with probability 1 - |lambda|: it is
then online with probability rho, whatever it was. Else it stays as it is (lambda > 0), or changes (lambda < 0). To be
online a share pi of the time, rho = pi, or rho = (pi - |lambda| (1 - pi)) / (1 - |lambda|) where lambda < 0; so

    P(online after online) = lambda + (1 - lambda) pi,        P(online after offline) = (1 - lambda) pi.

Presence at a step is what was drawn at the last renewal, and that is found without a walk from the beginning: steps are
cut into cells of about -1 / ln |lambda|, in each of which the renewals are drawn from its last step downwards by
geometric gaps. A chain reaches back for ever, so it is in its stationary law at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from turnout.clients.availability import MICRO, Availability, BoolArray, Clock
from turnout.clients.columns import PerClient, Shares, check_ids, option, require
from turnout.core import random
from turnout.core.allowed import Count, Finite, Range, Seconds, Share
from turnout.core.errors import UserError, check_room
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt, spelt

_AHEAD = 4  # cells looked at first for the next change
_HORIZON = 2**24  # cells without a change that count as never
_BLOCK = 2**20  # cells looked at together
_NEVER = 2**62  # steps
Halves = Annotated[tuple[float, float], Range(0, 1)]
Lasting = Range(least=-1, below=1)  # correlation of two successive steps
Gap = Annotated[float, Range(-0.5, 0.5)]  # from a probability of 1/2
_TOGETHER = Range(least=0, words="at least 1, or in a list at least 0")
Groups = Annotated[int | list[int], _TOGETHER]  # how many, or that of each client
Interval = Annotated[float, Range(1 / MICRO, below=np.inf, words="at least a microsecond")]


def lowest_correlation(probability: ArrayLike) -> FloatArray:
    """max{-pi / (1 - pi), -(1 - pi) / pi}: below it no two-state chain is online a share pi of the time."""
    online = np.asarray(probability, np.float64)
    less = np.minimum(online, 1 - online)
    return np.asarray(-less / (1 - less) + 0.0)  # never a negative zero


def feasible(probability: ArrayLike, correlation: ArrayLike) -> BoolArray:
    """Whether there are such chains: lowest_correlation(pi) <= lambda < 1, up to rounding."""
    repeats = np.asarray(correlation, np.float64)
    return np.asarray((repeats >= lowest_correlation(probability) - 1e-12) & (repeats < 1))


@dataclass(frozen=True, eq=False, kw_only=True)
class Chain(Spelt):
    """What the models below share; they say how chains are correlated and what a renewal draws."""

    section: ClassVar[str] = "availability"

    clock: Clock = "round"  # what a step is: a round, or an interval of seconds
    interval: Interval = 1.0  # seconds of a step

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray:
        return self._present(seed, ids, self._step(at, ids))

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return self._next(seed, ids, at, online=False)

    def online_from(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return self._next(seed, ids, at, online=True)

    def _correlation(self, ids: IntArray) -> FloatArray:
        """lambda."""
        return np.zeros(len(ids))

    def _chance(self, seed: int, ids: IntArray, step: IntArray) -> FloatArray:
        """rho: the probability of being online after a renewal at that step."""
        raise NotImplementedError

    def _may_be(self, ids: IntArray, online: bool) -> BoolArray:
        """Who is ever online, or ever offline."""
        certain = self._chance(0, ids, np.zeros_like(ids)) == (0.0 if online else 1.0)
        return np.asarray(~certain | (self._correlation(ids) < 0))

    def _together(self, *names: str) -> tuple[FloatArray, ...]:
        """Options given for everybody or for each client, all of the same shape."""
        values = [np.asarray(getattr(self, name), np.float64) for name in names]
        if len({value.shape for value in values if value.ndim}) > 1:
            given = ", ".join(f"{name} for {value.size}" for name, value in zip(names, values, strict=True))
            raise UserError(f"availability: the number of clients differs: {given}")
        return np.broadcast_arrays(*values)

    @property
    def _ticks(self) -> int:
        """Microseconds of a step."""
        return round(MICRO * self.interval)

    def _step(self, at: ArrayLike, ids: IntArray) -> IntArray:
        """The step of each client's `at`, counted in microseconds so that an end belongs to the next interval."""
        time = np.broadcast_to(np.asarray(at, np.float64), len(ids))
        if self.clock == "round":
            return time.astype(np.int64)
        return np.rint(MICRO * time).astype(np.int64) // self._ticks

    def _present(self, seed: int, ids: IntArray, step: IntArray) -> BoolArray:
        renewal = self._renewal(seed, ids, step)
        drawn = random.coins(seed, "online", ids, renewal)[:, 0] < self._chance(seed, ids, renewal)
        return np.asarray(drawn ^ ((self._correlation(ids) < 0) & ((step - renewal) % 2 == 1)))

    # -- renewals ---------------------------------------------------------------------------------------------

    @staticmethod
    def _cells(correlation: FloatArray) -> tuple[FloatArray, IntArray]:
        """How fast a chain forgets, r = -ln |lambda| a step, and the steps of its cells: about 1 / r."""
        rate = -np.log(np.abs(correlation))
        return rate, np.ceil(1 / rate).astype(np.int64)

    @staticmethod
    def _below(seed: int, ids: IntArray, step: IntArray, rate: FloatArray) -> IntArray:
        """The first renewal from `step` downwards: P(k steps without one) = |lambda|^k."""
        gap = random.exponential(random.key(seed, "renewal", ids, step), 1)[:, 0] / rate
        return step - gap.astype(np.int64)

    def _renewal(self, seed: int, ids: IntArray, step: IntArray) -> IntArray:
        """The last renewal of each chain up to `step`; at lambda = 0 that is `step`, at -1 it is step 0 for ever."""
        correlation = self._correlation(ids)
        memory = np.abs(correlation)
        found, some = np.where(memory < 1, step, 0), np.flatnonzero((memory > 0) & (memory < 1))
        ids, step, (rate, width) = ids[some], step[some], self._cells(correlation[some])
        start, left = step // width * width + width - 1, np.arange(len(some))
        while left.size:
            bottom = start[left] // width[left] * width[left]
            renewal = self._below(seed, ids[left], start[left], rate[left])
            done = (renewal >= bottom) & (renewal <= step[left])
            found[some[left[done]]] = renewal[done]
            start[left] = np.maximum(renewal, bottom) - 1
            left = left[~done]
        return found

    def _renewals(self, seed: int, ids: IntArray, cell: IntArray) -> tuple[IntArray, IntArray]:
        """All renewals of those cells of chains with lambda > 0: whose (a position in `ids`) and when."""
        rate, width = self._cells(self._correlation(ids))
        bottom = cell * width
        start, left = bottom + width - 1, np.arange(len(ids))
        found: list[tuple[IntArray, IntArray]] = []
        while left.size:
            renewal = self._below(seed, ids[left], start[left], rate[left])
            inside = renewal >= bottom[left]
            left, renewal = left[inside], renewal[inside]
            found.append((left, renewal))
            start[left] = renewal - 1
            left = left[renewal > bottom[left]]
        whose, when = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return whose, when

    # -- looking ahead ----------------------------------------------------------------------------------------

    def _next(self, seed: int, ids: IntArray, at: ArrayLike, online: bool) -> FloatArray:
        """Seconds of the first step after that of `at` in which each client is online, or offline."""
        if self.clock == "round":
            return np.full(len(ids), np.inf)
        now, first = self._step(at, ids), np.full(len(ids), _NEVER)
        width, lasting = np.ones(len(ids), np.int64), self._correlation(ids) > 0
        width[lasting] = self._cells(self._correlation(ids)[lasting])[1]
        cell, waiting = (now + 1) // width, np.flatnonzero(self._may_be(ids, online))
        looked, ahead = 0, _AHEAD
        while waiting.size and looked < _HORIZON:
            cells = (cell[waiting, None] + np.arange(looked, looked + ahead)).ravel()
            whose, step = self._changes(seed, ids, np.repeat(waiting, ahead), cells)
            found = (step > now[whose]) & (self._present(seed, ids[whose], step) == online)
            np.minimum.at(first, whose[found], step[found])
            waiting = waiting[first[waiting] == _NEVER]
            looked, ahead = looked + ahead, max(_AHEAD, min(2 * ahead, _BLOCK // max(len(waiting), 1)))
        return np.where(first < _NEVER, np.minimum(first, _NEVER // self._ticks) * self._ticks / MICRO, np.inf)

    def _changes(self, seed: int, ids: IntArray, whose: IntArray, cell: IntArray) -> tuple[IntArray, IntArray]:
        """Who may change when: at the renewals of those cells, or at every step where lambda <= 0: a cell is one."""
        lasting = self._correlation(ids[whose]) > 0
        if not lasting.any():
            return whose, cell
        position, renewal = self._renewals(seed, ids[whose[lasting]], cell[lasting])
        return np.append(whose[lasting][position], whose[~lasting]), np.append(renewal, cell[~lasting])


@dataclass(frozen=True, eq=False)
class Bernoulli(Chain):
    """Independent coin flips: online with `probability` in each round, or in each `interval` of seconds."""

    correlation: ClassVar[float] = 0.0

    probability: Shares  # of being online in a step: one, or one a client

    def _chance(self, seed: int, ids: IntArray, step: IntArray) -> FloatArray:
        return option(self, "probability", ids)


@dataclass(frozen=True, eq=False)
class Markov(Chain):
    """Presence that lasts: online a share `probability` of the time, with `correlation` from one step to the next.

    A spell online takes 1 / ((1 - correlation) (1 - probability)) steps on average, one offline
    1 / ((1 - correlation) probability).
    """

    probability: Shares  # share of the time online: one, or one a client
    correlation: Annotated[PerClient, Lasting]  # of two successive steps: one, or one a client

    def __post_init__(self) -> None:
        share, correlation = self._together("probability", "correlation")
        good = feasible(share, correlation)
        if not good.all():
            first = share.flat[np.argmin(good)]
            rule = f"from {lowest_correlation(first):.6g} to below 1 where probability is {first:g}"
            require("availability.correlation", correlation, good, rule)

    def _correlation(self, ids: IntArray) -> FloatArray:
        return option(self, "correlation", ids)

    def _chance(self, seed: int, ids: IntArray, step: IntArray) -> FloatArray:
        share, flipped = option(self, "probability", ids), np.maximum(-self._correlation(ids), 0.0)
        renewed = np.where(flipped < 1, 1 - flipped, np.inf)
        return np.where(flipped < 1, (share - flipped * (1 - share)) / renewed, share)


@dataclass(frozen=True, eq=False)
class Diurnal(Chain):
    """Day and night: the chance of being online rises and falls with the hour, in time zones.

    A renewal at time t draws online with probability level + amplitude cos(2 pi (t - peak) / day), cut at 0 and 1; a
    round counts as an `interval` of the day. Each client lives in one of `zones` time zones, spread evenly over the
    day, whose peak is later by so much. With `memory`, the chance that an interval draws nothing anew, presence
    lasts and follows the day with a delay.
    """

    correlation: ClassVar[None] = None  # part of it is the day's

    level: Shares  # chance of being online, in the mean of a day
    amplitude: Annotated[PerClient, Range(least=0, below=np.inf)]  # by which that chance rises and falls
    memory: Annotated[PerClient, Range(least=0, below=1)] = 0.0  # chance that an interval draws nothing anew
    clock: Clock = field(default="seconds", kw_only=True)  # what a step is: an interval of seconds, or a round
    interval: Interval = field(default=600.0, kw_only=True)  # seconds of a step
    peak: Annotated[float, Range(above=-np.inf, below=np.inf, words="finite")] = 0.0  # seconds after the start
    zones: Count = 1  # time zones that clients live in
    day: Seconds = 86_400.0  # seconds

    def __post_init__(self) -> None:
        self._together("level", "amplitude", "memory")
        if 4 * self.interval > self.day:
            raise UserError(f"availability.interval: {self.interval} must be at most a quarter of a day, {self.day}")

    @property
    def probability(self) -> PerClient:
        """E[cut(level + amplitude cos)] = level + g(level) - g(1 - level), where g(b), the mean of what amplitude cos
        has above b, is (sqrt(a^2 - b^2) - b arccos(b / a)) / pi."""
        level, amplitude = self._together("level", "amplitude")

        def above(bound: FloatArray) -> FloatArray:
            bound = np.minimum(bound, amplitude)
            angle = np.arccos(np.divide(bound, amplitude, out=np.ones(level.shape), where=amplitude > 0))
            return np.asarray((np.sqrt(amplitude**2 - bound**2) - bound * angle) / np.pi)

        return np.asarray(level + above(level) - above(1 - level))

    def _correlation(self, ids: IntArray) -> FloatArray:
        return option(self, "memory", ids)

    def _chance(self, seed: int, ids: IntArray, step: IntArray) -> FloatArray:
        zone = random.integers(random.key(seed, "time zone", ids), 1, self.zones)[:, 0] / self.zones
        turns = (step * self.interval - self.peak) / self.day - zone
        return self._swing(ids, np.cos(2 * np.pi * turns))

    def _swing(self, ids: IntArray, height: FloatArray | float) -> FloatArray:
        return np.asarray(np.clip(option(self, "level", ids) + option(self, "amplitude", ids) * height, 0.0, 1.0))

    def _may_be(self, ids: IntArray, online: bool) -> BoolArray:
        return self._swing(ids, 1.0) > 0 if online else self._swing(ids, -1.0) < 1


@dataclass(frozen=True, eq=False)
class Grouped(Spelt):
    """Neighbours come and go together: client i is online when number `groups[i]` of `model` is.

    `groups` is a number for each client, or how many groups there are: client i is then in group i % groups.

    >>> Grouped(Markov(0.5, np.array([0.0, 0.9])), groups=2)       # half of the clients stay, or stay away, for long
    """

    section: ClassVar[str] = "availability"

    model: Availability
    groups: Annotated[IntArray | int, _TOGETHER]

    def __post_init__(self) -> None:
        groups = np.asarray(self.groups)
        whole = groups.ndim < 2 and groups.size and groups.dtype.kind in "iu"
        if not whole or groups.min() < (groups.ndim == 0):
            allowed = "neither a number of groups nor one group a client"
            raise UserError(f"availability.groups: {self.groups!r} is {allowed}")
        most = int(groups.max()) + (groups.ndim == 1)
        for name in ("probability", "correlation"):
            if np.ndim(value := getattr(self.model, name)) and np.size(value) < most:
                raise UserError(f"availability.groups: {most} groups, but {name} is given for {np.size(value)}")

    @property
    def clock(self) -> Clock:
        return self.model.clock

    @property
    def probability(self) -> PerClient | None:
        return self._by_client(self.model.probability)

    @property
    def correlation(self) -> PerClient | None:
        return self._by_client(self.model.correlation)

    def online(self, seed: int, ids: IntArray, at: ArrayLike) -> BoolArray:
        return self.model.online(seed, self.group(ids), at)

    def online_until(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return self.model.online_until(seed, self.group(ids), at)

    def online_from(self, seed: int, ids: IntArray, at: ArrayLike) -> FloatArray:
        return self.model.online_from(seed, self.group(ids), at)

    def group(self, ids: IntArray) -> IntArray:
        """The group of each client."""
        groups = np.asarray(self.groups)
        if groups.ndim == 0:
            return np.asarray(ids % groups)
        check_ids("availability.groups", len(groups), ids)
        return np.asarray(groups[ids])

    def _by_client(self, value: PerClient | None) -> PerClient | None:
        """A value of each group as one of each client, as far as it is known how many there are."""
        if value is None or np.ndim(value) == 0:
            return value
        return None if np.ndim(self.groups) == 0 else np.asarray(value)[self.groups]


@spelt
def heterogeneous(
    clients: int = 100,
    gap: Gap = 0.4,  # by which half of the clients are online more than 1/2, the others less
    high: Annotated[float, Lasting] = 0.9,  # correlation of those who stay long
    low_std: Finite = 0.01,  # standard deviation of the others' correlation
    correlated_fraction: Halves = (0.5, 0.5),  # share of either half that stays long
    seed: int = 0,  # of the others' correlations
) -> Markov:
    """Half of the clients are often online, half seldom, and in each half some for long: the CA-Fed experiments.

    The first half of the clients with probability 1/2 + gap, the others with 1/2 - gap. In each half the first
    `correlated_fraction` have correlation `high`, the others one drawn from N(0, low_std^2)."""
    ids, half = np.arange(clients), clients // 2
    share = np.where(ids < half, 0.5 + gap, 0.5 - gap)
    first, second = half * correlated_fraction[0], half + (clients - half) * correlated_fraction[1]
    lasting = (ids < first) | (ids >= half) & (ids < second)
    weak = low_std * random.normal(random.key(seed, "weak correlation", ids), 1)[:, 0]
    return Markov(share, np.where(lasting, high, np.maximum(weak, lowest_correlation(share))))


@spelt
def clustered(
    clients: int = 100,
    clusters: Count = 10,  # groups that come and go together
    high: Share = 0.9,  # chance of the first half of them to be online
    low: Share = 0.1,  # chance of the other half
) -> Grouped:
    """Clusters of clients that come and go together: the spatial preset of the CA-Fed experiments.

    One chain a cluster, client i in cluster i % clusters. The first half of the clusters are online with probability
    `high`, without memory; of the others cluster c is online with probability `low` and has correlation c / clusters.
    """
    check_room(f"clustered: clusters is {clusters}, which", 16 * clusters)
    cluster = np.arange(clusters)
    first = cluster < clusters // 2
    chains = Markov(np.where(first, high, low), np.where(first, 0.0, cluster / clusters))
    return Grouped(chains, np.arange(clients) % clusters)
