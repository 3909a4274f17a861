"""Models of members that are added and never averaged (`turnout.EnsembleTask`), under the same law.

A job adds its members where no other does, and counts whole, so that the sum of differences is their union.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turnout.aggregation.optimisers import Step
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.local.python_work import PythonWork
from turnout.local.sgd import LocalSGD
from turnout.task.arrays import EnsembleTask

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.updates import Updates


def check(server: Server) -> None:
    """Raise where a part would mix members."""
    if not isinstance(server.task, EnsembleTask):
        return
    law, never = server.law, "members of an EnsembleTask are added and never averaged"
    for name in ("rule", "remember", "weigh"):
        if getattr(law, name) is not None:
            raise UserError(f"{name}: {never}; leave it out, or take a method without it")
    if type(law.optimiser) is not Step or law.optimiser.lr != 1:
        raise UserError(f"optimiser: {never}; take the plain step, with algorithm.server_lr 1")
    if server.privacy is not None:
        raise UserError(f"privacy.noise: {never}, and noise would be added to each number of them; leave it out")


def check_published(server: Server) -> None:
    """Raise for a method that makes a model of its own of what comes back."""
    if isinstance(server.task, EnsembleTask):
        kind = type(server.algorithm).__name__
        raise UserError(
            f"algorithm: {kind} mixes models, and members of an EnsembleTask are added; take fedavg, async_fedavg, "
            "fedfix or fedbuff"
        )


def counted(server: Server, updates: Updates, weights: FloatArray) -> tuple[Updates, FloatArray]:
    """Let every update of an ensemble count whole that counts at all; who touches what is not its own is rejected."""
    task = server.task
    if not isinstance(task, EnsembleTask):
        return updates, weights
    rows = zip(updates.deltas, updates.jobs, weights.tolist(), strict=True)
    good = np.ones(len(updates), bool)
    for row, (delta, job, weight) in enumerate(rows):
        good[row] = task.adds_only(delta, int(job.options["place"]))
        if not good[row]:
            why = "not members in the places of its job"
            server.log("rejected_update", client=job.client, job=job.number, why=why, weight=weight)
    kept = updates if good.all() else updates.select(good)
    return kept, np.where(weights[good] != 0, 1.0, 0.0)


def sized(server: Server, work: LocalSGD) -> LocalSGD:
    """Make the same work, which knows how many members go out with it."""
    if not isinstance(server.task, EnsembleTask) or not isinstance(work, PythonWork):
        return work
    return work.bind({"sent": server.task.members(server.model)})


def placed(server: Server, work: LocalSGD, numbers: IntArray, count: int) -> LocalSGD:
    """Make the same work for `count` jobs, each of which knows where its members go: clients have begun `numbers` jobs
    before, `[N]`, and no place is given twice."""
    task = server.task
    if not isinstance(task, EnsembleTask) or "delta" not in work.payload_shapes(task):
        return work
    if not isinstance(work, PythonWork):
        raise UserError(f"local: members of an EnsembleTask are made by a PythonWork, not by {type(work).__name__}")
    if work.transforms:
        name = type(work.transforms[0]).__name__
        raise UserError(f"local.modifiers: {name} would change members of an EnsembleTask; leave it out")
    room, begun = task.capacity // task.a_job, int(numbers.sum())
    if begun + count > room:
        raise UserError(
            f"EnsembleTask.capacity: {task.capacity} members are room for {room} jobs of {task.a_job}, and job "
            f"{begun + count} begins; raise it, or run fewer rounds"
        )
    return sized(server, work).bind({"place": (begun + np.arange(count)) * task.a_job})
