"""What becomes of an invitation in a simulation: how long each job takes, what will happen to it, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnout.clients.fates import FOREVER as FOREVER
from turnout.clients.fates import fates, to_ticks
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.local.job import numbers_down, numbers_up
from turnout.local.modifiers import Shapes
from turnout.local.sgd import LocalSGD
from turnout.server.durations import Durations
from turnout.server.jobs import ARRIVED, SILENCED, Columns, Costs, Crew, Job, Wave, as_jobs
from turnout.server.server import Among, Keep
from turnout.task.task import Task

_MOST_COLUMNS = 100_000  # clients whose durations are worth keeping as columns
_MOST_WORKS = 4  # whose demands are kept
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


class Demand:
    """What one local work asks of the clients: bytes, what they keep, and how long they take."""

    def __init__(self, work: LocalSGD, population: Population, task: Task) -> None:
        self.work, self._population, self._task = work, population, task
        self.asked = False  # in an invitation before

    @cached_property
    def keeps(self) -> Shapes:
        """Name what clients keep between their jobs, with shapes."""
        return self.work.stored_shapes(self._task)

    @cached_property
    def bytes_down(self) -> int:
        """Count the bytes sent to a client."""
        return self._wire_bytes(numbers_down(self.work, self._task))

    @cached_property
    def bytes_up(self) -> int:
        """Count the bytes of an update, and those of reports, which are never compressed."""
        payload, everything = (
            sum(torch.Size(shape).numel() for shape in shapes.values())
            for shapes in (self.work.sent_shapes(self._task), self.work.sends(self._task))
        )
        reported = (everything - payload) * self._task.initial.element_size()
        return self._wire_bytes(numbers_up(self.work, self._task)) + reported

    def _wire_bytes(self, numbers: float) -> int:
        """Count the bytes of that many parameters on the wire; a population may say that a model is compressed."""
        if self._population.model_bytes is None:
            return round(numbers * self._task.initial.element_size())
        return round(self._population.model_bytes * numbers / self._task.layout.size)

    @cached_property
    def durations(self) -> Durations:
        """Say how long every client takes."""
        return Durations.of(self._population, self.work, self.bytes_down, self.bytes_up)

    @cached_property
    def costs(self) -> Costs:
        """Tell what a job takes at every client, where nothing can go wrong."""
        durations = self.durations
        seconds = np.stack([durations.down, durations.compute(0), durations.up], 1)
        columns = durations.ticks(0), durations.samples, durations.steps
        rows = zip(*(column.tolist() for column in columns), map(tuple, seconds.tolist()), strict=True)
        return Costs(*columns, seconds, (self.bytes_down, self.bytes_up), list(rows))


class Dispatch:
    """Turn invitations into jobs, whose end is known from their beginning."""

    def __init__(self, population: Population, task: Task) -> None:
        self.population, self.task = population, task
        self.ticks = population.ticks_per_second
        self._detection = int(to_ticks(population.detection.seconds, self.ticks))  # ticks until a failure is learnt of
        steady = population.devices.each == "client" and population.size <= _MOST_COLUMNS
        self.certain = population.reliable and steady  # whether all of a job is known beforehand
        self._demands: list[Demand] = []  # of the works last asked for, the last first

    def demand(self, work: LocalSGD) -> Demand:
        """Find what a work asks of the clients."""
        for demand in self._demands:
            if demand.work is work:
                return demand
        self._demands = [Demand(work, self.population, self.task), *self._demands[: _MOST_WORKS - 1]]
        return self._demands[0]

    def jobs(
        self, invitation: Invitation, clock: int, version: int, alone: bool = False, wave: bool = False
    ) -> Sequence[Job]:
        """Begin the jobs of an invitation at tick `clock`: a crew if they are `alone`, keep nothing, and nothing can
        happen to them; a `wave`, if that is asked for and they have nothing of their own."""
        if clock > 4 * FOREVER:
            raise UserError(
                f"run: virtual time is {clock / self.ticks:.3g} seconds, the most a clock can tell; "
                "devices, links or deadlines are too slow"
            )
        demand = self.demand(invitation.work)
        own = invitation.keep is not None or invitation.among is not None or invitation.hold or invitation.options
        known, demand.asked = self.certain and not own and demand.asked, True
        if not known:
            wave &= not own and not demand.keeps and invitation.shared and not invitation.again
            return self._general_jobs(invitation, demand, clock, version, wave)
        few = len(invitation.ids) < _FEW or invitation.again or not invitation.shared
        if few or not alone or demand.keeps:
            return self._certain_jobs(invitation, demand.costs, clock)
        ids = invitation.ids.copy()  # the caller may go on changing its own
        received, version, costs = invitation.received[0], invitation.versions[0], demand.costs
        ends_at = clock + costs.ticks[ids]
        return Crew(demand.work, received, version, clock, costs, ids, invitation.numbers, ends_at)

    def silence(self, job: Job) -> None:
        """Lose an answer on its last step: its client has done and spent all there was to, and the server learns of it
        as of any failure."""
        detection = self.population.detection
        job.outcome, job.learnt = SILENCED, detection.kind != "none"
        job.ends_at += self._detection if job.learnt else 0
        job.result = job.state = job.local = None

    # -- jobs of which everything is known beforehand -----------------------------------------------------------

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

    def _general_jobs(
        self, invitation: Invitation, demand: Demand, clock: int, version: int, wave: bool
    ) -> Sequence[Job]:
        ids, work, keep, done = invitation.ids, invitation.work, invitation.keep, invitation.done
        among, detection = invitation.among, self.population.detection
        sends = keep is None and among is None  # whether a model goes out
        full_time = sends or (keep is not None and keep.full_time)
        down_bytes, up_bytes = demand.bytes_down if sends else 0, 8 if invitation.hold else demand.bytes_up
        sent_at = np.full(len(ids), clock) if among is None else among.starts_at
        start, ends, outcome, absent, samples, steps, (down, compute, up) = fates(
            self.population,
            ids,
            work.bind(invitation.options) if invitation.options else work,
            version=version,
            clock=clock,
            sent_at=sent_at,
            numbers=invitation.numbers,
            batches=invitation.batches,
            pushed=down_bytes,
            down=demand.bytes_down if full_time else None,
            up=up_bytes if among is None else None,
            left=1.0 if full_time else 1 - done,
        )
        failed = outcome != ARRIVED
        spent = np.maximum(ends - start, 0) / self.ticks
        down_spent = np.where(failed, np.minimum(spent, down), down)
        compute_spent = np.where(failed, np.minimum(spent - down_spent, compute), compute)
        up_spent = np.where(failed, np.clip(spent - down_spent - compute_spent, 0, up), up)
        got = np.rint(np.where(absent, 0.0, _share(down_spent, down)) * down_bytes).astype(np.int64)
        sent = np.rint(np.where(failed & (up_spent == 0), 0.0, _share(up_spent, up)) * up_bytes).astype(np.int64)
        if among is not None:
            got, sent = among.bytes_down, among.bytes_up
        learnt = ~failed | (detection.kind != "none")
        columns = Columns(
            client=ids,
            number=invitation.numbers,
            version=invitation.versions,
            batches=invitation.batches,
            sent_at=sent_at,
            starts_at=start,
            ends_at=ends + np.where(failed & learnt, self._detection, 0),
            outcome=outcome,
            samples=samples,
            steps=steps,
            down_seconds=down_spent,
            compute_seconds=compute_spent,
            up_seconds=up_spent,
            bytes_down=got,
            bytes_up=sent,
            done=done,
            progress=done + (1 - done) * np.where(failed, _share(compute_spent, compute), 1.0),
            learnt=learnt,
            has_model=(not sends) | ~absent & (spent >= down),
        )
        if not wave:
            options = _by_row(invitation.options, len(ids))
            return as_jobs(work, invitation.received, columns, options, invitation.hold, invitation.again, sends)
        received = np.empty(len(ids), object)
        received.fill(invitation.received[0])
        return Wave(work, received, columns._replace(version=np.array(invitation.versions, np.int64)))


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.divide(part, whole, out=np.ones_like(part), where=whole > 0)


def _by_row(options: dict[str, FloatArray], count: int) -> list[dict[str, float]]:
    """Give each client its own options."""
    if not options:
        return [{}] * count
    rows = zip(*(values.tolist() for values in options.values()), strict=True)
    return [dict(zip(options, row, strict=True)) for row in rows]
