"""What becomes of jobs at their clients: how long each takes, and what happens to it first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnout.clients.online import OnlineSet
from turnout.clients.population import Population
from turnout.core.random import FloatArray, IntArray

if TYPE_CHECKING:
    from turnout.local.sgd import LocalSGD

ARRIVED, CRASHED, OFFLINE, LEFT = "arrived", "crashed", "offline", "left"
FOREVER = 1 << 60  # ticks


def to_ticks(seconds: FloatArray | float, a_second: int) -> IntArray:
    """Round seconds to whole ticks; times that nobody lives to see are cut at 2^60 of them."""
    return np.rint(np.minimum(seconds * a_second, FOREVER)).astype(np.int64)


class Fates(NamedTuple):
    """What becomes of k jobs. Times are integer ticks, unless they are called seconds."""

    starts_at: IntArray  # [k] once the models are out
    ends_at: IntArray  # [k]
    outcome: NDArray[Any]  # [k] words
    absent: NDArray[np.bool_]  # [k] who was not there to begin with
    samples: IntArray  # [k]
    steps: IntArray  # [k]
    seconds: tuple[FloatArray, FloatArray, FloatArray]  # [k] each: download, compute, upload, if nothing happens


def fates(
    world: Population,
    ids: IntArray,
    work: LocalSGD,
    *,
    version: int,
    clock: int,
    sent_at: IntArray,
    numbers: IntArray,
    batches: IntArray,
    pushed: int = 0,
    down: int | None = None,
    up: int | None = None,
    left: FloatArray | float = 1.0,
) -> Fates:
    """Foretell one job of each client in `ids` `[k]`, asked for that work at tick `clock` in round `version`.

    `sent_at` `[k]` are ticks, `numbers` `[k]` the jobs each has begun before, `batches` `[k]` what keys the duration of
    its work. The server pushes so many bytes to each; `down` and `up` are bytes whose transfer takes time, None: there
    is no such transfer. `left` is the share of the work still to be done.
    """
    a_second, seed, links = world.ticks_per_second, world.seed, world.links
    start = sent_at + to_ticks(links.push_seconds(len(ids), pushed), a_second)
    samples = world.counts(ids, start / a_second)
    none = np.zeros(len(ids))
    seconds = (
        none if down is None else links.download_seconds(seed, ids, down),
        left * world.devices.seconds(seed, ids, batches, *work.busy(samples)),
        none if up is None else links.upload_seconds(seed, ids, up),
    )
    ends = start + np.maximum(1, to_ticks(sum(seconds[1:], seconds[0]), a_second))
    outcome = np.full(len(ids), ARRIVED, dtype=object)

    def interrupt(reason: str, at: IntArray, happens: NDArray[np.bool_]) -> None:
        """Let whatever happens first decide."""
        first = happens & (at < ends)
        ends[first], outcome[first] = np.maximum(at, sent_at)[first], reason

    def before_end(seconds: FloatArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Find the first tick that is not before those times, where that is sooner than the end."""
        ticks = np.ceil(np.round(np.minimum(seconds * a_second, ends.astype(np.float64) + 1), 3))
        return ticks.astype(np.int64), ticks < ends

    now = clock / a_second
    crashed, share = world.crashes.draw(seed, ids, version if world.crashes.clock == "round" else numbers)
    interrupt(CRASHED, start + to_ticks(world.crashes.seconds(share, *seconds), a_second), crashed)
    if world.availability.clock == "seconds":
        interrupt(OFFLINE, *before_end(world.availability.online_until(seed, ids, now)))
    if world.left_at is not None:
        interrupt(LEFT, *before_end(world.left_at[ids]))
    absent = ~OnlineSet(world, version, now).contains(ids) | (samples == 0)
    interrupt(OFFLINE, sent_at, absent)
    return Fates(start, ends, outcome, absent, samples, work.num_steps(samples), seconds)
