"""The rounds of a server: what is counted in one, and what is recorded of it when it closes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from turnout.core.random import FloatArray, IntArray
from turnout.local.sgd import Named
from turnout.server.best import Best
from turnout.server.jobs import ARRIVED, CANCELLED, Job, Some, Wave, mark_logged, together
from turnout.server.observer import Round
from turnout.server.state import Facts, unnest
from turnout.server.updates import Updates

if TYPE_CHECKING:
    from turnout.server.server import Server
    from turnout.server.stretch import Stretch


class Rounds:
    """Open, count and close rounds. It is told which server's: an object that knew would keep that alive."""

    def __init__(self) -> None:
        self.open = False  # one is under way
        self.record = Round(0, 0.0)
        self.used: list[tuple[Updates, FloatArray, int]] = []  # with their weights, and the version they changed
        self.ended: list[Sequence[Job]] = []
        self.tally = dict.fromkeys(("invited", "arrived", "failed", "cancelled", "bytes_down", "bytes_up"), 0)
        self.notes: dict[str, float] = {}  # what the algorithm says of it
        self.evaluated_at = 0.0  # seconds, of the last evaluation
        self.best = Best()

    def run(self, server: Server) -> Iterator[int]:
        """Yield the version before each round, until the stop rule; close, checkpoint and open between two."""
        while True:
            server.settle()
            if self.open:
                self.close(server)
            if server.checkpoints is not None and server.checkpoints.due(server.version):
                for observer in server.observers:
                    observer.on_checkpoint(server)
                server.checkpoints.save(server)
            server.stopped = server.stopped or server.stopping.reason(server.version, server.now, server.measures)
            server.stopped = server.stopped or self.best.reason(server.stopping)
            if server.stopped:
                return
            self.open = True
            yield server.version

    def add_ended(self, jobs: Sequence[Job]) -> None:
        """Count jobs that have just ended, by outcome, and their bytes."""
        self.ended.append(jobs)
        tally, crew = self.tally, together(jobs)
        if crew is not None:
            tally["arrived"] += len(crew)
            tally["bytes_down"] += crew.bytes[0] * len(crew)
            tally["bytes_up"] += crew.bytes[1] * len(crew)
            return
        if type(jobs) is Wave and jobs.together:
            columns = jobs.columns
            arrived = int(np.count_nonzero(columns.outcome == ARRIVED))
            tally["arrived"] += arrived
            tally["failed"] += len(jobs) - arrived
            tally["bytes_down"] += int(columns.bytes_down.sum())
            tally["bytes_up"] += int(columns.bytes_up.sum())
            return
        outcomes = [job.outcome for job in jobs]
        arrived, cancelled = outcomes.count(ARRIVED), outcomes.count(CANCELLED)
        tally["arrived"] += arrived
        tally["cancelled"] += cancelled
        tally["failed"] += len(jobs) - arrived - cancelled
        tally["bytes_down"] += sum([job.bytes[0] for job in jobs])
        tally["bytes_up"] += sum([job.bytes[1] for job in jobs])

    def close(self, server: Server) -> None:
        """Fill the record of the round under way, evaluate the model where that is due, and tell the observers."""
        self.open = False
        version, now, record = server.version, server.now, self.record
        self.record = Round(version + 1, now)
        record.jobs, record.weights, record.staleness = self._jobs(version)
        record.number, record.time = version, now
        contributed = record.staleness[record.weights != 0].tolist()
        record.facts = {
            **self.tally,
            "used": len(contributed),
            "heard": server._count_heard,
            "weight": math.fsum(record.weights.tolist()),
            "staleness_mean": sum(contributed) / len(contributed) if contributed else 0.0,
            "staleness_max": max(contributed, default=0),
            **self.notes,
        }
        self._begin_anew()
        record.measures = self._evaluated(server)
        for observer in server.observers:
            observer.on_round(server, record)
        mark_logged(record.jobs)
        if server.population.changes:
            server.importance = server.population.importance_at(server.now)

    def close_stretch(self, server: Server, stretch: Stretch) -> None:
        """Close rounds that were passed in one go, and the one under way with them."""
        self.open, self.record = False, Round(server.version + 1, server.now)
        self._begin_anew()
        stretch.measures = self._evaluated(server)
        for observer in server.observers:
            observer.on_rounds(server, stretch)

    def _begin_anew(self) -> None:
        self.used, self.ended, self.notes = [], [], {}
        self.tally = dict.fromkeys(self.tally, 0)

    def _evaluated(self, server: Server) -> dict[str, float]:
        """Evaluate the model, if that is due."""
        version, now = server.version, server.now
        last = server.stopped or server.stopping.reason(version, now, server.measures)
        if not last and not server.evaluation.due(version, now, self.evaluated_at):
            return {}
        measures = server.evaluate()
        of_sets = tuple(f"_{name}" for name in server.task.sets.names)  # which may be undefined
        losses = (name for name in measures if name.endswith("_loss") and not name.endswith(of_sets))
        if not all(np.isfinite(measures[name]) for name in losses):
            server.diverge("the loss is no longer finite")
        return measures

    def evaluated(self, server: Server) -> None:
        """Note that the model has just been evaluated."""
        self.evaluated_at = server.now
        self.best.judge(server)

    def _jobs(self, version: int) -> tuple[Sequence[Job], FloatArray, IntArray]:
        """List the jobs that counted, then those that only ended; with weights `[k]` and staleness `[k]`."""
        if len(self.used) == len(self.ended) == 1 and (crew := together(self.ended[0])) is not None:
            updates, used_weights, at = self.used[0]
            if updates.crew is crew:
                return crew, used_weights.copy(), np.full(len(crew), at - crew.version)
        if (of_wave := self._of_wave(version)) is not None:
            return of_wave
        weights = [weight for _, used, _ in self.used for weight in used.tolist()]
        staleness = [at - job.version for updates, _, at in self.used for job in updates.jobs]
        jobs = [job for updates, _, _ in self.used for job in updates.jobs]
        used = set(jobs)
        for job in chain(*self.ended):
            if job not in used:
                jobs.append(job)
                weights.append(0.0)
                staleness.append(max(0, version - 1 - job.version))
        return jobs, np.array(weights, np.float64), np.array(staleness, np.int64)

    def _of_wave(self, version: int) -> tuple[Some, FloatArray, IntArray] | None:
        """List the same, if all of them are of one wave."""
        if not len(self.used) == len(self.ended) == 1 or type(wave := self.ended[0]) is not Wave or not wave.together:
            return None
        updates, weights, at = self.used[0]
        if type(some := updates.crew) is not Some or some.wave is not wave:
            return None
        rest, versions = np.ones(len(wave), bool), np.asarray(wave.columns.version)
        rest[some.rows] = False
        only_ended = np.flatnonzero(rest)
        staleness = at - versions[some.rows], np.maximum(0, version - 1 - versions[only_ended])
        rows = np.concatenate([some.rows, only_ended])
        return Some(wave, rows), np.append(weights, np.zeros(len(only_ended))), np.concatenate(staleness)

    def save(self) -> Facts:
        """Give what is known between two rounds, but for jobs."""
        facts, _ = self.best.save()
        return {"evaluated_at": self.evaluated_at, "tally": self.tally, "linear": self.record.linear, "best": facts}

    def load(self, facts: Facts, tensors: Named) -> None:
        self.evaluated_at, self.tally = facts["evaluated_at"], facts["tally"]
        self.record.linear = facts["linear"]
        self.best.load(facts.get("best", {}), unnest("best", tensors))
