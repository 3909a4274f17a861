"""How long a job takes on a client's hardware, and the distributions such quantities are drawn from.

A `Draw` is known by its quantile function, so a value is a function of one keyed uniform number and the client.

    >>> fx(80, clients=5).seconds(0, np.arange(5), jobs=0, steps=1, samples=1)
    array([1. , 0.8, 0.6, 0.4, 0.2])
    >>> exponential(1.0, each="client", per="step", rate=True, minimum=0.012, redraw_below=True)   # SAFA, task 3
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from turnout.clients.columns import Once, Positives, check_ids, option, require
from turnout.core import random
from turnout.core.allowed import Count, NotNegative, Positive, Range
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt, spelt
from turnout.data.readers import path_of, read_table

Each = Literal["client", "job"]
Per = Literal["job", "step", "sample"]
Given = Annotated[ArrayLike, Range(above=0, below=np.inf)]  # positive: one, or one a client
Percent = Annotated[float, Range(0, below=100)]


class Draw(Protocol):
    """A distribution a client: `at` is its quantile function, `below(x)` the probability of a value below x."""

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray: ...

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray: ...

    def expected(self, ids: IntArray) -> FloatArray: ...


class _Drawn(Spelt):
    section: ClassVar[str] = "devices"


class _Certain(_Drawn):
    """A draw without chance: subclasses say the value `of` every client."""

    def of(self, ids: IntArray) -> FloatArray:
        raise NotImplementedError

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray:
        return self.of(ids)

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray:
        return (self.of(ids) < x).astype(np.float64)

    def expected(self, ids: IntArray) -> FloatArray:
        return self.of(ids)


@dataclass(frozen=True)
class Constant(_Certain):
    """The same value for everybody."""

    value: Positive

    def of(self, ids: IntArray) -> FloatArray:
        return option(self, "value", ids)


@dataclass(frozen=True, eq=False)
class Table(_Certain):
    """A given value for each client."""

    values: Positives

    def of(self, ids: IntArray) -> FloatArray:
        return option(self, "values", ids)


@dataclass(frozen=True)
class Evenly(_Certain):
    """tau_i = 1 - X/100 * i/(M - 1): evenly spaced, the fastest client X per cent faster than the slowest.

    With X/100 = a/b in lowest terms, every tau_i is a whole number of ticks, b (M - 1) of them a unit.
    Reference: Fraboni et al., A General Theory for Federated Optimization, JMLR 2023 (scenario FX).
    """

    percent: Percent
    clients: Count

    def __post_init__(self) -> None:
        if self.ticks > 2**53:
            raise UserError(f"fx: percent is {self.percent}; no clock is so fine, give it fewer digits")

    @property
    def share(self) -> Fraction:
        return Fraction(str(self.percent)) / 100

    @property
    def ticks(self) -> int:
        """Ticks a unit, which is what the slowest client takes."""
        return self.share.denominator * max(self.clients - 1, 1)

    def of(self, ids: IntArray) -> FloatArray:
        check_ids("fx", self.clients, ids)
        return (self.ticks - self.share.numerator * np.asarray(ids)) / self.ticks


@dataclass(frozen=True, eq=False)
class Exponential(_Drawn):
    """Memoryless: P(T > t) = exp(-t / mean)."""

    mean: Positives

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray:
        return -self.expected(ids) * np.log1p(-u)

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray:
        return -np.expm1(-x / self.expected(ids))

    def expected(self, ids: IntArray) -> FloatArray:
        return option(self, "mean", ids)


@dataclass(frozen=True, eq=False)
class Gaussian(_Drawn):
    """N(mean, sd^2); it reaches below zero, so give whoever uses it a positive minimum."""

    mean: Positives
    sd: Positives

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray:
        return self.expected(ids) + option(self, "sd", ids) * ndtri(u)

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray:
        return np.asarray(ndtr((x - self.expected(ids)) / option(self, "sd", ids)))

    def expected(self, ids: IntArray) -> FloatArray:
        return option(self, "mean", ids)


@dataclass(frozen=True, eq=False)
class LogNormal(_Drawn):
    """median * exp(sigma * N(0, 1)); the mean is median * exp(sigma^2 / 2)."""

    median: Positives
    sigma: Positives

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray:
        return option(self, "median", ids) * np.exp(option(self, "sigma", ids) * ndtri(u))

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray:
        with np.errstate(divide="ignore"):  # log(0) is the answer meant
            return np.asarray(ndtr(np.log(x / option(self, "median", ids)) / option(self, "sigma", ids)))

    def expected(self, ids: IntArray) -> FloatArray:
        return option(self, "median", ids) * np.exp(option(self, "sigma", ids) ** 2 / 2)


@dataclass(frozen=True, eq=False)
class AtLeast:
    """max(draw, minimum) or, with `redraw`, the law of drawing again until the value is at least the minimum.

    The latter in one draw, by inversion: with q = P(draw < minimum), the quantile of u becomes that of q + (1 - q) u.
    """

    draw: Draw
    minimum: float
    redraw: bool = False

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray:
        if self.redraw:
            q = self.draw.below(self.minimum, ids)
            if (q == 1).any():
                client = ids[np.argmax(q == 1)]
                raise UserError(f"redraw_below: client {client} can never reach the minimum {self.minimum}; lower it")
            u = np.minimum(q + (1 - q) * u, 1 - 2.0**-53)
        return np.maximum(self.draw.at(u, ids), self.minimum)

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray:
        q = self.draw.below(self.minimum, ids) if self.redraw else 0.0
        above = (self.draw.below(np.maximum(x, self.minimum), ids) - q) / (1 - q)
        return np.where(np.asarray(x) <= self.minimum, 0.0, above)

    def expected(self, ids: IntArray) -> FloatArray:
        return _integral(self, ids, power=1)


@dataclass(frozen=True)
class Devices(Spelt):
    """Seconds of local work: units of work times a draw, or divided by it when the draw is a `rate`.

    `each`: the draw is made once a client, or anew for each job. `per`: one unit is a job, a step or a sample.
    `minimum` is a floor under the draw; with `redraw_below` smaller values are drawn again instead of raised.
    """

    section: ClassVar[str] = "devices"

    draw: Draw
    each: Each = "client"
    per: Per = "job"
    rate: bool = False
    minimum: NotNegative = 0.0
    redraw_below: bool = False

    def __post_init__(self) -> None:
        if self.rate and self.each == "job" and self.minimum == 0 and isinstance(self.draw, Exponential | Gaussian):
            raise UserError("devices: the mean time of a rate drawn for each job is infinite; set a positive minimum")

    def seconds(self, seed: int, ids: IntArray, jobs: ArrayLike, steps: ArrayLike, samples: ArrayLike) -> FloatArray:
        """Compute time of job number `jobs` of each client."""
        once = self.each == "client"
        values = self._drawn(seed, ids) if once else sample(self._floored, seed, "device", ids, jobs)
        return self._checked(ids, values if not self.rate else 1 / values, steps, samples)

    def mean_seconds(self, seed: int, ids: IntArray, steps: ArrayLike, samples: ArrayLike) -> FloatArray:
        """Expectation of `seconds` over the jobs of each client; with a rate or a minimum by quadrature, to 0.1 %."""
        if self.each == "client":
            return self.seconds(seed, ids, 0, steps, samples)
        unit = _integral(self._floored, ids, power=-1) if self.rate else self._floored.expected(ids)
        return self._checked(ids, unit, steps, samples)

    def longer_than(
        self, seed: int, ids: IntArray, steps: ArrayLike, samples: ArrayLike, seconds: FloatArray
    ) -> FloatArray:
        """Probability that a job of each client takes more than so many seconds."""
        if self.each == "client":
            return (self.seconds(seed, ids, 0, steps, samples) > seconds).astype(np.float64)
        units = np.broadcast_to(np.asarray(self._units(steps, samples), np.float64), len(ids))
        some = np.maximum(seconds, 1e-300)
        if self.rate:
            longer = self._floored.below(units / some, ids)
        else:
            longer = 1 - self._floored.below(np.nextafter(some / units, np.inf), ids)
        return np.where(seconds > 0, longer, 1.0)

    def ticks_per_second(self) -> int | None:
        """The clock on which every job ends exactly at a tick, where there is one."""
        if isinstance(self.draw, Evenly) and self.per == "job" and not self.rate and self.minimum == 0:
            return self.draw.ticks
        return None

    @property
    def _floored(self) -> Draw:
        return AtLeast(self.draw, self.minimum, self.redraw_below) if self.minimum > 0 else self.draw

    @cached_property
    def _drawn(self) -> Once:
        return Once(partial(sample, self._floored, purpose="device"))

    def _units(self, steps: ArrayLike, samples: ArrayLike) -> ArrayLike:
        units: dict[str, ArrayLike] = {"job": 1.0, "step": steps, "sample": samples}
        return units[self.per]

    def _checked(self, ids: IntArray, unit: FloatArray, steps: ArrayLike, samples: ArrayLike) -> FloatArray:
        seconds = unit * np.asarray(self._units(steps, samples), np.float64)
        fine = (unit > 0) & (seconds < np.inf)  # no work at all takes no time
        require("devices: the job time", seconds, fine, "positive and finite: set a minimum", ids)
        return seconds


class Options(TypedDict, total=False):
    """What every constructor below passes on to `Devices`."""

    each: Each  # whether each client or each job has a draw of its own; none: client, but exponential job
    per: Per  # what one draw is for: a job, a step or a sample; none: a job
    rate: bool  # whether draws are speeds, not times
    minimum: NotNegative  # seconds (or speed) that a draw has at least; none: 0, but gaussian mean - 3 sd
    redraw_below: bool  # whether draws below are drawn again, not raised


@spelt
def fx(
    percent: Percent,  # by which the fastest client is faster than 1 second
    clients: int,
) -> Devices:
    """The FX scenario: fixed delays, evenly spaced from 1 down to 1 - percent/100 seconds."""
    return Devices(Evenly(percent, clients))


@spelt
def fixed(
    seconds: Positive,  # that a job takes
    **options: Unpack[Options],
) -> Devices:
    """The same time for everybody."""
    return Devices(Constant(seconds), **options)


@spelt
def table(
    source: ArrayLike | os.PathLike[str],  # seconds of each client: a list, or a CSV file (client, seconds)
    **options: Unpack[Options],
) -> Devices:
    """A time for each client: an array, or a CSV file with the columns `client` and `seconds`."""
    if not isinstance(source, str | os.PathLike):
        return Devices(Table(np.asarray(source, np.float64)), **options)
    client, seconds = read_table("devices", path_of(source)).numbers("client", "seconds").T
    order = np.argsort(client, kind="stable")
    if not np.array_equal(client[order], np.arange(len(client))):
        raise UserError(f"devices table {os.fspath(source)}: clients must be 0, 1, 2, ..., each exactly once")
    return Devices(Table(seconds[order]), **options)


@spelt
def exponential(
    mean: Given = 1.0,  # seconds: one, or one a client
    **options: Unpack[Options],
) -> Devices:
    """Exponential times, by default anew for each job."""
    options.setdefault("each", "job")
    return Devices(Exponential(np.asarray(mean, np.float64)), **options)


@spelt
def gaussian(
    mean: Given,  # seconds: one, or one a client
    sd: Given,  # standard deviation, in seconds: one, or one a client
    **options: Unpack[Options],
) -> Devices:
    """Gaussian times, or speeds with `rate`, by default clipped at mean - 3 sd where that is positive.

    Reference: Wu et al., HybridFL, IEEE TPDS 2021: s_k ~ N(mu, sd^2), deadline at mu - 3 sd.
    """
    draw = Gaussian(np.asarray(mean, np.float64), np.asarray(sd, np.float64))
    options.setdefault("minimum", max(float(np.min(draw.mean - 3 * draw.sd)), 0.0))
    return Devices(draw, **options)


@spelt
def lognormal(
    median: Given,  # seconds: one, or one a client
    sigma: Given,  # standard deviation of the logarithm: one, or one a client
    **options: Unpack[Options],
) -> Devices:
    """Log-normal times: a long tail of slow devices."""
    return Devices(LogNormal(np.asarray(median, np.float64), np.asarray(sigma, np.float64)), **options)


def sample(draw: Draw, seed: int, purpose: str, ids: IntArray, number: ArrayLike = 0) -> FloatArray:
    """The value of each client, a function of (seed, purpose, client, number)."""
    u = random.uniform(random.key(seed, purpose, ids, number), 1)[:, 0]
    return draw.at(np.maximum(u, 2.0**-54), ids)


def _integral(draw: Draw, ids: IntArray, power: int) -> FloatArray:
    """E[draw^power] = integral of at(u)^power over (0, 1), by Gauss-Legendre quadrature.

    The nodes are taken in v with u = v^3 (10 - 15 v + 6 v^2), which crowds them towards both tails.
    """
    nodes, weights = np.polynomial.legendre.leggauss(128)
    v = (1 + nodes) / 2
    u, du = v**3 * (10 - 15 * v + 6 * v**2), 15 * weights * (v * (1 - v)) ** 2
    return np.asarray(sum(w * draw.at(np.full(len(ids), x), ids) ** power for x, w in zip(u, du, strict=True)))
