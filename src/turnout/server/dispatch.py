"""What becomes of an invitation in a simulation: how long each job takes, what will happen to it, what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.clients.online import OnlineSet
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.local.job import numbers_down, numbers_up
from turnout.local.sgd import LocalSGD
from turnout.server import durations
from turnout.server.durations import Durations
from turnout.server.jobs import ARRIVED, CRASHED, LEFT, OFFLINE, SILENCED, Columns, Costs, Crew, Job
from turnout.server.server import Among, Keep
from turnout.task.task import Task

FOREVER = durations.FOREVER
_MOST_COLUMNS = 100_000  # clients whose durations are worth keeping as columns
_FEW = 8  # jobs that are objects sooner than a crew


class Invitation(NamedTuple):
    """Clients, and what they start from."""

    ids: IntArray
    numbers: IntArray  # how many jobs each has begun before
    work: LocalSGD
    options: dict[str, FloatArray]  # each client's own numbers for the work
    received: Sequence[Tensor]
    versions: Sequence[int]
    batches: IntArray  # what keys the mini-batches
    done: FloatArray  # share of the local work done before
    keep: Keep | None  # they go on from what they have
    hold: bool
    again: bool
    among: Among | None = None  # they exchange among themselves
    shared: bool = False  # one model for all


class Dispatch:
    """Turns invitations into jobs, whose end is known from their beginning."""

    def __init__(self, population: Population, task: Task) -> None:
        self.population, self.task = population, task
        self.ticks = population.ticks_per_second
        steady = population.devices.each == "client" and population.size <= _MOST_COLUMNS
        self._certain = population.reliable and steady  # whether all of a job is known beforehand
        self._durations: tuple[LocalSGD, Durations] | None = None  # of the work last asked for
        self._last: LocalSGD | None = None  # the work of the invitation before
        self._of_last: Costs | None = None

    def to_ticks(self, seconds: FloatArray | float) -> IntArray:
        """Whole ticks; times that nobody lives to see are cut at 2^60 of them."""
        return np.rint(np.minimum(seconds * self.ticks, FOREVER)).astype(np.int64)

    def _wire_bytes(self, numbers: float) -> int:
        """Bytes of that many parameters on the wire."""
        if self.population.model_bytes is None:
            return round(numbers * self.task.initial.element_size())
        return round(self.population.model_bytes * numbers / self.task.layout.size)

    def bytes_down(self, work: LocalSGD) -> int:
        return self._wire_bytes(numbers_down(work, self.task))

    def bytes_up(self, work: LocalSGD) -> int:
        """Of the payload, which a population may say to be compressed, and of reports, number by number."""
        payload, everything = (
            sum(torch.Size(shape).numel() for shape in shapes.values())
            for shapes in (work.sent_shapes(self.task), work.sends(self.task))
        )
        reported = (everything - payload) * self.task.initial.element_size()
        return self._wire_bytes(numbers_up(work, self.task)) + reported

    def durations(self, work: LocalSGD) -> Durations:
        if self._durations is None or self._durations[0] is not work:
            found = Durations.of(self.population, work, self.bytes_down(work), self.bytes_up(work))
            self._durations = work, found
        return self._durations[1]

    def jobs(self, invitation: Invitation, clock: int, version: int, alone: bool = False) -> Sequence[Job]:
        """The jobs that begin with an invitation at tick `clock`; a crew if they are `alone` and nothing can happen to
        them."""
        if clock > 4 * FOREVER:
            raise UserError(
                f"run: virtual time is {clock / self.ticks:.3g} seconds, the most a clock can tell; "
                "devices, links or deadlines are too slow"
            )
        costs = self._known_costs(invitation)
        if costs is None:
            return self._general_jobs(invitation, clock, version)
        if alone and invitation.shared and len(invitation.ids) >= _FEW and not invitation.again:
            return self._crew(invitation, costs, clock)
        return self._certain_jobs(invitation, costs, clock)

    def silence(self, job: Job) -> None:
        """Lose an answer on its last step: its client has done and spent all there was to, and the server learns of it
        as of any failure."""
        detection = self.population.detection
        job.outcome, job.heard = SILENCED, detection.kind != "none"
        job.ends_at += int(self.to_ticks(detection.seconds)) if job.heard else 0
        job.result = job.state = job.local = None

    # -- jobs of which everything is known beforehand -----------------------------------------------------------

    def _known_costs(self, invitation: Invitation) -> Costs | None:
        """Of all clients, where nothing can go wrong and the work has been asked for before."""
        own = invitation.keep is not None or invitation.among is not None or invitation.hold
        if not self._certain or own or invitation.options:
            return None
        if self._last is not invitation.work:
            self._last, self._of_last = invitation.work, None
            return None
        if self._of_last is None:
            durations = self.durations(invitation.work)
            seconds = np.stack([durations.down, durations.compute(0), durations.up], 1)
            columns = durations.ticks(0), durations.samples, durations.steps
            rows = zip(*(column.tolist() for column in columns), map(tuple, seconds.tolist()), strict=True)
            size = self.bytes_down(invitation.work), self.bytes_up(invitation.work)
            self._of_last = Costs(*columns, seconds, size, list(rows))
        return self._of_last

    @staticmethod
    def _crew(invitation: Invitation, costs: Costs, clock: int) -> Crew:
        ids = invitation.ids.copy()  # the caller may go on changing its own
        return Crew(
            Columns(
                work=invitation.work,
                received=invitation.received[0],
                version=invitation.versions[0],
                sent_at=clock,
                costs=costs,
                client=ids,
                number=invitation.numbers,
                ends_at=clock + costs.ticks[ids],
            )
        )

    @staticmethod
    def _certain_jobs(invitation: Invitation, costs: Costs, clock: int) -> list[Job]:
        work, rows, size = invitation.work, costs.rows, costs.bytes
        none: dict[str, float] = {}
        jobs = []
        for i, n, v, m in zip(
            invitation.ids.tolist(), invitation.numbers.tolist(), invitation.versions, invitation.received, strict=True
        ):
            ticks, samples, steps, took = rows[i]  # by position, which is twice as fast
            jobs.append(
                Job(i, n, v, m, work, none, n, clock, clock, clock + ticks, ARRIVED, samples, steps, took, size)
            )
        if invitation.again:
            for job in jobs:
                job.again = True
        return jobs

    # -- all others -------------------------------------------------------------------------------------------

    def _general_jobs(self, invitation: Invitation, clock: int, version: int) -> list[Job]:
        ids, work, keep, done = invitation.ids, invitation.work, invitation.keep, invitation.done
        world, among = self.population, invitation.among
        sends = keep is None and among is None  # whether a model goes out
        full_time = sends or (keep is not None and keep.full_time)
        download = self.bytes_down(work)
        down_bytes = download if sends else 0
        up_bytes = 8 if invitation.hold else self.bytes_up(work)
        sent_at = np.full(len(ids), clock) if among is None else among.starts_at
        start = sent_at + (self.to_ticks(world.links.push_seconds(len(ids), down_bytes)) if sends else 0)
        samples = world.counts(ids, start / self.ticks)
        own = work.bind(invitation.options)
        steps = own.num_steps(samples)
        down = world.links.download_seconds(world.seed, ids, download) if full_time else np.zeros(len(ids))
        compute = world.devices.seconds(world.seed, ids, invitation.batches, *own.busy(samples))
        compute *= 1 if full_time else 1 - done
        up = world.links.upload_seconds(world.seed, ids, up_bytes) if among is None else np.zeros(len(ids))
        ends, outcome, absent = self._fates(invitation, clock, version, sent_at, start, samples, down, compute, up)

        failed = outcome != ARRIVED
        spent = np.maximum(ends - start, 0) / self.ticks
        down_spent = np.where(failed, np.minimum(spent, down), down)
        compute_spent = np.where(failed, np.minimum(spent - down_spent, compute), compute)
        up_spent = np.where(failed, np.clip(spent - down_spent - compute_spent, 0, up), up)
        got = np.rint(np.where(absent, 0.0, _share(down_spent, down)) * down_bytes).astype(np.int64)
        sent = np.rint(np.where(failed & (up_spent == 0), 0.0, _share(up_spent, up)) * up_bytes).astype(np.int64)
        if among is not None:
            got, sent = among.bytes_down, among.bytes_up
        heard = ~failed | (world.detection.kind != "none")
        columns: dict[str, Iterable[Any]] = {  # in the order of a job's fields
            "client": ids.tolist(),
            "number": invitation.numbers.tolist(),
            "version": invitation.versions,
            "received": invitation.received,
            "work": repeat(work),
            "options": _by_row(invitation.options, len(ids)),
            "batches": invitation.batches.tolist(),
            "sent_at": sent_at.tolist(),
            "starts_at": start.tolist(),
            "ends_at": (ends + np.where(failed & heard, self.to_ticks(world.detection.seconds), 0)).tolist(),
            "outcome": outcome.tolist(),
            "samples": samples.tolist(),
            "steps": steps.tolist(),
            "seconds": zip(down_spent.tolist(), compute_spent.tolist(), up_spent.tolist(), strict=True),
            "bytes": zip(got.tolist(), sent.tolist(), strict=True),
            "done": done.tolist(),
            "progress": (done + (1 - done) * np.where(failed, _share(compute_spent, compute), 1.0)).tolist(),
            "heard": heard.tolist(),
            "hold": repeat(invitation.hold),
            "again": repeat(invitation.again),
            "sent": repeat(sends),
            "has_model": ((not sends) | ~absent & (spent >= down)).tolist(),
        }
        return list(map(Job, *columns.values()))

    def _fates(
        self,
        invitation: Invitation,
        clock: int,
        version: int,
        sent_at: IntArray,
        start: IntArray,
        samples: IntArray,
        down: FloatArray,
        compute: FloatArray,
        up: FloatArray,
    ) -> tuple[IntArray, NDArray[Any], NDArray[np.bool_]]:
        """When and how each job ends, and who was not there to begin with: whatever happens first decides."""
        world, ids, now = self.population, invitation.ids, clock / self.ticks
        ends = start + np.maximum(1, self.to_ticks(down + compute + up))
        outcome = np.full(len(ids), ARRIVED, dtype=object)

        def interrupt(reason: str, at: IntArray, happens: NDArray[np.bool_]) -> None:
            first = happens & (at < ends)
            ends[first], outcome[first] = np.maximum(at, sent_at)[first], reason

        number = version if world.crashes.clock == "round" else invitation.numbers
        crashed, share = world.crashes.draw(world.seed, ids, number)
        interrupt(CRASHED, start + self.to_ticks(world.crashes.seconds(share, down, compute, up)), crashed)
        if world.availability.clock == "seconds":
            interrupt(OFFLINE, *self._before(world.availability.online_until(world.seed, ids, now), ends))
        if world.left_at is not None:
            interrupt(LEFT, *self._before(world.left_at[ids], ends))
        absent = ~OnlineSet(world, version, now).contains(ids) | (samples == 0)
        interrupt(OFFLINE, sent_at, absent)
        return ends, outcome, absent

    def _before(self, seconds: FloatArray, ends: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """The first tick that is not before those times, where that is sooner than the end."""
        ticks = np.ceil(np.round(np.minimum(seconds * self.ticks, ends.astype(np.float64) + 1), 3))
        return ticks.astype(np.int64), ticks < ends


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.ones_like(part), where=whole > 0)


def _by_row(options: dict[str, FloatArray], count: int) -> list[dict[str, float]]:
    """Each client's own options."""
    if not options:
        return [{}] * count
    rows = zip(*(values.tolist() for values in options.values()), strict=True)
    return [dict(zip(options, row, strict=True)) for row in rows]
