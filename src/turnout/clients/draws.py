"""The distributions that times and rates are drawn from, and numbers that are given for all clients or for each.

A `Draw` is known by its quantile function, so a value is a function of one keyed uniform number and the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from turnout.core import random
from turnout.core.errors import UserError, unknown
from turnout.core.random import FloatArray, IntArray

PerClient = float | FloatArray  # one value for everybody, or one a client


class Draw(Protocol):
    """A distribution a client: `at` is its quantile function, `below(x)` the probability of a value below x."""

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray: ...

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray: ...

    def expected(self, ids: IntArray) -> FloatArray: ...


class _Certain:
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

    value: float

    def __post_init__(self) -> None:
        positive("constant: value", self.value)

    def of(self, ids: IntArray) -> FloatArray:
        return column("constant: value", self.value, ids)


@dataclass(frozen=True, eq=False)
class Table(_Certain):
    """A given value for each client."""

    values: FloatArray

    def __post_init__(self) -> None:
        positive("table: value", self.values)

    def of(self, ids: IntArray) -> FloatArray:
        return column("table", self.values, ids)


@dataclass(frozen=True)
class Evenly(_Certain):
    """tau_i = 1 - X/100 * i/(M - 1): evenly spaced, the fastest client X per cent faster than the slowest.

    With X/100 = a/b in lowest terms, every tau_i is a whole number of ticks, b (M - 1) of them a unit.
    Reference: Fraboni et al., A General Theory for Federated Optimization, JMLR 2023 (scenario FX).
    """

    percent: float
    clients: int

    def __post_init__(self) -> None:
        if not 0 <= self.percent < 100:
            raise UserError(f"fx: percent is {self.percent}; it must be at least 0 and below 100")
        if self.clients < 1:
            raise UserError(f"fx: clients is {self.clients}; it must be at least 1")
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
class Exponential:
    """Memoryless: P(T > t) = exp(-t / mean)."""

    mean: PerClient

    def __post_init__(self) -> None:
        positive("exponential: mean", self.mean)

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray:
        return -self.expected(ids) * np.log1p(-u)

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray:
        return -np.expm1(-x / self.expected(ids))

    def expected(self, ids: IntArray) -> FloatArray:
        return column("exponential: mean", self.mean, ids)


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(mean, sd^2); it reaches below zero, so give whoever uses it a positive minimum."""

    mean: PerClient
    sd: PerClient

    def __post_init__(self) -> None:
        positive("gaussian: mean", self.mean)
        positive("gaussian: sd", self.sd)

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray:
        return self.expected(ids) + column("gaussian: sd", self.sd, ids) * ndtri(u)

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray:
        return np.asarray(ndtr((x - self.expected(ids)) / column("gaussian: sd", self.sd, ids)))

    def expected(self, ids: IntArray) -> FloatArray:
        return column("gaussian: mean", self.mean, ids)


@dataclass(frozen=True, eq=False)
class LogNormal:
    """median * exp(sigma * N(0, 1)); the mean is median * exp(sigma^2 / 2)."""

    median: PerClient
    sigma: PerClient

    def __post_init__(self) -> None:
        positive("lognormal: median", self.median)
        positive("lognormal: sigma", self.sigma)

    def at(self, u: FloatArray, ids: IntArray) -> FloatArray:
        return column("lognormal: median", self.median, ids) * np.exp(self._sigma(ids) * ndtri(u))

    def below(self, x: FloatArray | float, ids: IntArray) -> FloatArray:
        with np.errstate(divide="ignore"):  # log(0) is the answer meant
            return np.asarray(ndtr(np.log(x / column("lognormal: median", self.median, ids)) / self._sigma(ids)))

    def expected(self, ids: IntArray) -> FloatArray:
        return column("lognormal: median", self.median, ids) * np.exp(self._sigma(ids) ** 2 / 2)

    def _sigma(self, ids: IntArray) -> FloatArray:
        return column("lognormal: sigma", self.sigma, ids)


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
        return integral(self, ids, power=1)


def sample(draw: Draw, seed: int, purpose: str, ids: IntArray, number: ArrayLike = 0) -> FloatArray:
    """The value of each client, a function of (seed, purpose, client, number)."""
    u = random.uniform(random.key(seed, purpose, ids, number), 1)[:, 0]
    return draw.at(np.maximum(u, 2.0**-54), ids)


def column(name: str, value: PerClient, ids: IntArray) -> FloatArray:
    """The value of each of `ids`."""
    values = np.asarray(value)
    if values.ndim == 0:
        return np.full(len(ids), values, np.float64)
    check_ids(name, len(values), ids)
    return np.asarray(values[ids], np.float64)  # of any kind of number: a large column is never copied


def check_ids(name: str, clients: int, ids: IntArray) -> None:
    if len(ids) and np.max(ids) >= clients:
        raise UserError(f"{name} is given for {clients} clients; client {np.max(ids)} has none")


def require(
    name: str, value: PerClient, good: NDArray[np.bool_] | np.bool_, rule: str, ids: IntArray | None = None
) -> None:
    """Raise unless the value is `good` for everybody, naming the first client for whom it is not."""
    if not good.all():
        wrong = np.flatnonzero(~np.atleast_1d(good))
        client = wrong[0] if ids is None else ids[wrong[0]]
        whose = f" of client {client}" if np.ndim(value) else ""
        raise UserError(f"{name}{whose} is {np.atleast_1d(value)[wrong[0]]}; it must be {rule}")


def choose(name: str, value: str, *allowed: str) -> None:
    """Raise unless the value is one of those allowed."""
    if value not in allowed:
        raise unknown(name, value, allowed)


def positive(name: str, value: PerClient) -> None:
    values = np.asarray(value)
    if not values.size:
        raise UserError(f"{name} is an empty list; give one number, or one a client")
    require(name, values, (values > 0) & (values < np.inf), "positive and finite")


def integral(draw: Draw, ids: IntArray, power: int) -> FloatArray:
    """E[draw^power] = integral of at(u)^power over (0, 1), by Gauss-Legendre quadrature.

    The nodes are taken in v with u = v^3 (10 - 15 v + 6 v^2), which crowds them towards both tails.
    """
    nodes, weights = np.polynomial.legendre.leggauss(128)
    v = (1 + nodes) / 2
    u, du = v**3 * (10 - 15 * v + 6 * v**2), 15 * weights * (v * (1 - v)) ** 2
    return np.asarray(sum(w * draw.at(np.full(len(ids), x), ids) ** power for x, w in zip(u, du, strict=True)))
