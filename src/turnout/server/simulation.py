"""The server in virtual time: an event queue, and local work computed only when its result is needed.

An in-flight job depends only on the model it received, so nothing is trained until an algorithm looks at an update;
then *all* in-flight jobs are trained with it in one call. Asynchronous methods batch as well as synchronous ones.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout import random
from turnout.cohort.train import Jobs
from turnout.errors import UserError
from turnout.local import transforms
from turnout.local.sgd import LocalSGD, Named
from turnout.observe.observer import Observer
from turnout.population.adversary import Adversary
from turnout.population.behaviour import Behaviour
from turnout.population.durations import Durations
from turnout.server import privacy
from turnout.server.dispatch import FOREVER, Dispatch, Invitation
from turnout.server.server import Among, Keep, ModelChoice, OnlineSet, Server
from turnout.server.state import Facts, load_jobs, load_state, nest, save_jobs, save_state, unnest
from turnout.server.updates import ARRIVED, CANCELLED, Failures, Job, Updates

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Simulation(Server):
    """`Server` over simulated clients."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ticks = self.population.ticks_per_second
        self._dispatch = Dispatch(self.population, self.task)
        self.adversary = copy.deepcopy(self.population.adversary)  # with a memory of this run
        if self.adversary is not None:
            self.adversary.begin(self.population.size)
        self.behaviour = copy.deepcopy(self.population.behaviour)
        if self.behaviour is not None:
            self.behaviour.begin(self.population.size, self.population.seed)
        self._hides = privacy.hides(self)
        self._clock = 0  # ticks
        self._events: list[tuple[int, int, int]] = []  # heap of (tick, client, job number)
        self._in_flight: dict[int, Job] = {}  # by client
        self._heard = self._standing = 0  # of those in flight: who will be heard of, who has a standing invitation
        self._busy = np.zeros(self.population.size, bool)  # whose job is in flight
        self._inbox: list[Job] = []  # arrived, in order
        self._failures: list[Job] = []  # learnt, not yet told
        self._held: dict[int, Job] = {}  # finished, vectors still with the client
        self._kept: dict[int, Job] = {}  # last job of each client, where clients go on from what they have
        self._restarting: list[Job] = []  # delivered under a standing invitation, to start again at this very tick
        self._unsettled: dict[int, Job] = {}  # by client: ended, but the client's new state is not known yet
        self._trained = False  # since the last round closed
        self._numbers = np.zeros(self.population.size, np.int64)  # jobs begun by each client
        self._arrival_hooks = [o for o in self.observers if type(o).on_arrival is not Observer.on_arrival]

    @property
    def now(self) -> float:
        return self._clock / self._ticks

    def online(self) -> OnlineSet:
        return OnlineSet(self.population, self.version, self.now, self._busy)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def durations(self, work: LocalSGD) -> Durations:
        return self._dispatch.durations(work)

    def push_seconds(self, copies: int, work: LocalSGD) -> float:
        return self.population.links.push_seconds(copies, self._dispatch.bytes_down(work))

    def backhaul_seconds(self, edges: int, work: LocalSGD) -> float:
        return self.population.links.backhaul_seconds(edges, self._dispatch.bytes_down(work))

    # -- inviting ---------------------------------------------------------------------------------------------

    def invite(
        self,
        clients: ArrayLike,
        work: LocalSGD,
        model: ModelChoice = None,
        *,
        hold: bool = False,
        again: bool = False,
        among: Among | None = None,
    ) -> None:
        ids = np.atleast_1d(np.asarray(clients, np.int64))
        if not len(ids):
            return
        self._check_invited(ids)
        if work.transform:
            self._check_transform(work, among)
        if self._hides:
            privacy.check_alone(work, self.task)
        if self._unsettled:
            self._train([self._unsettled[client] for client in ids.tolist() if client in self._unsettled])
        work, options = _split(work, len(ids))
        jobs = self._new_jobs(ids, work, options, model, hold, again, among)
        if self.behaviour is not None:
            self._lie(self.behaviour, jobs)
        if self.adversary is not None and "delta" in work.payload_shapes(self.task):
            self._silence(self.adversary, jobs)
        self._busy[ids] = True
        for job in jobs:
            self._enter_flight(job)
            if job.heard:
                heapq.heappush(self._events, (job.ends_at, job.client, job.number))
        self._tally["invited"] += len(jobs)
        for observer in self.observers:
            observer.on_invite(self, jobs)

    def _check_invited(self, ids: IntArray) -> None:
        if ids.min() < 0 or ids.max() >= self.population.size:
            raise UserError(f"invite: client {ids.min() if ids.min() < 0 else ids.max()} is not in the population")
        if len(ids) > 1 and len(np.unique(ids)) < len(ids):
            raise UserError("invite: a client is named twice; a client works on one job at a time")
        busy = ids[self._busy[ids]]
        if len(busy):
            raise UserError(f"invite: client {busy[0]} has a job in flight; wait for it or cancel it first")

    def _check_transform(self, work: LocalSGD, among: Among | None) -> None:
        transforms.check(work, self.task)
        if among is not None:
            raise UserError("local.transform: clients of this algorithm exchange models; transforms are for updates")
        if self.algorithm.clients_keep == "models":
            raise UserError(
                "local.transform: clients of this algorithm go on from models of their own, which the server would no "
                "longer know"
            )

    def _new_jobs(
        self,
        ids: IntArray,
        work: LocalSGD,
        options: dict[str, FloatArray],
        model: ModelChoice,
        hold: bool,
        again: bool,
        among: Among | None,
    ) -> list[Job]:
        numbers = self._numbers[ids]
        self._numbers[ids] += 1
        received, versions, batches, done = self._received(ids, numbers, model)
        keep = model if isinstance(model, Keep) else None
        invitation = Invitation(
            ids, numbers, work, options, received, versions, batches, done, keep, hold, again, among
        )
        return self._dispatch.jobs(invitation, self._clock, self.version)

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

    def _received(
        self, ids: IntArray, numbers: IntArray, model: ModelChoice
    ) -> tuple[Sequence[Tensor], Sequence[int], IntArray, FloatArray]:
        """What each job starts from: model, version, the key of its batches, and the share of it already done."""
        none_done = np.zeros(len(ids))
        if isinstance(model, Keep):
            if not model.current:
                return self._continued(ids, numbers)
            model = None
        if isinstance(model, tuple):
            rows, group = model[0], np.asarray(model[1], np.int64)
            if rows.ndim != 2 or rows.shape[1] != len(self.model) or group.shape != ids.shape:
                raise UserError("invite: model=([G, P], group) needs G models of the task's size and a group a client")
            used, place = np.unique(group, return_inverse=True)
            copies = rows[torch.as_tensor(used, device=rows.device)].unbind()
            return [copies[i] for i in place.tolist()], [self.version] * len(ids), numbers, none_done
        vector = self.model if model is None else model
        if vector.shape != self.model.shape:
            raise UserError(f"invite: a model of shape {tuple(self.model.shape)} is needed, not {tuple(vector.shape)}")
        sent = vector if model is None else vector.clone()  # the caller may go on changing its own
        return [sent] * len(ids), [self.version] * len(ids), numbers, none_done

    def keeps(self, clients: ArrayLike) -> NDArray[np.bool_]:
        return np.array([client in self._kept for client in np.asarray(clients, np.int64).tolist()], bool)

    def _continued(
        self, ids: IntArray, numbers: IntArray
    ) -> tuple[Sequence[Tensor], Sequence[int], IntArray, FloatArray]:
        if self.algorithm.clients_keep == "nothing":
            raise UserError("invite: KEEP needs an algorithm that declares clients_keep, unfinished or models")
        missing = ids[~self.keeps(ids)]
        if len(missing):
            raise UserError(f"invite: client {missing[0]} has nothing to go on from yet")
        last = [self._kept[client] for client in ids.tolist()]
        self._train([job for job in last if job.outcome == ARRIVED and job.local is None])
        models, batches, done = [], numbers.copy(), np.zeros(len(ids))
        for i, job in enumerate(last):
            if job.outcome == ARRIVED:
                assert job.local is not None
                models.append(job.local[0]["params"][job.local[1]])
            else:  # an interrupted job goes on where it stopped
                models.append(job.received)
                batches[i], done[i] = job.batches, job.progress
        return models, [job.version for job in last], batches, done

    # -- waiting ----------------------------------------------------------------------------------------------

    def wait(self, count: int | None = None, of: ArrayLike | None = None, seconds: float | None = None) -> Updates:
        wanted = None if of is None else set(np.atleast_1d(np.asarray(of, np.int64)).tolist())
        if seconds is not None and not seconds >= 0:
            raise UserError(f"wait: {seconds} seconds; it must be at least 0")
        limited = seconds is not None and seconds * self._ticks < FOREVER
        close = self._clock + int(self._dispatch.to_ticks(np.asarray(seconds))) if limited else None
        timer = count is None and limited
        if wanted is None:
            ready, expected, alive, standing = len(self._inbox), len(self._in_flight), self._heard, self._standing
        else:
            awaited = [self._in_flight[client] for client in wanted if client in self._in_flight]
            ready = sum(job.client in wanted for job in self._inbox)
            expected, alive = len(awaited), sum(job.heard for job in awaited)
            standing = sum(job.again for job in awaited)
        if count is None and not limited and standing:
            raise UserError("wait: a standing invitation never ends; say how many updates or how long to wait for")
        while count is None or ready < count:
            for job in self._restart():
                if wanted is None or job.client in wanted:
                    expected, alive = expected + 1, alive + job.heard
            if not timer and not expected:
                break
            if close is None and not alive:
                raise UserError(
                    f"wait: {expected} jobs will never be heard of again; "
                    "set population.detection to oracle or heartbeat, or give the wait a time limit"
                )
            if not self._events or (close is not None and self._events[0][0] > close):
                assert close is not None
                self._clock = max(self._clock, close)
                break
            ended = self._next_event()
            if ended is not None and (wanted is None or ended.client in wanted):
                ready += ended.outcome == ARRIVED
                expected, alive = expected - 1, alive - 1
        taken = self._take(self._inbox, wanted, count)
        failed = self._take(self._failures, wanted, None)
        for job in taken:
            if job.hold:
                self._held[job.client] = job
        return self._updates(taken, Failures(failed))

    @staticmethod
    def _take(waiting: list[Job], wanted: set[int] | None, count: int | None) -> list[Job]:
        """Remove the first `count` wanted jobs from the list."""
        taken: list[Job] = []
        left: list[Job] = []
        for job in waiting:
            fits = (wanted is None or job.client in wanted) and (count is None or len(taken) < count)
            (taken if fits else left).append(job)
        waiting[:] = left
        return taken

    def _updates(self, jobs: Iterable[Job], failed: Failures | None = None) -> Updates:
        return Updates(list(jobs), self._train, self.version, self._ticks, self.model, failed)

    def _next_event(self) -> Job | None:
        """Advance to the next event; the job that ended, unless it was cancelled before."""
        tick, client, number = heapq.heappop(self._events)
        job = self._in_flight.get(client)
        if job is None or job.number != number:  # cancelled meanwhile
            return None
        self._clock = max(self._clock, tick)
        self._finish(job)
        return job

    def _finish(self, job: Job) -> None:
        """A job has come to its end: into the inbox or among the failures with it."""
        self._leave_flight(job)
        success = job.outcome == ARRIVED
        (self._inbox if success else self._failures).append(job)
        if success and job.work.stored_shapes(self.task):
            self._unsettled[job.client] = job
            if job.state is not None:
                self._commit([job])
        for observer in self._arrival_hooks:
            observer.on_arrival(self, job)
        if job.again and success:
            self._restarting.append(job)

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

    def _restart(self) -> list[Job]:
        """Start those again who have a standing invitation and have delivered: not before the algorithm has acted on
        what they brought, so that the last of a round receives the new model."""
        restarted = []
        while self._restarting:
            job = self._restarting.pop(0)
            work = job.work.bind({name: np.full(1, value) for name, value in job.options.items()})
            self.invite([job.client], work, hold=job.hold, again=True)
            restarted.append(self._in_flight[job.client])
        return restarted

    def _enter_flight(self, job: Job) -> None:
        self._in_flight[job.client] = job
        self._heard += job.heard
        self._standing += job.again

    def _leave_flight(self, job: Job) -> None:
        """A job is over: count it, and remember what its client has."""
        del self._in_flight[job.client]
        self._heard -= job.heard
        self._standing -= job.again
        self._busy[job.client] = False
        kept = self.algorithm.clients_keep
        if job.has_model and (kept == "models" or (kept == "unfinished" and job.outcome != ARRIVED)):
            self._kept[job.client] = job
        elif job.outcome == ARRIVED:
            self._kept.pop(job.client, None)
        self._end(job)

    def cancel(self, clients: ArrayLike) -> Failures:
        self._restart()
        stopped: list[Job] = []
        for client in np.atleast_1d(np.asarray(clients, np.int64)).tolist():
            self._held.pop(client, None)
            job = self._in_flight.get(client)
            if job is None:
                continue
            elapsed = max(0, self._clock - job.starts_at) / self._ticks
            down, compute, up = job.seconds
            if elapsed < down + compute + up:
                stopped.append(job)
            got, worked = min(elapsed, down), min(max(0.0, elapsed - down), compute)
            sent = min(max(0.0, elapsed - down - compute), up)
            job.seconds = (got, worked, sent)
            job.bytes = (
                round(job.bytes[0] * (got / down if down else 1)),
                round(job.bytes[1] * (sent / up if up else 0)),
            )
            job.progress = job.done + (job.progress - job.done) * (worked / compute if compute else 1)
            job.has_model &= elapsed >= down
            job.outcome, job.ends_at = CANCELLED, self._clock
            job.result = job.state = job.local = None
            self._leave_flight(job)
        return Failures(stopped)

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
        if work.scheduled:
            options["lr"] = options.get("lr", work.lr) * work.lr_factor([job.version for job in jobs])
        keys = random.key(self.seed, "local work", clients, batches)
        trained = self.cohort.train(
            Jobs(
                work,
                keys,
                torch.stack([model for _, model in models.values()]),
                received,
                self.population.samples(clients, np.array([job.starts_at for job in jobs]) / self._ticks),
                options,
                self.store.get(work.state_shapes(self.task), clients),
            ),
            keep_params=self.algorithm.clients_keep == "models",
        )
        payload, state = trained.payload, trained.state
        if work.transform and "delta" in payload:
            residual = self.store.get(transforms.state_shapes(work.transform, self.task), clients).get("residual")
            coins = torch.as_tensor(keys, device=self.plan.device)
            delta, residual = transforms.apply(
                work.transform, payload["delta"], coins, residual, work.update_numbers(self.task)
            )
            payload, state = payload | {"delta": delta}, state if residual is None else state | {"residual": residual}
        self._attach(jobs, payload, state, trained.local)

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
        places = {
            "in_flight": list(self._in_flight.values()),
            "inbox": self._inbox,
            "failures": self._failures,
            "held": list(self._held.values()),
            "kept": list(self._kept.values()),
            "ended": self._ended,
            "record": self._record.jobs,
        }
        every = {id(job): job for jobs in places.values() for job in jobs}
        position = {name: number for number, name in enumerate(every)}
        jobs, job_tensors = save_jobs(list(every.values()))
        facts["clock"], facts["jobs"] = self._clock, jobs
        facts["places"] = {place: [position[id(job)] for job in jobs] for place, jobs in places.items()}
        if self.adversary is not None:
            facts["adversary"], adversary_tensors = save_state(self.adversary)
            tensors |= nest("adversary", adversary_tensors)
        if self.behaviour is not None:
            facts["behaviour"], behaviour_tensors = save_state(self.behaviour)
            tensors |= nest("behaviour", behaviour_tensors)
        return facts, tensors | nest("jobs", job_tensors) | {"numbers": torch.as_tensor(self._numbers)}

    def load(self, facts: Facts, tensors: Named) -> None:
        self._clock = facts["clock"]
        super().load(facts, tensors)
        self._numbers = tensors["numbers"].numpy().copy()
        if self.adversary is not None:
            load_state(self.adversary, facts["adversary"], unnest("adversary", tensors), self.plan.device)
        if self.behaviour is not None:
            load_state(self.behaviour, facts["behaviour"], unnest("behaviour", tensors), self.plan.device)
        every = load_jobs(facts["jobs"], unnest("jobs", tensors), self.plan.device)
        places = {place: [every[i] for i in positions] for place, positions in facts["places"].items()}
        self._inbox, self._failures, self._ended = places["inbox"], places["failures"], places["ended"]
        self._record.jobs = places["record"]
        self._held, self._kept = ({job.client: job for job in places[place]} for place in ("held", "kept"))
        for job in places["in_flight"]:
            self._enter_flight(job)
        self._busy[list(self._in_flight)] = True
        self._events = [(job.ends_at, job.client, job.number) for job in self._in_flight.values() if job.heard]
        heapq.heapify(self._events)
        self._share_tensors(every)

    def _share_tensors(self, jobs: list[Job]) -> None:
        """What was one tensor before the checkpoint is one again: jobs are grouped by the tensors they share."""
        known = [self.model, *(v for v in vars(self.algorithm).values() if isinstance(v, Tensor))]
        works = {id(job.work): job.work for job in jobs}
        for work in works.values():
            for part in fields(work):
                value = getattr(work, part.name)
                if isinstance(value, Tensor):
                    twin = next((tensor for tensor in known if torch.equal(tensor, value)), value)
                    object.__setattr__(work, part.name, twin)
        for job in jobs:
            if torch.equal(job.received, self.model):
                job.received = self.model


def _split(work: LocalSGD, count: int) -> tuple[LocalSGD, dict[str, FloatArray]]:
    """Separate the numbers that are the same for all from those given as arrays over the invited."""
    options = {}
    for name, value in vars(work).items():
        if isinstance(value, np.ndarray):
            if value.shape != (count,):
                raise UserError(f"local.{name}: {value.size} values for {count} invited clients")
            options[name] = np.asarray(value, np.float64)
    for name in ("batch_size", "batching"):
        if name in options:
            raise UserError(f"local.{name}: it must be the same for all clients of an invitation")
    return (work.bind(dict.fromkeys(options, 0)) if options else work), options


def _signature(work: LocalSGD) -> tuple[Any, ...]:
    """Equal for works that compute the same thing: numbers by value, tensors by identity."""
    values = (getattr(work, part.name) for part in fields(work))
    return type(work), *(id(value) if isinstance(value, Tensor) else value for value in values)
