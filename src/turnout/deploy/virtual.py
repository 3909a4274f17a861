"""A Flower app's clients in virtual time, under an algorithm of Turnout.

A job is one call of the ClientApp with a `train` message: the arrays it received, as one vector, are the model, and

    delta = arrays of the reply - arrays received

What clients compute is up to the app. Devices, links, availability and crashes decide when a reply is there; only then
is the app called, so that the state it keeps in its context is that of the clock.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from turnout.algorithms._algorithm import Algorithm
from turnout.clients.population import Population
from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.random import IntArray
from turnout.data.dataset import Dataset
from turnout.deploy.app import Arrays, Clients, examples, metrics, model_in, why
from turnout.deploy.opening import Opening
from turnout.deploy.screen import Means, RejectedError, Rejection, by_client
from turnout.engine.blocks import Block
from turnout.engine.evaluate import Evaluator
from turnout.local.sgd import LocalSGD, Named
from turnout.server.dispatch import Invitation
from turnout.server.jobs import ARRIVED, CRASHED, REJECTED, Job
from turnout.server.measurement import ByClient
from turnout.server.observer import TRACEBACK
from turnout.server.server import Among
from turnout.server.simulation import Simulation
from turnout.server.state import Facts, nest, unnest
from turnout.task.task import Task


class AppTask(Task):
    """A model that only its app can call: arrays with names."""

    layout: Arrays
    draws = recomputes = False  # nothing of it is called here

    def __init__(self, record: ArrayRecord | None) -> None:
        record = ArrayRecord({}) if record is None else record  # an app may have no model, or show it later
        self.module, self.layout = nn.Module(), Arrays(record)
        self.initial = self.layout.vector(record)

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> AppTask:
        """Give the same task on another device or in another precision: there is no module to move."""
        moved = copy.copy(self)
        moved.initial = self.initial.to(device=device, dtype=dtype)
        return moved

    def of(self, layout: Arrays) -> AppTask:
        """Give the same task with a model of another form."""
        task = copy.copy(self)
        task.layout, task.initial = layout, torch.from_numpy(np.zeros(layout.size, layout.sent))
        return task

    def examine(self, inputs: Tensor, targets: Tensor) -> int:
        return 0

    def state_dict(self, params: Tensor) -> dict[str, Tensor]:
        return {name: torch.from_numpy(np.array(values)) for name, values in self.layout.values(params).items()}


@dataclass(frozen=True)
class AppWork(LocalSGD):
    """Whatever the ClientApp does. `epochs`, `steps` and `batch_size` say how much that is, for devices that are so
    fast a step or a sample; the app itself is not told."""

    purpose: ClassVar[str] = "flower app"  # of a client's randomness

    lr: float = 0.0

    def lost_to(self, other: str) -> UserError:
        return _not_for_apps(other)


def enrol(clients: Clients, opening: Opening, seed: int) -> IntArray:
    """`[N]` how many samples each client trains on. Only a reply says so: everybody trains once, for nothing."""
    counts = []
    for client in range(clients.count):
        message = opening.message(MessageType.TRAIN, client, opening.arrays, 1)
        try:
            reply, _ = clients.answer(client, message, int(random.key(seed, "flower enrolment", client)))
            counts.append(examples(reply.content))
        except Exception as error:
            raise UserError(
                f"flower.app: client {client} does not say how many samples it has ({why(error)}); "
                "clients.importance=equal does not ask"
            ) from error
    return np.array(counts, np.int64)


def samples_of(counts: IntArray) -> Dataset:
    """What the server knows of the clients' data: how much everybody has."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return Dataset("app", torch.zeros(len(owner), 0), torch.zeros(len(owner)), None, groups=owner)


def _not_for_apps(algorithm: str) -> UserError:
    return UserError(
        f"algorithm.name: {algorithm} tells clients what to compute, and that is the business of a "
        "Flower app; take one that only uses what clients return, as fedavg or fedbuff"
    )


