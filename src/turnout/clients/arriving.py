"""How many samples reach each client in each period: b_m^(t). Every process is a pure function of client and period."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np

from turnout.core import random
from turnout.core.allowed import Range
from turnout.core.errors import UserError
from turnout.core.random import IntArray
from turnout.core.spelling import spelt

MOST_PERIODS = 1_000_000
Arrivals = Callable[[int, IntArray, int], IntArray]  # seed, [N] samples a client will have had, period -> [N]
Some = Annotated[int, Range(1, MOST_PERIODS)]
# A slower stream brings no second sample while anybody waits; a faster one more than any client has.
Rate = Annotated[float, Range(1 / MOST_PERIODS, 1e12)]


@spelt
def constant(rate: Rate = 1.0) -> Arrivals:  # samples a period
    """`rate` samples a period; of a broken number whenever a whole one has come together, the first at once."""

    def counts(_seed: int, samples: IntArray, period: int) -> IntArray:
        before, after = (int(np.ceil(np.round(number * rate, 9))) for number in (period, period + 1))
        return np.full(len(samples), after - before)

    return counts


@spelt
def spread(periods: Some = 100) -> Arrivals:  # over which the samples arrive
    """Evenly over so many periods: in each N_m / periods, or one of the two whole numbers around it."""

    def counts(_seed: int, samples: IntArray, period: int) -> IntArray:
        return -(-samples * (period + 1) // periods) + (-samples * period // periods)

    return counts


@spelt
def once(periods: Some = 100) -> Arrivals:  # in one of which all samples arrive
    """All at once, in one of so many periods: a client that is there for a moment."""

    def counts(seed: int, samples: IntArray, period: int) -> IntArray:
        moment = random.integers(random.key(seed, "once", np.arange(len(samples))), 1, np.array(periods))[:, 0]
        return np.where(moment == period, samples, 0)

    return counts


@spelt
def poisson(rate: Rate = 1.0) -> Arrivals:  # samples a period, in the mean
    """`rate` samples a period in the mean, independently."""
    from scipy import stats  # half as slow as torch to import, and only this needs it

    def counts(seed: int, samples: IntArray, period: int) -> IntArray:
        u = random.uniform(random.key(seed, "poisson", np.arange(len(samples)), period), 1)[:, 0]
        return np.asarray(stats.poisson.ppf(u, rate)).astype(np.int64).clip(min=0)

    return counts


@spelt
def bursts(
    rate: Some = 1,  # samples a period of a burst
    cycle: Some = 10,  # periods from one burst to the next
    length: Some = 3,  # periods that a burst lasts
) -> Arrivals:
    """`rate` samples a period for `length` of every `cycle` periods, none between; each client at its own moment."""
    if length > cycle:
        raise UserError(f"stream.length: {length} must be at most stream.cycle, {cycle}")

    def counts(seed: int, samples: IntArray, period: int) -> IntArray:
        phase = random.integers(random.key(seed, "bursts", np.arange(len(samples))), 1, np.array(cycle))[:, 0]
        return np.where((period + phase) % cycle < length, rate, 0)

    return counts


@spelt
def replay(trace: Sequence[int]) -> Arrivals:  # samples of each period
    """`trace[t]` samples in period t at every client, and again from the beginning when it is over."""
    if not any(trace) or min(trace) < 0:
        raise UserError(f"stream.trace: {list(trace)} must be numbers of at least 0, not all of them 0")
    return lambda _seed, samples, period: np.full(len(samples), trace[period % len(trace)])


ARRIVALS: dict[str, Callable[..., Arrivals]] = {
    function.__name__: function for function in (constant, spread, once, poisson, bursts, replay)
}


def periods(arrivals: Arrivals, samples: IntArray, seed: int) -> IntArray:
    """`[total]` the period in which each sample arrives, client after client, of each in order."""
    left, owners, moments = samples, [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    period = 0
    while left.any():
        if period == MOST_PERIODS:
            raise UserError(
                f"stream: after {MOST_PERIODS} periods {left.sum()} samples have not arrived; raise the rate"
            )
        counts = np.minimum(arrivals(seed, samples, period), left)
        owners.append(np.repeat(np.arange(len(samples)), counts))
        moments.append(np.full(len(owners[-1]), period))
        left, period = left - counts, period + 1
    return np.concatenate(moments)[np.argsort(np.concatenate(owners), kind="stable")]
