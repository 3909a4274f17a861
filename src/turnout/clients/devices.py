"""How long a job takes on a client's hardware.

>>> fx(80, clients=5).seconds(0, np.arange(5), jobs=0, steps=1, samples=1)
array([1. , 0.8, 0.6, 0.4, 0.2])
>>> exponential(1.0, each="client", per="step", rate=True, minimum=0.012, redraw_below=True)   # SAFA, task 3
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from turnout.clients.draws import (
    AtLeast,
    Constant,
    Draw,
    Evenly,
    Exponential,
    Gaussian,
    LogNormal,
    Table,
    choose,
    integral,
    require,
    sample,
)
from turnout.clients.once import Once
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt, spelt

Each = Literal["client", "job"]
Per = Literal["job", "step", "sample"]


@dataclass(frozen=True)
class Devices(Spelt):
    """Seconds of local work: units of work times a draw, or divided by it when the draw is a `rate`.

    `each`: the draw is made once a client, or anew for each job. `per`: one unit is a job, a step or a sample.
    `minimum` is a floor under the draw; with `redraw_below` smaller values are drawn again instead of raised.
    """

    draw: Draw
    each: Each = "client"
    per: Per = "job"
    rate: bool = False
    minimum: float = 0.0
    redraw_below: bool = False

    def __post_init__(self) -> None:
        choose("devices: each", self.each, "client", "job")
        choose("devices: per", self.per, "job", "step", "sample")
        if not self.minimum >= 0:
            raise UserError(f"devices: minimum is {self.minimum}; it must be at least 0")
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
        unit = integral(self._floored, ids, power=-1) if self.rate else self._floored.expected(ids)
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
    minimum: float  # seconds (or speed) that a draw has at least; none: 0, but gaussian mean - 3 sd
    redraw_below: bool  # whether draws below are drawn again, not raised


@spelt
def fx(
    percent: float,  # by which the fastest client is faster than 1 second
    clients: int,
) -> Devices:
    """The FX scenario: fixed delays, evenly spaced from 1 down to 1 - percent/100 seconds."""
    return Devices(Evenly(percent, clients))


@spelt
def fixed(
    seconds: float,  # that a job takes
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
    values = _read(source) if isinstance(source, str | os.PathLike) else np.asarray(source, np.float64)
    return Devices(Table(values), **options)


@spelt
def exponential(
    mean: ArrayLike = 1.0,  # seconds: one, or one a client
    **options: Unpack[Options],
) -> Devices:
    """Exponential times, by default anew for each job."""
    options.setdefault("each", "job")
    return Devices(Exponential(np.asarray(mean, np.float64)), **options)


@spelt
def gaussian(
    mean: ArrayLike,  # seconds: one, or one a client
    sd: ArrayLike,  # standard deviation, in seconds: one, or one a client
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
    median: ArrayLike,  # seconds: one, or one a client
    sigma: ArrayLike,  # standard deviation of the logarithm: one, or one a client
    **options: Unpack[Options],
) -> Devices:
    """Log-normal times: a long tail of slow devices."""
    return Devices(LogNormal(np.asarray(median, np.float64), np.asarray(sigma, np.float64)), **options)


def _read(path: str | os.PathLike[str]) -> FloatArray:
    try:
        with open(path, encoding="utf-8-sig") as file:
            names = [name.strip() for name in file.readline().split(",")]
            client, seconds = np.loadtxt(
                file, delimiter=",", usecols=(names.index("client"), names.index("seconds")), ndmin=2
            ).T
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"devices table {os.fspath(path)!r}: {why}; it needs the columns client,seconds") from error
    order = np.argsort(client, kind="stable")
    if not np.array_equal(client[order], np.arange(len(client))):
        raise UserError(f"devices table {os.fspath(path)}: clients must be 0, 1, 2, ..., each exactly once")
    return np.asarray(seconds[order])
