"""The server in virtual time: an event queue, and local work computed only when its result is needed.

An in-flight job depends only on the model it received, so nothing is trained until an algorithm looks at an update;
then *all* in-flight jobs are trained with it in one call. Asynchronous methods batch as well as synchronous ones. Where
threads of their own train clients, the server goes on as soon as what it has asked for is there.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from turnout.clients.adversary import Adversary
from turnout.clients.behaviour import Behaviour
from turnout.clients.fates import to_ticks
from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.engine.batches import Jobs
from turnout.engine.blocks import Block
from turnout.engine.engine import engine_for
from turnout.local.sgd import LocalSGD, Named
from turnout.server import ensembles, stretch
from turnout.server.dispatch import Dispatch, Invitation
from turnout.server.durations import Durations
from turnout.server.fleet import Fleet
from turnout.server.jobs import ARRIVED, Crew, Job, by_work, together
from turnout.server.mailbox import Mailbox
from turnout.server.observer import Event, Observer
from turnout.server.policy import Policy
from turnout.server.server import Server
from turnout.server.state import Facts, load_state, nest, save_state, unnest
from turnout.server.stretch import Weigh
from turnout.server.updates import Updates, by_block

_MANY, _SHARE = 64, 32  # jobs of an invitation that are worth columns: so many, of so many times as many in flight


class Simulation(Mailbox):
    """`Server` over simulated clients."""

    _trains: ClassVar[bool] = True  # what jobs bring; where nobody does, large invitations stay columns

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._dispatch = Dispatch(self.population, self.task)
        self._engine = engine_for(self.cohort, self.plan)
        self.adversary = copy.deepcopy(self.population.adversary)  # with a memory of this run
        if self.adversary is not None:
            self.adversary.begin(self.population.size)
        self.behaviour = copy.deepcopy(self.population.behaviour)
        if self.behaviour is not None:
            self.behaviour.begin(self.population.size, self.population.seed)
        self._unsettled: dict[int, Job] = {}  # by client: ended, but the client's new state is not known yet
        self._trained = False  # since the last round closed
        self._told: tuple[LocalSGD, list[str]] | None = None  # the last work whose path is known, and its own options

        self.passes_from = 0  # the version from which it is worth trying to pass rounds in one go
        self.passed = stretch.FEW  # updates of the last rounds passed

    def durations(self, work: LocalSGD) -> Durations:
        return self._dispatch.demand(work).durations

    def push_seconds(self, copies: int, work: LocalSGD) -> float:
        work = ensembles.sized(self, work)
        return self.population.links.push_seconds(copies, self._dispatch.demand(work).bytes_down)

    def backhaul_seconds(self, edges: int, work: LocalSGD) -> float:
        return self.population.links.backhaul_seconds(edges, self._dispatch.demand(work).bytes_down)

    # -- inviting ---------------------------------------------------------------------------------------------

    def _make_ready(self, ids: IntArray) -> None:
        if self._unsettled:
            self._ensure_trained([self._unsettled[client] for client in ids.tolist() if client in self._unsettled])

    def _tell_path(self, work: LocalSGD, options: Collection[str]) -> None:
        """Log how a work is computed, the first time."""
        names = list(options)
        if self._told is not None and self._told[0] is work and self._told[1] == names:
            return
        self._told, path = (work, names), self.cohort.path(work, names, self.plan)
        told = {"work": type(work).__name__, "name": path.name, "why": path.why}
        if told not in self.paths:
            self.paths.append(told)
            event = Event("path", self.version, self.now, dict(told))
            for observer in self.observers:
                observer.on_path(self, event)

    def _begin(self, invitation: Invitation) -> Sequence[Job]:
        self._tell_path(invitation.work, invitation.options)
        wave = self._waves and len(invitation.ids) >= max(_MANY, self.in_flight // _SHARE)
        jobs = self._dispatch.jobs(invitation, self._clock, self.version, self._alone, wave)
        if self.behaviour is not None:
            self._lie(self.behaviour, jobs)
        if self.adversary is not None and "delta" in invitation.work.payload_shapes(self.task):
            self._silence(self.adversary, jobs)
        return jobs

    @cached_property
    def _waves(self) -> bool:
        """Tell whether nobody looks at single jobs when they begin or end."""
        looked_at = self._one_by_one or any(type(o).on_invite is not Observer.on_invite for o in self.observers)
        honest = self.behaviour is None and self.adversary is None
        return not (self._trains or looked_at) and honest and self.algorithm.clients_keep == "nothing"

    def _lie(self, behaviour: Behaviour, jobs: Sequence[Job]) -> None:
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
        nothing_else = len(work.sends(self.task)) == 1 and not work.trained_shapes(self.task)
        if behaviour.invents and nothing_else and self.algorithm.clients_keep != "models":  # nothing to compute
            nothing = self.model.new_zeros(len(lying), len(self.model))
            self._attach(lying, Block({"delta": behaviour.respond(updates, nothing, len(jobs))}))
            return
        self._ensure_trained(lying, jobs)
        forged = behaviour.respond(updates, updates.gather("delta", held=True), len(jobs))
        for block, there, here in by_block([job.result for job in lying if job.result is not None]):
            block.put("delta", there, forged[here])
        for block, there, here in by_block([job.local for job in lying if job.local is not None]):
            block.put("params", there, (updates.received() + forged)[here])

    def _silence(self, adversary: Adversary, jobs: Sequence[Job]) -> None:
        """Let the adversary choose who of those just invited will never answer. It knows everything: where it looks at
        updates, all that would arrive are computed now."""
        coming = [job for job in jobs if job.outcome == ARRIVED]
        rows, share = adversary.silence(self, self._updates(coming), len(jobs))
        silenced = [coming[row] for row in rows.tolist()]
        for job in silenced:
            self._dispatch.silence(job)
        if silenced:
            self.log("silenced", clients=[job.client for job in silenced], share=share)

    def pass_rounds(self, policy: Policy, work: LocalSGD, weigh: Weigh) -> bool:
        if type(self) is not Simulation:  # which may train in a way of its own
            return False
        return stretch.pass_rounds(self, policy, work, weigh)

    # -- waiting ----------------------------------------------------------------------------------------------

    def _due(self, close: int | None) -> bool:
        return self._flight.queue.due(close)

    def _delivered(self, jobs: Sequence[Job]) -> None:
        works = {id(job.work): job.work for job in jobs}
        with_state = {name for name, work in works.items() if self._dispatch.demand(work).keeps}
        for job in jobs if with_state else ():
            if id(job.work) in with_state:
                self._unsettled[job.client] = job
                if job.state is not None:
                    self._commit([job])

    def foresee(self) -> tuple[IntArray, FloatArray]:
        """Foresee who at work will answer, in order of arrival, and in how many seconds: no server can know that."""
        jobs = sorted(self._in_flight.values(), key=lambda job: (job.ends_at, job.client))
        answers = [job for job in jobs if job.outcome == ARRIVED]
        seconds = np.array([job.ends_at - self._clock for job in answers]) / self._ticks
        return np.array([job.client for job in answers], np.int64), seconds

    def hasten(self) -> None:
        """End every job in flight now, as it will end: its update is used before it exists."""
        for job in sorted(self._in_flight.values(), key=lambda job: (job.ends_at, job.client)):
            self._finish([job])

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
        sizes = np.array([self._dispatch.demand(job.work).bytes_up for job in jobs])
        seconds = self.population.links.upload_seconds(self.population.seed, ids, sizes)
        arrives = self._clock + to_ticks(seconds, self._ticks)
        for job, size, up, tick in zip(jobs, sizes.tolist(), seconds.tolist(), arrives.tolist(), strict=True):
            job.hold, job.ends_at = False, tick
            job.bytes, job.seconds = (job.bytes[0], job.bytes[1] + size), (*job.seconds[:2], job.seconds[2] + up)
            self._rounds.tally["bytes_up"] += size
        home = int(arrives.max(initial=self._clock))
        self._restart()
        while self._flight.queue.due(home):
            self._next_events()
            self._restart()
        self._clock = home
        return self._handed(sorted(jobs, key=lambda job: (job.ends_at, job.client)))

    # -- computing --------------------------------------------------------------------------------------------

    def _ensure_trained(self, needed: Sequence[Job], starting: Sequence[Job] = ()) -> None:
        """Train `needed` unless that was done, and with them jobs in flight or starting that will bring a result."""
        crew = None if self.in_flight or starting else together(needed)
        if crew is not None:
            self._train_together(crew)
            return
        missing = dict.fromkeys([job for job in needed if job.result is None])
        if not missing:
            return
        in_flight = [*self._in_flight.values(), *starting]
        open_ones = [job for job in in_flight if job.result is None]
        ahead = [job for job in open_ones if job.outcome == ARRIVED and job not in missing]
        jobs = list(missing)
        if ahead:
            waiting = len(in_flight) - len(open_ones)
            room = self.plan.results_kept(self.task, needed[0].work) - len(missing) - waiting
            jobs += sorted(ahead, key=lambda job: (job.ends_at, job.client))[: max(0, room)]
        self._trained = True
        for alike in by_work(jobs):
            self._train_alike(alike, ahead=len(jobs) > len(missing))

    def _train_alike(self, jobs: list[Job], ahead: bool = False) -> None:
        """Train jobs that share their local work: one cohort, possibly from different versions. Some are not needed
        yet, where it is `ahead`."""
        work = jobs[0].work
        keeps = self._dispatch.demand(work).keeps
        clients, batches, starts_at = (
            np.array([getattr(job, name) for job in jobs], np.int64) for name in ("client", "batches", "starts_at")
        )
        options = {name: np.array([job.options[name] for job in jobs]) for name in jobs[0].options}
        own = self._store.get(keeps, clients) if keeps else {}
        order = self._order(work, clients, batches, [job.received for job in jobs], starts_at, options, own, ahead)
        kept = self.algorithm.clients_keep == "models"
        for rows, payload, state, final in self._engine.train(order, [job.version for job in jobs], kept):
            self._attach([jobs[row] for row in rows], payload, state if keeps else None, final if kept else None)

    def _train_together(self, crew: Crew) -> None:
        """Train a crew, whose clients keep nothing and have nothing of their own but their samples."""
        clients, count = crew.client, len(crew)
        order = self._order(crew.work, clients, crew.number, crew.received, np.full(count, crew.sent_at))
        self._trained = True
        results = self._engine.train(order, [crew.version] * count, keep_params=False)
        if len(results) == 1 and isinstance(results[0].rows, range):
            crew.block = results[0].payload
            return
        for rows, payload, _, _ in results:
            self._attach([crew.jobs[row] for row in rows], payload)

    def train_fleet(self, fleet: Fleet, needed: IntArray) -> None:
        """Train what these clients of a fleet bring, and what is on its way."""
        room = self.plan.results_kept(self.task, fleet.work)
        fleet.compact(room)
        clients, ahead = fleet.to_train(needed, lambda missing, waiting: room - missing - waiting)
        models, begun_at = [fleet.received[client] for client in clients.tolist()], fleet.begun_at[clients]
        order = self._order(fleet.work, clients, fleet.number[clients], models, begun_at, ahead=ahead)
        for rows, payload, _, _ in self._engine.train(order, fleet.version[clients].tolist(), keep_params=False):
            fleet.bring(clients[np.asarray(rows)], payload, range(len(rows)))

    def _order(
        self,
        work: LocalSGD,
        clients: IntArray,
        batches: IntArray,
        received: Tensor | list[Tensor],
        starts_at: IntArray,
        options: dict[str, FloatArray] | None = None,
        state: Named | None = None,
        ahead: bool = False,
    ) -> Jobs:
        """Say to the engine what these clients do, who `received` a model for each or one for all."""
        models: dict[int, tuple[int, Tensor]] = {}
        if isinstance(received, Tensor):
            models[0], rows = (0, received), np.zeros(len(clients), np.int64)
        else:
            rows = np.array([models.setdefault(id(model), (len(models), model))[0] for model in received], np.int64)
        keys, samples = (
            random.fold(self._work_keys[clients], batches),
            self.population.samples(clients, starts_at / self._ticks),
        )
        distinct = [model for _, model in models.values()]
        return Jobs(work, keys, distinct, rows, samples, options or {}, state or {}, ahead, clients)

    @cached_property
    def _work_keys(self) -> IntArray:
        """Key each client's work `[N]`; with the number of a job that is its randomness."""
        return random.key(self.seed, "local work", self.population.ids)

    def _attach(self, jobs: list[Job], payload: Block, state: Block | None = None, kept: Block | None = None) -> None:
        """Give each job its row of what was trained."""
        for row, job in enumerate(jobs):
            job.result = (payload, row)
            job.state = None if state is None else (state, row)
            job.local = None if kept is None else (kept, row)
        if self._unsettled:
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
            self._store.put(clients, {name: values[rows] for name, values in state.items()})

    def _compact(self) -> None:
        """Let go of blocks of which most rows have been used: what is kept is at most twice what is still waited for.

        Between two rounds nobody else refers to a block, so no sum ever meets its rows in two places."""
        waiting = [*self._in_flight.values(), *self._inbox, *self._held.values()]
        for kind in ("result", "state", "local") if waiting else ():
            trained = [place for place in map(attrgetter(kind), waiting) if place is not None]
            left = Counter([id(block) for block, _ in trained])
            for name, block in {id(block): block for block, _ in trained}.items():
                if 2 * left[name] < block.rows:
                    jobs = {place[1]: job for job in waiting if (place := getattr(job, kind)) and place[0] is block}
                    fewer = block.take(sorted(jobs))
                    for row, before in enumerate(sorted(jobs)):
                        setattr(jobs[before], kind, (fewer, row))

    def settle(self) -> None:
        self._restart()
        if self._trained:
            self._compact()
            self._trained = False
        if self._unsettled:
            self._ensure_trained(list(self._unsettled.values()))

    @property
    def _threads(self) -> int:
        return self._engine.server_threads

    def run(self) -> Server:
        try:
            return super().run()
        finally:
            self._engine.close()

    # -- state ------------------------------------------------------------------------------------------------

    @property
    def _with_memory(self) -> dict[str, Adversary | Behaviour]:
        """Give the parts of the population that remember this run, by name."""
        parts = {"adversary": self.adversary, "behaviour": self.behaviour}
        return {name: part for name, part in parts.items() if part is not None}

    def save(self) -> tuple[Facts, Named]:
        facts, tensors = super().save()
        for name, part in self._with_memory.items():
            facts[name], own = save_state(part)
            tensors |= nest(name, own)
        return facts, tensors

    def load(self, facts: Facts, tensors: Named) -> None:
        super().load(facts, tensors)
        for name, part in self._with_memory.items():
            load_state(part, facts[name], unnest(name, tensors), self.plan.device)