class AppSimulation(Simulation):
    """`Simulation` whose clients are those of a Flower app."""

    _acts_on_arrival = True

    def __init__(
        self,
        people: Clients,
        opening: Opening,
        task: AppTask,
        population: Population,
        algorithm: Algorithm,
        **options: Any,
    ) -> None:
        self.people, self.opening, self.arrays = people, opening, task.layout
        if type(algorithm).trained_task is not Algorithm.trained_task:
            raise _not_for_apps(type(algorithm).__name__)
        super().__init__(task, population, algorithm, **options)
        if self.population.size != people.count:
            raise _not_for_apps(type(algorithm).__name__)
        self._sent: tuple[Tensor, ArrayRecord] | None = None  # the model last sent, as a record
        self._reported: list[tuple[int, dict[str, float]]] = []  # in this round: samples, and what was said of them
        self._evaluated: dict[str, ByClient] = {}  # the last time
        self._traced: set[str] = set()  # errors whose traceback is in the log

    # -- training ---------------------------------------------------------------------------------------------

    def _check_modifiers(self, work: LocalSGD, among: Among | None) -> None:
        raise _not_for_apps(type(self.algorithm).__name__)

    def _begin(self, invitation: Invitation) -> Sequence[Job]:
        work = invitation.work
        if not isinstance(work, AppWork) or invitation.options or work.report or invitation.among is not None:
            raise _not_for_apps(type(self.algorithm).__name__)
        return super()._begin(invitation)

    def _tell_path(self, work: LocalSGD, options: Collection[str]) -> None:
        """Say nothing: the app computes, not the engine."""

    def _finish(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.outcome == ARRIVED:
                self._train(job)
        super()._finish(jobs)

    def _train(self, job: Job) -> None:
        """Call the app for a job that has come to its end; what its client keeps is then its own."""
        assert isinstance(job.work, AppWork)
        key = int(random.key(self.seed, job.work.purpose, job.client, job.batches))
        try:
            reply, state = self.people.answer(job.client, self._message_to(job), key)
            self.people.keep(job.client, state)
            self._take(job, reply.content)
        except Exception as error:
            rejected = isinstance(error, RejectedError)
            job.outcome, event = (REJECTED, "rejected_reply") if rejected else (CRASHED, "client_error")
            self.log(event, client=job.client, job=job.number, **self.reason(error))

    def reason(self, error: BaseException) -> dict[str, str]:
        """Say why the app's code failed; the first time with the traceback, which goes to the log."""
        said = {"why": why(error, self.people.app.folder)}
        if isinstance(error, RejectedError) or said["why"] in self._traced:
            return said
        self._traced.add(said["why"])
        return said | {TRACEBACK: "".join(traceback.format_exception(error))}

    def _message_to(self, job: Job) -> Message:
        return self.opening.message(MessageType.TRAIN, job.client, self._record_of(job.received), job.version + 1)

    def _take(self, job: Job, content: RecordDict) -> None:
        """Make a job's result of what its client says."""
        record = model_in(content)
        if record is None:
            raise RejectedError(Rejection.MISSING_ARRAY)
        returned, job.samples = self.arrays.vector(record).to(job.received), examples(content)
        job.result = Block({"delta": (returned - job.received)[None]}), 0
        if self.algorithm.clients_keep == "models":
            job.local = Block({"params": returned[None]}), 0
        self._reported.append((job.samples, metrics(content)))

    def _record_of(self, model: Tensor) -> ArrayRecord:
        """Serialised once, however many receive it."""
        if self._sent is None or self._sent[0] is not model:
            self._sent = model, self.arrays.record(model)
        return self._sent[1]

    def settle(self) -> None:
        super().settle()
        for name in {name: None for _, said in self._reported for name in said}:
            pairs = [(count, said[name]) for count, said in self._reported if name in said]
            weights, values = zip(*pairs, strict=True)
            self.note(**{f"reported_{name}": float(np.average(values, weights=weights))})
        self._reported = []

    # -- evaluation -------------------------------------------------------------------------------------------

    @property
    def panel(self) -> IntArray:
        """Who is asked to evaluate."""
        size, asked = self.population.size, self.evaluation.clients
        if asked is None or asked >= size:
            return self.population.ids
        return np.sort(random.subset(random.key(self.seed, "panel"), asked, size))

    def _prepare_evaluation(self) -> dict[str, Evaluator]:
        return {}

    def client_measures(self, model: Tensor) -> dict[str, ByClient]:
        """The app's own `evaluate` at every client of the panel; takes no time and leaves nothing behind."""
        said, failed = dict[int, Means](), list[Exception]()
        for client in self.panel.tolist():
            message = self.opening.message(MessageType.EVALUATE, client, self._record_of(model), self.version)
            key = int(random.key(self.seed, "flower evaluation", client, self.version))
            try:
                reply, _ = self.people.answer(client, message, key)
                said[client] = metrics(reply.content), examples(reply.content)
            except Exception as error:
                failed.append(error)
        if failed:
            self.log("evaluation_failed", clients=len(failed), **self.reason(failed[0]))
        return self._measured(said)

    def _measured(self, said: dict[int, Means]) -> dict[str, ByClient]:
        """Of the clients that have evaluated; a measure is one that all of them know."""
        names = set.intersection(*(set(measures) for measures, _ in said.values())) if said else set[str]()
        self._evaluated = {"test": by_client(self.panel, sorted(names), said)} if said else {}
        return self._evaluated

    def clients(self) -> dict[str, NDArray[Any]]:
        """As they were last evaluated."""
        unseen = ~self.population.joined(self.panel, self.now)
        table: dict[str, NDArray[Any]] = {"client": self.panel, "unseen": unseen}
        for split, (_, measures, counts) in self._evaluated.items():
            table |= {f"{split}_{name}": values for name, values in measures.items()}
            table[f"{split}_samples"] = counts
        return table

    # -- state ------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Facts, Named]:
        facts, tensors = super().save()
        return facts, tensors | nest("flower", self.people.save())

    def load(self, facts: Facts, tensors: Named) -> None:
        super().load(facts, tensors)
        self.people.load(unnest("flower", tensors))
