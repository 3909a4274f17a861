"""A whole Flower app in virtual time: its ServerApp leads, over a `Grid` whose seconds are those of the simulation."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from turnout.algorithms._algorithm import Algorithm
from turnout.core.errors import RecordedError, UserError
from turnout.core.random import IntArray
from turnout.deploy.app import Arrays, examples, metrics, numbers_in, seeded
from turnout.deploy.app_grid import Ended, quiet
from turnout.deploy.flower_parts import MAIN_PARAMS_RECORD, SType
from turnout.deploy.opening import server_key
from turnout.deploy.screen import Means, RejectedError, Rejection, require
from turnout.deploy.virtual import AppSimulation, AppTask, AppWork
from turnout.deploy.virtual_grid import AppQuestion, VirtualGrid
from turnout.local.sgd import LocalSGD
from turnout.server.dispatch import FOREVER, Dispatch
from turnout.server.jobs import ARRIVED, Job
from turnout.server.measurement import ByClient
from turnout.server.server import Server


@dataclass
class ServerAppLeads(Algorithm):
    """The app's own ServerApp, with whatever strategy it has."""

    local: LocalSGD = field(default_factory=AppWork)

    def run(self, server: Server) -> None:
        assert isinstance(server, GridSimulation)
        app, rounds = server.people.app, server.rounds()
        if next(rounds, None) is None:
            return
        grid, context = VirtualGrid(server, rounds, self.local), app.context(0)
        server.grid = grid
        if not server.people.sized:
            server.log("samples_unknown", why="every client counts as one sample; flower.samples=[...] says how many")
        try:
            with quiet(), seeded(server_key(server.seed)), torch.enable_grad(), grid.in_charge(app.folder):
                app.server(grid, context)
        except Ended:
            return
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            if not isinstance(error, SystemExit) or error.code:  # an app may end by saying so
                raise self._failed(server, error) from error
        grid.last = context.state.array_records.get(MAIN_PARAMS_RECORD, grid.last)  # where a workflow leaves its model
        grid.end()

    @staticmethod
    def _failed(server: GridSimulation, error: BaseException) -> UserError:
        said = server.reason(error)
        server.log("server_app_failed", **said)
        place = "" if server.checkpoints is None else "; the traceback is in the log.txt of the run"
        return RecordedError(f"flower.app: its ServerApp fails ({said['why']}){place}")


class GridSimulation(AppSimulation):
    """`Simulation` whose jobs are messages of a ServerApp."""

    grid: VirtualGrid

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.checkpoints is not None:  # what a ServerApp holds cannot be saved: it is begun again
            self.checkpoints.every = FOREVER

    def advance(self, until: int) -> bool:
        """Let the next thing happen; where nothing does by that tick, it is then."""
        if self._due(until):
            self._next_events()
            return True
        self._clock = max(self._clock, until)
        return False

    def adopt(self, record: ArrayRecord, layout: Arrays) -> None:
        """Take what the app now sends for its model, which has another form than before."""
        assert isinstance(self.task, AppTask)
        self.task, self.arrays = self.task.of(layout), layout
        self._dispatch = Dispatch(self.population, self.task)
        self.model = layout.vector(record).to(self.model.device)

    def tick_in(self, seconds: float) -> int:
        return self._clock + round(seconds * self._ticks)

    def at_work(self, client: int) -> Job | None:
        return self._in_flight.get(client)

    @property
    def idle(self) -> bool:
        return not self._in_flight

    def _finish(self, jobs: list[Job]) -> None:
        super()._finish(jobs)
        self._inbox.clear()
        self._failures.clear()
        for job in jobs:
            self.grid.deliver(job)

    def _message_to(self, job: Job) -> Message:
        return self.grid.message_of(job)

    def _take(self, job: Job, content: RecordDict) -> None:
        """Let through no numbers that are not finite; what else a reply must hold the app itself knows. It is a copy,
        as if it had been sent: the client goes on with its own."""
        for array in (array for record in content.array_records.values() for array in record.values()):
            if array.stype == SType.NUMPY:
                values = numbers_in(array)
                require(values.dtype.kind != "f" or bool(np.isfinite(values).all()), Rejection.NOT_FINITE)
        self.grid.contents[job.name] = copy.deepcopy(content)
        asked = isinstance(job.work, AppQuestion)
        with suppress(RejectedError):  # the app may weigh by something else
            if not asked:
                job.samples = examples(content)
            if not (asked and self.grid.trains):
                self._reported.append((examples(content), metrics(content)))

    def client_measures(self, model: Tensor) -> dict[str, ByClient]:
        """What clients have said in this round when the app asked them to evaluate."""
        said: dict[int, Means] = {}
        for client, content in self.grid.evaluated.items() if self.begun else ():
            with suppress(RejectedError):
                said[client] = metrics(content), examples(content)
        return self._measured(said) if said else {}

    @property
    def panel(self) -> IntArray:
        return self.population.ids

    def forget_answers(self) -> None:
        """Leave out of the record of the round what was only asked before anybody trained."""
        self._reported = []

    def publish_made_of(self, model: Tensor, jobs: list[Job]) -> None:
        """The app has made a new model of these jobs."""
        used = [job for job in jobs if job.outcome == ARRIVED]
        if not used:
            self.log("empty_round")
        self.publish(model, self._updates(used), None)
