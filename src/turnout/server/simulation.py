"""The server in virtual time: an event queue, and local work computed only when its result is needed.

An in-flight job depends only on the model it received, so nothing is trained until an algorithm looks at an update;
then *all* in-flight jobs are trained with it in one call. Asynchronous methods batch as well as synchronous ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout import random
from turnout.cohort.carry_out import carry_out
from turnout.cohort.train import Jobs
from turnout.errors import UserError
from turnout.local.sgd import LocalSGD, Named
from turnout.population.adversary import Adversary
from turnout.population.behaviour import Behaviour
from turnout.population.durations import Durations
from turnout.server.dispatch import Dispatch, Invitation
from turnout.server.mailbox import Mailbox
from turnout.server.state import Facts, load_state, nest, save_state, unnest
from turnout.server.updates import ARRIVED, Job, Updates

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Simulation(Mailbox):
    """`Server` over simulated clients."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._dispatch = Dispatch(self.population, self.task)
        self.adversary = copy.deepcopy(self.population.adversary)  # with a memory of this run
        if self.adversary is not None:
            self.adversary.begin(self.population.size)
        self.behaviour = copy.deepcopy(self.population.behaviour)
        if self.behaviour is not None:
            self.behaviour.begin(self.population.size, self.population.seed)
        self._unsettled: dict[int, Job] = {}  # by client: ended, but the client's new state is not known yet
        self._trained = False  # since the last round closed

    def durations(self, work: LocalSGD) -> Durations:
        return self._dispatch.durations(work)

    def push_seconds(self, copies: int, work: LocalSGD) -> float:
        return self.population.links.push_seconds(copies, self._dispatch.bytes_down(work))

    def backhaul_seconds(self, edges: int, work: LocalSGD) -> float:
        return self.population.links.backhaul_seconds(edges, self._dispatch.bytes_down(work))

    # -- inviting ---------------------------------------------------------------------------------------------

    def _invitation(self, ids: IntArray, *choices: Any) -> Invitation:
        if self._unsettled:
            self._train([self._unsettled[client] for client in ids.tolist() if client in self._unsettled])
        return super()._invitation(ids, *choices)

    def _begin(self, invitation: Invitation) -> list[Job]:
        jobs = self._dispatch.jobs(invitation, self._clock, self.version)
        if self.behaviour is not None:
            self._lie(self.behaviour, jobs)
        if self.adversary is not None and "delta" in invitation.work.payload_shapes(self.task):
            self._silence(self.adversary, jobs)
        return jobs

    def _lie(self, behaviour: Behaviour, jobs: list[Job]) -> None:
        """Put forged updates in the place of what liars among those just invited would send. All of a lie is known now,
        so that it does not depend on what is trained together later."""
        lies = behaviour.lies(np.array([job.client for job in jobs], np.int64), self.version)
        lying = [job for job, lie in zip(jobs, lies.tolist(), strict=True) if lie]
        for job in lying:
            job.samples = behaviour.declared_samples or job.samples
        lying = [job for job in lying if job.outcome == ARRIVED]
        work, updates = jobs[0].work, self._updates(lying)
        if not lying or "delta" not in work.payload_shapes(self.task):
            return
        nothing_else = len(work.sends(self.task)) == 1 and not work.state_shapes(self.task)
        if behaviour.invents and nothing_else and self.algorithm.clients_keep != "models":  # nothing to compute
            nothing = self.model.new_zeros(len(lying), len(self.model))
            self._attach(lying, {"delta": behaviour.respond(updates, nothing, len(jobs))}, {}, {})
            return
        self._train(lying, jobs)
        results = [job.result for job in lying if job.result is not None]
        block, rows = results[0][0], torch.tensor([row for _, row in results], device=self.plan.device)
        forged = behaviour.respond(updates, block["delta"][rows], len(jobs))
        block["delta"] = block["delta"].index_copy(0, rows, forged)  # trained together: they share the block
        if lying[0].local is not None:
            kept, _ = lying[0].local
            kept["params"] = kept["params"].index_copy(0, rows, updates.received() + forged)

    def _silence(self, adversary: Adversary, jobs: list[Job]) -> None:
        """Let the adversary choose who of those just invited will never answer. It knows everything: where it looks at
        updates, all that would arrive are computed now."""
        coming = [job for job in jobs if job.outcome == ARRIVED]
        rows, share = adversary.silence(self, self._updates(coming), len(jobs))
        silenced = [coming[row] for row in rows.tolist()]
        for job in silenced:
            self._dispatch.silence(job)
        if silenced:
            self.log("silenced", clients=[job.client for job in silenced], share=share)

    # -- waiting ----------------------------------------------------------------------------------------------

    def _due(self, close: int | None) -> bool:
        return bool(self._events) and (close is None or self._events[0][0] <= close)

    def _delivered(self, job: Job) -> None:
        if job.work.stored_shapes(self.task):
            self._unsettled[job.client] = job
            if job.state is not None:
                self._commit([job])

    def foresee(self) -> tuple[IntArray, FloatArray]:
        """Who of those at work will answer, in order of arrival, and in how many seconds: no server can know that."""
        jobs = sorted(self._in_flight.values(), key=lambda job: (job.ends_at, job.client))
        answers = [job for job in jobs if job.outcome == ARRIVED]
        seconds = np.array([job.ends_at - self._clock for job in answers]) / self._ticks
        return np.array([job.client for job in answers], np.int64), seconds

    def hasten(self) -> None:
        """End every job in flight now, as it will end: its update is used before it exists."""
        for job in sorted(self._in_flight.values(), key=lambda job: (job.ends_at, job.client)):
            self._finish(job)

    def _stop(self, job: Job) -> bool:
        elapsed = max(0, self._clock - job.starts_at) / self._ticks
        down, compute, up = job.seconds
        got, worked = min(elapsed, down), min(max(0.0, elapsed - down), compute)
        sent = min(max(0.0, elapsed - down - compute), up)
        job.seconds = (got, worked, sent)
        job.bytes = (
            round(job.bytes[0] * (got / down if down else 1)),
            round(job.bytes[1] * (sent / up if up else 0)),
        )
        job.progress = job.done + (job.progress - job.done) * (worked / compute if compute else 1)
        job.has_model &= elapsed >= down
        return elapsed < down + compute + up

    def fetch(self, clients: ArrayLike) -> Updates:
        ids = np.unique(np.asarray(clients, np.int64))
        missing = [client for client in ids.tolist() if client not in self._held]
        if missing:
            raise UserError(f"fetch: client {missing[0]} holds no update")
        jobs = [self._held.pop(client) for client in ids.tolist()]
        sizes = np.array([self._dispatch.bytes_up(job.work) for job in jobs])
        seconds = self.population.links.upload_seconds(self.population.seed, ids, sizes)
        arrives = self._clock + self._dispatch.to_ticks(seconds)
        for job, size, up, tick in zip(jobs, sizes.tolist(), seconds.tolist(), arrives.tolist(), strict=True):
            job.hold, job.ends_at = False, tick
            job.bytes, job.seconds = (job.bytes[0], job.bytes[1] + size), (*job.seconds[:2], job.seconds[2] + up)
            self._tally["bytes_up"] += size
        home = int(arrives.max(initial=self._clock))
        self._restart()
        while self._events and self._events[0][0] <= home:
            self._next_event()
            self._restart()
        self._clock = home
        return self._updates(sorted(jobs, key=lambda job: (job.ends_at, job.client)))

    # -- computing --------------------------------------------------------------------------------------------

    def _train(self, needed: Sequence[Job], starting: Sequence[Job] = ()) -> None:
        """Compute the results of `needed` and, with them, of every job in flight or starting that will bring one."""
        missing = {job.name: job for job in needed if job.result is None}
        if not missing:
            return
        ahead = sorted([*self._in_flight.values(), *starting], key=lambda job: (job.ends_at, job.client))
        room = self.plan.results_kept(self.task, needed[0].work)
        waiting = sum(job.result is not None for job in ahead)
        for job in ahead:
            if len(missing) + waiting >= room:
                break
            if job.outcome == ARRIVED and job.result is None:
                missing.setdefault(job.name, job)
        works = {id(job.work): job.work for job in missing.values()}
        signatures = {name: _signature(work) for name, work in works.items()}
        groups: dict[Any, list[Job]] = {}
        for job in missing.values():
            groups.setdefault((signatures[id(job.work)], *job.options), []).append(job)
        for jobs in groups.values():
            self._train_alike(jobs)
        self._trained = True

    def _train_alike(self, jobs: list[Job]) -> None:
        """Train jobs that share their local work: one cohort, possibly from different versions."""
        work = jobs[0].work
        clients = np.array([job.client for job in jobs], np.int64)
        models: dict[int, tuple[int, Tensor]] = {}
        received = np.array([models.setdefault(id(j.received), (len(models), j.received))[0] for j in jobs], np.int64)
        batches = np.array([job.batches for job in jobs], np.int64)
        options = {name: np.array([job.options[name] for job in jobs]) for name in jobs[0].options}
        at = np.array([job.starts_at for job in jobs]) / self._ticks
        trained = carry_out(
            self.cohort,
            Jobs(
                work,
                random.key(self.seed, "local work", clients, batches),
                torch.stack([model for _, model in models.values()]),
                received,
                self.population.samples(clients, at),
                options,
                self.store.get(work.stored_shapes(self.task), clients),
            ),
            [job.version for job in jobs],
            keep_params=self.algorithm.clients_keep == "models",
        )
        self._attach(jobs, trained.payload, trained.state, trained.local)

    def _attach(self, jobs: list[Job], payload: Named, state: Named, kept: Named) -> None:
        """Give each job its row of what was trained."""
        for row, job in enumerate(jobs):
            job.result = (payload, row)
            job.state = (state, row) if state else None
            job.local = (kept, row) if kept else None
        self._commit([job for job in jobs if self._unsettled.get(job.client) is job])

    def _commit(self, jobs: list[Job]) -> None:
        """Make the new state of clients whose jobs have ended on the clock theirs; jobs that were trained together."""
        rows: list[int] = []
        for job in jobs:
            assert job.state is not None
            state, row = job.state
            rows.append(row)
            job.state = None
            del self._unsettled[job.client]
        if rows:
            clients = np.array([job.client for job in jobs], np.int64)
            self.store.put(clients, {name: values[rows] for name, values in state.items()})

    def _compact(self) -> None:
        """Let go of blocks of which most rows have been used: what is kept is at most twice what is still waited for.

        Between two rounds nobody else refers to a block, so no sum ever meets its rows in two places."""
        waiting = [*self._in_flight.values(), *self._inbox, *self._held.values()]
        for kind in ("result", "state", "local"):
            blocks: dict[int, tuple[Named, list[tuple[int, Job]]]] = {}
            for job in waiting:
                if (trained := getattr(job, kind)) is not None:
                    blocks.setdefault(id(trained[0]), (trained[0], []))[1].append((trained[1], job))
            for block, jobs in blocks.values():
                if 2 * len(jobs) < max((len(values) for values in block.values()), default=0):
                    jobs.sort(key=lambda pair: pair[0])
                    fewer = {name: values[[row for row, _ in jobs]] for name, values in block.items()}
                    for row, (_, job) in enumerate(jobs):
                        setattr(job, kind, (fewer, row))

    def settle(self) -> None:
        self._restart()
        if self._trained:
            self._compact()
            self._trained = False
        if self._unsettled:
            self._train(list(self._unsettled.values()))

    # -- state ------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Facts, Named]:
        facts, tensors = super().save()
        if self.adversary is not None:
            facts["adversary"], adversary_tensors = save_state(self.adversary)
            tensors |= nest("adversary", adversary_tensors)
        if self.behaviour is not None:
            facts["behaviour"], behaviour_tensors = save_state(self.behaviour)
            tensors |= nest("behaviour", behaviour_tensors)
        return facts, tensors

    def load(self, facts: Facts, tensors: Named) -> None:
        super().load(facts, tensors)
        if self.adversary is not None:
            load_state(self.adversary, facts["adversary"], unnest("adversary", tensors), self.plan.device)
        if self.behaviour is not None:
            load_state(self.behaviour, facts["behaviour"], unnest("behaviour", tensors), self.plan.device)


def _signature(work: LocalSGD) -> tuple[Any, ...]:
    """Equal for works that compute the same thing: numbers by value, tensors by identity."""
    values = (getattr(work, part.name) for part in fields(work))
    return type(work), *(id(value) if isinstance(value, Tensor) else value for value in values)
