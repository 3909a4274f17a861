"""A deployed run again, in virtual time: every job ends when and how it did, in the order in which the server learnt of
it. What clients computed is computed here, each alone as it was: the model is the same, to the bit where machines round
alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.clients.online import OnlineSet
from turnout.core.errors import UserError
from turnout.core.files import read_json, read_tensors
from turnout.deploy.presence import WAIT, Live, Timeline, change, new_jobs, nobody
from turnout.engine.batches import Jobs
from turnout.engine.engine import Engine, Results
from turnout.record.history import History
from turnout.run.experiment import Experiment
from turnout.server.dispatch import FOREVER, Invitation
from turnout.server.jobs import ARRIVED, CANCELLED, Job
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.server.updates import Updates

Columns = dict[str, NDArray[Any]]
Row = tuple[float, str, int]  # seconds, what, client: see `Timeline`


class OneByOne(Engine):
    """Carries out every job by itself, as its client did: jobs that are computed together are rounded otherwise."""

    def train(self, jobs: Jobs, versions: Sequence[int], keep_params: bool) -> list[Results]:
        results = []
        for row, version in enumerate(versions):
            alone = replace(jobs.take(np.array([row])), ahead=False)
            results += [each._replace(rows=[row]) for each in super().train(alone, [version], keep_params)]
        return results

    @property
    def server_threads(self) -> int:
        return self.cohort.plan.threads


class Replay(Simulation):
    """`Simulation` over recorded arrivals: `jobs` and `timeline` as a run keeps them."""

    def __init__(self, *args: Any, jobs: Columns, timeline: Iterable[Row], **options: Any) -> None:
        super().__init__(*args, **options)
        self._engine = OneByOne(self.cohort)
        names = zip(jobs["client"].tolist(), jobs["job"].tolist(), strict=True)
        ends = zip(np.rint(jobs["ended_at"] * self._ticks).astype(np.int64).tolist(), jobs["outcome"], strict=True)
        self._ends: dict[tuple[int, int], tuple[int, str]] = {}
        for name, end in zip(names, ends, strict=True):
            self._ends.setdefault(name, end)  # a job that is used later has another row
        rows = [(round(at * self._ticks), what, client) for at, what, client in timeline]
        self._waits = iter([tick for tick, what, _ in rows if what == WAIT])
        self._changes = [row for row in rows if row[1] != WAIT][::-1]
        self._catch_up()
        self.importance = self.population.importance_at(self.now)

    def _catch_up(self) -> None:
        """Who had come and gone by now."""
        while self._changes and self._changes[-1][0] <= self._clock:
            tick, what, client = self._changes.pop()
            change(self.population, what, client, tick / self._ticks)

    def online(self) -> OnlineSet:
        self._catch_up()
        return Live(self.population, self.version, self.now, self._flight.busy)

    def wait(self, count: int | None = None, of: ArrayLike | None = None, seconds: float | None = None) -> Updates:
        tick = next(self._waits, None)
        if tick is None:
            raise UserError("replay: the record ends before the run does; it is not of this configuration")
        self._clock = tick
        self._catch_up()
        return super().wait(count, of, seconds)

    def settle(self) -> None:
        self._catch_up()
        super().settle()

    def push_seconds(self, copies: int, work: Any) -> float:
        return 0.0

    def _begin(self, invitation: Invitation) -> list[Job]:
        jobs = new_jobs(invitation, self._clock, self.population.declared)
        for job in jobs:
            tick, outcome = self._ends.get(job.name, (FOREVER, ARRIVED))
            if outcome == CANCELLED:  # by the algorithm, as it will be again
                tick, outcome = FOREVER, ARRIVED
            job.ends_at, job.outcome = tick, outcome
            job.progress = 1.0 if outcome == ARRIVED else job.done
        return jobs


def difference(experiment: Experiment, folder: Path) -> dict[str, float]:
    """Replay the run of a folder: the largest difference between a parameter of its model and the same one here."""
    history, timeline = History(folder), Timeline(folder / "arrivals")
    assert history.jobs is not None
    for table in (history.jobs, timeline.table):
        assert table.folder is not None
        table.segments = sorted(path.name for path in table.folder.glob("*.parquet"))
    rounds = int(read_json(folder / "result.json")["rounds"])
    jobs = history.jobs.read()
    server = replay(experiment, jobs, timeline.rows(), rounds)
    recorded = server.task.from_state_dict(read_tensors(folder / "model.safetensors"))
    largest = float((server.output - recorded.to(server.output)).abs().max())
    return {"rounds": rounds, "jobs": len(jobs["job"]), "difference": largest}


def replay(experiment: Experiment, jobs: Columns, timeline: Iterable[Row], rounds: int) -> Server:
    """Carry out an experiment for so many rounds with recorded arrivals."""
    server = Replay(
        experiment.task,
        replace(experiment.population, **nobody(experiment.population.size)),
        experiment.algorithm,
        jobs=jobs,
        timeline=timeline,
        seed=experiment.seed,
        plan=replace(experiment.plan, engine="sequential"),  # as one client computes
        stopping=Stopping(rounds),
        evaluation=Evaluation(rounds=None, clients=1),
        privacy=experiment.privacy,
    )
    return server.run()
