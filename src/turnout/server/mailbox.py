"""Jobs and their updates on the way: what a server keeps of them, whether clients are simulated or real.

Every job ends with an event at a tick of the clock. `Mailbox` waits for events and keeps who is at work, what has
arrived, what has failed and what clients hold or go on from. A subclass says how a job begins (`_begin`), whether
anything happens by a tick (`_due`), and where results come from (`_ensure_trained`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.local import transforms
from turnout.local.job import check_looked_after, check_names
from turnout.local.python_work import find_functions
from turnout.local.sgd import LocalSGD, Named
from turnout.server import ensembles, privacy
from turnout.server.dispatch import FOREVER, Invitation
from turnout.server.flight import Waiting
from turnout.server.jobs import ARRIVED, CANCELLED, CRASHED, Crew, Failures, Job, Some
from turnout.server.observer import Observer
from turnout.server.server import Among, Keep, ModelChoice, Server
from turnout.server.state import Facts, load_jobs, nest, save_jobs, share_tensors, unnest
from turnout.server.updates import Updates

Start = tuple[Sequence[Tensor], Sequence[int], IntArray, FloatArray]  # models, versions, keys of batches, shares done
MOST_CRASHES = 3  # in a row, after which a standing invitation rests until the wait is over


class Mailbox(Server):
    """`Server` with jobs in flight, an inbox and a queue of events."""

    _acts_on_arrival: ClassVar[bool] = False  # whether something happens at the end of each job, at its time

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._hides = privacy.hides(self)
        self._inbox: list[Job] = []  # arrived, in order
        self._failures: list[Job] = []  # learnt, not yet told
        self._held: dict[int, Job] = {}  # finished, vectors still with the client
        self._kept: dict[int, Job] = {}  # last job of each client, where clients go on from what they have
        self._restarting: list[Job] = []  # ended under a standing invitation, to start again at this very tick
        self._crashes: dict[int, int] = {}  # of clients with a standing invitation: in a row, in this wait
        self._numbers = np.zeros(self.population.size, np.int64)  # jobs begun by each client
        self._arrival_hooks = [o for o in self.observers if type(o).on_arrival is not Observer.on_arrival]
        self._one_by_one = self._acts_on_arrival or bool(self._arrival_hooks)

    # -- what a subclass knows --------------------------------------------------------------------------------

    def _begin(self, invitation: Invitation) -> Sequence[Job]:
        """Begin the jobs of an invitation; a crew only where they are `_alone`."""
        raise NotImplementedError

    def _make_ready(self, ids: IntArray) -> None:
        """Finish what must not be left open at clients that are to be invited."""

    def _due(self, close: int | None) -> bool:
        """Tell whether an event comes by that tick (None: ever); it is then the first of the queue."""
        raise NotImplementedError

    def _ensure_trained(self, needed: Sequence[Job]) -> None:
        """Train these jobs, unless that was done: afterwards each has its result."""
        raise NotImplementedError

    def _delivered(self, jobs: Sequence[Job]) -> None:
        """Act on updates that have just arrived."""

    def _stop(self, job: Job) -> bool:
        """Cut a job short at what it has cost so far; tell whether its client was still at work."""
        raise NotImplementedError

    # -- inviting ---------------------------------------------------------------------------------------------

    @property
    def _in_flight(self) -> dict[int, Job]:
        return self._flight.jobs

    @property
    def _alone(self) -> bool:
        """Tell whether jobs that begin now can stay together until all have arrived, if nothing happens to them."""
        others = len(self._flight) or self._inbox or self._failures or self._restarting
        return not others and not self._one_by_one and self.algorithm.clients_keep == "nothing"

    def _invite(
        self, ids: IntArray, work: LocalSGD, model: ModelChoice, hold: bool, again: bool, among: Among | None
    ) -> None:
        self._check_invited(ids)
        if work.modifiers:
            work = self.held.sent(self, work, among)
            self._check_modifiers(work, among)
        if self.task.tail is not None:
            check_looked_after(work, self.task)
        if self._hides:
            privacy.check_alone(work, self)
        self._make_ready(ids)
        work = ensembles.placed(self, work, self._numbers, len(ids))
        work, options = _split(work, len(ids))
        numbers = self._numbers[ids]
        self._numbers[ids] = numbers + 1
        keep, shared = model if isinstance(model, Keep) else None, not isinstance(model, tuple | Keep)
        start = self._received(ids, numbers, model)
        jobs = self._begin(Invitation(ids, numbers, work, options, *start, keep, hold, again, among, shared))
        self._flight.enter(ids, jobs)
        self._rounds.tally["invited"] += len(jobs)
        for observer in self.observers:
            observer.on_invite(self, jobs)

    def _check_invited(self, ids: IntArray) -> None:
        ordered = np.sort(ids) if len(ids) > 1 else ids
        lowest, highest = ordered[0], ordered[-1]
        if lowest < 0 or highest >= self.population.size:
            raise UserError(f"invite: client {lowest if lowest < 0 else highest} is not in the population")
        if len(ids) > 1 and (ordered[1:] == ordered[:-1]).any():
            raise UserError("invite: a client is named twice; a client works on one job at a time")
        if self.in_flight and len(busy := ids[self._flight.busy[ids]]):
            raise UserError(f"invite: client {busy[0]} has a job in flight; wait for it or cancel it first")

    def _check_modifiers(self, work: LocalSGD, among: Among | None) -> None:
        check_names(work, self.task)
        if not work.transforms:
            return
        transforms.check(work, self.task)
        if among is not None:
            raise UserError("local.modifiers: clients of this algorithm exchange models; transforms are for updates")
        if self.algorithm.clients_keep == "models":
            raise UserError(
                "local.modifiers: clients of this algorithm go on from models of their own, which the server would no "
                "longer know"
            )

    def _received(self, ids: IntArray, numbers: IntArray, model: ModelChoice) -> Start:
        """Find what each job starts from."""
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

    def _continued(self, ids: IntArray, numbers: IntArray) -> Start:
        if self.algorithm.clients_keep == "nothing":
            raise UserError("invite: KEEP needs an algorithm that declares clients_keep, unfinished or models")
        missing = ids[~self.keeps(ids)]
        if len(missing):
            raise UserError(f"invite: client {missing[0]} has nothing to go on from yet")
        last = [self._kept[client] for client in ids.tolist()]
        self._ensure_trained([job for job in last if job.outcome == ARRIVED and job.local is None])
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
        clients = None if of is None else set(np.atleast_1d(np.asarray(of, np.int64)).tolist())
        wait = Waiting(count, clients, self._tick_in(seconds))
        self._crashes.clear()
        if (whole := self._arrived_whole(wait)) is not None:
            return self._handed(whole)
        if (parts := self._ended_together(wait)) is not None:
            return self._handed(parts[0], Failures(parts[1]))
        wait.begin(self._flight, self._inbox)
        while not wait.enough():
            wait.add_begun(self._restart())
            if wait.in_vain():
                break
            if not self._due(wait.close):
                assert wait.close is not None
                self._clock = max(self._clock, wait.close)
                break
            wait.add_ended(self._next_events(wait.least(len(self._flight.queue)), wait.close))
        taken, failed = wait.take(self._inbox, count), wait.take(self._failures)
        self._held |= {job.client: job for job in taken if job.hold}
        return self._handed(taken, Failures(failed))

    def _tick_in(self, seconds: float | None) -> int | None:
        """Find the tick at which a wait of so many seconds ends; None: there is no such limit."""
        if seconds is None:
            return None
        if not seconds >= 0:
            raise UserError(f"wait: {seconds} seconds; it must be at least 0")
        ticks = seconds * self._ticks
        return self._clock + round(ticks) if ticks < FOREVER else None

    def _arrived_whole(self, wait: Waiting) -> Crew | None:
        """Take the crew in flight, if the wait is for all of it and ends with its last."""
        if wait.of is not None or wait.timer or (crew := self._flight.take_whole(wait.count, wait.close)) is None:
            return None
        self._clock = max(self._clock, int(crew.ends_at[-1]))
        self._rounds.add_ended(crew)
        return crew

    def _ended_together(self, wait: Waiting) -> tuple[Some, Some] | None:
        """Take what the wait is for, and who has failed meanwhile, if all jobs in flight are columns."""
        if wait.of is not None or self._inbox or self._failures or self._restarting:
            return None
        if (wave := self._flight.take_wave(wait.count, wait.close)) is None:
            return None
        last = wave.columns.ends_at[-1:].max(initial=self._clock)
        self._clock = int(last) if wait.close is None else max(self._clock, wait.close)
        self._rounds.add_ended(wave)
        arrived = wave.columns.outcome == ARRIVED
        return Some(wave, np.flatnonzero(arrived)), Some(wave, np.flatnonzero(~arrived))

    def _updates(self, jobs: Iterable[Job], failed: Failures | None = None) -> Updates:
        return Updates(jobs, self._ensure_trained, self.version, self._ticks, self.model, failed)

    def _handed(self, jobs: Iterable[Job], failed: Failures | None = None) -> Updates:
        """Give jobs to the algorithm: with noise to hide single updates, nothing to look at."""
        return self.held.take_in(self, self._updates(jobs, failed)).sealed(self.privacy is not None)

    def _next_events(self, most: int = 1, close: int | None = None) -> list[Job]:
        """Advance to the next event, or through so many where nothing happens in between; the jobs that ended, without
        those cancelled before."""
        if self._one_by_one or self._flight.standing:
            most = 1
        ended = self._flight.take_ended(most, close)
        if ended:
            self._clock = max(self._clock, ended[-1].ends_at)
            self._finish(ended)
        return ended

    def _finish(self, jobs: list[Job]) -> None:
        """Put jobs that have come to their end into the inbox or among the failures."""
        self._leave_flight(jobs)
        arrived = [job for job in jobs if job.outcome == ARRIVED]
        for job in jobs:
            if job.again:
                job.again = self._stands(job)
        self._inbox += arrived
        if len(arrived) < len(jobs):
            self._failures += [job for job in jobs if job.outcome != ARRIVED]
        self._delivered(arrived)
        for job in jobs if self._arrival_hooks else ():
            for observer in self._arrival_hooks:
                observer.on_arrival(self, job)
        self._restarting += [job for job in jobs if job.again]

    def _stands(self, job: Job) -> bool:
        """Tell whether a standing invitation outlives a job: that arrived, or crashed and not too often in a row."""
        if job.outcome != CRASHED:
            self._crashes.pop(job.client, None)
            return job.outcome == ARRIVED
        self._crashes[job.client] = self._crashes.get(job.client, 0) + 1
        return self.algorithm.restarts_crashed and self._crashes[job.client] <= MOST_CRASHES

    def _restart(self) -> list[Job]:
        """Start those again who have a standing invitation and have ended a job: not before the algorithm has acted on
        what they brought, so that the last of a round receives the new model."""
        restarted = []
        while self._restarting:
            job = self._restarting.pop(0)
            work = job.work.bind({name: np.full(1, value) for name, value in job.options.items()})
            self.invite([job.client], work, hold=job.hold, again=True)
            restarted.append(self._in_flight[job.client])
        return restarted

    def _leave_flight(self, jobs: list[Job]) -> None:
        """Count jobs that are over, and remember what their clients have."""
        self._flight.leave(jobs)
        kept = self.algorithm.clients_keep
        if kept != "nothing":
            for job in jobs:
                if job.has_model and (kept == "models" or job.outcome != ARRIVED):
                    self._kept[job.client] = job
                elif job.outcome == ARRIVED:
                    self._kept.pop(job.client, None)
        self._rounds.add_ended(jobs)

    def cancel(self, clients: ArrayLike) -> Failures:
        self._restart()
        if not self.in_flight and not self._held:
            return Failures()
        stopped: list[Job] = []
        for client in np.atleast_1d(np.asarray(clients, np.int64)).tolist():
            self._held.pop(client, None)
            job = self._in_flight.get(client)
            if job is None:
                continue
            if self._stop(job):
                stopped.append(job)
            job.outcome, job.ends_at = CANCELLED, self._clock
            job.result = job.state = job.local = None
            self._leave_flight([job])
        return Failures(stopped)

    def settle(self) -> None:
        self._restart()

    # -- state ------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Facts, Named]:
        facts, tensors = super().save()
        places = {
            "in_flight": list(self._in_flight.values()),
            "inbox": self._inbox,
            "failures": self._failures,
            "held": list(self._held.values()),
            "kept": list(self._kept.values()),
            "ended": list(chain(*self._rounds.ended)),
            "used": [job for updates, _, _ in self._rounds.used for job in updates.jobs],
        }
        every = {id(job): job for jobs in places.values() for job in jobs}
        position = {name: number for number, name in enumerate(every)}
        jobs, job_tensors = save_jobs(list(every.values()))
        facts["clock"], facts["jobs"] = self._clock, jobs
        facts["places"] = {place: [position[id(job)] for job in jobs] for place, jobs in places.items()}
        facts["used"] = [[weights.tolist(), version] for _, weights, version in self._rounds.used]
        return facts, tensors | nest("jobs", job_tensors) | {"numbers": torch.as_tensor(self._numbers)}

    def load(self, facts: Facts, tensors: Named) -> None:
        self._clock = facts["clock"]
        super().load(facts, tensors)
        self._numbers = tensors["numbers"].numpy().copy()
        every = load_jobs(facts["jobs"], unnest("jobs", tensors), self.plan.device)
        find_functions([job.work for job in every], self.algorithm)
        places = {place: [every[i] for i in positions] for place, positions in facts["places"].items()}
        self._inbox, self._failures, self._rounds.ended = places["inbox"], places["failures"], [places["ended"]]
        used = iter(places["used"])
        self._rounds.used = [
            (self._updates(islice(used, len(weights))), np.array(weights), version)
            for weights, version in facts["used"]
        ]
        self._held, self._kept = ({job.client: job for job in places[place]} for place in ("held", "kept"))
        self._flight.enter([job.client for job in places["in_flight"]], places["in_flight"])
        own = [*vars(self.algorithm).values(), *self.held.tensors.values()]
        for work in [value for value in own if isinstance(value, LocalSGD)]:
            own += [value for part in work.parts.values() for value in vars(part).values()]
        share_tensors(every, [self.model, *(value for value in own if isinstance(value, Tensor))])


def _split(work: LocalSGD, count: int) -> tuple[LocalSGD, dict[str, FloatArray]]:
    """Separate the numbers that are the same for all from those given as arrays over the invited."""
    given = {
        before + name: value
        for before, part in (work.parts if work.modifiers else {"": work}).items()
        for name, value in vars(part).items()
        if isinstance(value, np.ndarray)
    }
    if not given:
        return work, {}
    for name, value in given.items():
        if value.shape != (count,):
            raise UserError(f"local.{name}: {value.size} values for {count} invited clients")
    for name in ("batch_size", "batching", *(["momentum"] if work.keeps else [])):  # a speed that is kept has one shape
        if name in given:
            raise UserError(f"local.{name}: it must be the same for all clients of an invitation")
    return work.bind(dict.fromkeys(given, 0)), {name: value.astype(np.float64) for name, value in given.items()}
