"""The server: what an algorithm sees. It cannot tell a simulation from a deployment.

    model  <-  model + server_lr * sum over contributing jobs i of  weight_i * (returned_i - received_i)

`Server` owns the law, the rounds, evaluation and the record; how clients are reached (`invite`, `wait`, ...) is the
business of a subclass: `Simulation` reaches them in virtual time, `turnout.deploy` over a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.aggregation.optimisers import Step
from turnout.clients.online import OnlineSet
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.statistics import undefined
from turnout.core.threads import threads
from turnout.engine.evaluate import Evaluator
from turnout.engine.plan import Plan
from turnout.engine.store import ClientStore
from turnout.engine.train import Cohort
from turnout.local.sgd import LocalSGD, Named
from turnout.server import averages, ensembles
from turnout.server.absent import Absent
from turnout.server.durations import Durations
from turnout.server.flight import Flight
from turnout.server.held import Held
from turnout.server.jobs import Failures
from turnout.server.law import Law
from turnout.server.measurement import ByClient, Measurement, evaluators_of
from turnout.server.observer import Event, Observer
from turnout.server.privacy import Privacy, foreign
from turnout.server.rounds import Rounds
from turnout.server.state import Facts, load_state, nest, reset_state, save_state, unnest
from turnout.server.stopping import Evaluation, Stopping
from turnout.server.updates import Updates
from turnout.task.task import Task

if TYPE_CHECKING:
    from turnout.algorithms._algorithm import Algorithm
    from turnout.server.checkpoint import Checkpoints
    from turnout.server.policy import Policy
    from turnout.server.stretch import Weigh


@dataclass(frozen=True)
class Keep:
    """The type of `KEEP` and `CURRENT`. With `full_time` the job takes as long as one that begins anew with a download:
    the time model of the SAFA tables."""

    full_time: bool = False
    current: bool = False  # what the client has is the current model


@dataclass(frozen=True)
class Among:
    """Clients that exchange among themselves: when each begins, and what it receives and sends. The server is no part
    of it."""

    starts_at: IntArray  # [k] ticks
    bytes_down: IntArray  # [k]
    bytes_up: IntArray  # [k]


KEEP = Keep()  # invite(model=KEEP): no download, the client goes on from what it has
CURRENT = Keep(current=True)  # no download: the client was sent the current model before, and has said something of it
ModelChoice = Tensor | tuple[Tensor, ArrayLike] | Keep | None


class Server:
    """Rounds, the law, evaluation, observers and checkpoints; see the module's docstring."""

    current: ClassVar[Keep] = CURRENT  # for what cannot import it: samplers are below

    def __init__(
        self,
        task: Task,
        population: Population,
        algorithm: Algorithm,
        *,
        seed: int = 0,
        plan: Plan | None = None,
        stopping: Stopping | None = None,
        evaluation: Evaluation | None = None,
        observers: Sequence[Observer] = (),
        checkpoints: Checkpoints | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.algorithm, self.seed = algorithm, seed
        task, population = algorithm.trained_task(task.seeded(seed)), population.seeded(seed)
        self.whole_population = population  # the one evaluated
        self.population = algorithm.training_population(population)
        self.plan = (plan or Plan()).resolve()
        self.cohort = Cohort(task, population.inputs, population.targets, self.plan)
        engine = self.plan.engine if self.plan.engine == "ray" else self.cohort.plan.engine
        self.plan = replace(self.plan, engine=engine, convolution=self.cohort.plan.convolution)
        self.task = self.cohort.task
        self.paths: list[dict[str, str]] = []  # that local work has taken: kind of work, name, why
        self.stopping, self.evaluation = stopping or Stopping(), evaluation or Evaluation()
        self.observers, self.checkpoints = list(observers), checkpoints
        self.law, self.held = Law(algorithm), Held()
        self._store = ClientStore(self.population.size, self.plan.device, self.plan.dtype, self.plan.memory_mib)
        self._ticks, self._clock = self.population.ticks_per_second, 0  # ticks a second, ticks since the start
        self._flight = Flight(self.population.size)
        self.model = self.task.initial.clone()
        self.version = 0
        self.importance = self.population.importance_at(0.0)
        self.heard = np.zeros(self.population.size, bool)  # whose update ever counted
        self._count_heard = 0
        self.measures: dict[str, float] = {}
        self.stopped: str | None = None
        self.begun = False
        self._absent = Absent()
        self._rounds = Rounds()
        self._measurement = Measurement(self._prepare_evaluation())
        self.privacy = privacy.bound_to(self) if privacy is not None and privacy.noise else None
        ensembles.check(self)
        averages.check(self)

    # -- reaching clients: a subclass knows how ---------------------------------------------------------------

    @property
    def now(self) -> float:
        """Tell the seconds since the start: virtual in a simulation, wall in a deployment."""
        return self._clock / self._ticks

    def online(self) -> OnlineSet:
        """Give the set of clients that can be invited now."""
        return OnlineSet(self.population, self.version, self.now, self._flight.busy if self.in_flight else None)

    @property
    def store(self) -> ClientStore:
        """Open what clients keep between their jobs: only a simulation knows it."""
        if self.privacy is not None and foreign(self.algorithm):
            raise UserError("privacy.noise: what clients keep is theirs, and this algorithm looks at it")
        return self._store

    @property
    def in_flight(self) -> int:
        """Count the jobs under way."""
        return len(self._flight)

    def durations(self, work: LocalSGD) -> Durations:
        """Tell how long the clients take for this work, as far as that is known."""
        raise NotImplementedError

    def idle_after(self, ended: Updates) -> IntArray:
        """Who can be invited again after a wait: those of `ended` that delivered or crashed and do not restart by
        themselves, and whoever was found away by an invitation and is back. O(k), while nobody is away."""
        return self._absent.idle_after(ended, self.online, self.now)

    def push_seconds(self, copies: int, work: LocalSGD) -> float:
        """Tell how many seconds the server takes to send the model so many times."""
        raise NotImplementedError

    def backhaul_seconds(self, edges: int, work: LocalSGD) -> float:
        """Tell how many seconds a model takes from the cloud to so many edges, and one of each back."""
        raise NotImplementedError

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
        """Send `model` and start one job at each client; never advances the clock.

        `model` is None (the current one), a vector `[P]`, `([G, P], group of each client)`, `KEEP` or `CURRENT`.
        Numbers of the work may be arrays over the invited. `hold` keeps the vectors at the client until `fetch`.
        `again` is a standing invitation: the client restarts on the current model once it has delivered, until it fails
        or is cancelled; where the algorithm declares `restarts_crashed`, also as soon as a crash is known, up to three
        times in a row in one wait. `among` is for clients that have their models from each other.
        """
        ids = np.asarray(clients, np.int64).reshape(-1)
        if len(ids):
            self._invite(ids, work, model, hold, again, among)

    def _invite(
        self, ids: IntArray, work: LocalSGD, model: ModelChoice, hold: bool, again: bool, among: Among | None
    ) -> None:
        raise NotImplementedError

    def keeps(self, clients: ArrayLike) -> NDArray[np.bool_]:
        """Tell which of these clients have a model of their own to go on from (`KEEP`)."""
        raise NotImplementedError

    def wait(self, count: int | None = None, of: ArrayLike | None = None, seconds: float | None = None) -> Updates:
        """Block until `count` updates are in (default: until nobody invited is left), at most `seconds`.

        With `seconds` alone it is a timer and takes that long. Counts and returns successes only, at most `count`, in
        order of (time, client); the rest stays in the inbox. `of` restricts what is counted and returned. Returns early
        only when nobody known to be alive can still answer. Failures learnt meanwhile are in `updates.failed`.
        """
        raise NotImplementedError

    def cancel(self, clients: ArrayLike) -> Failures:
        """End the jobs of these clients: outcome `cancelled`, cost pro rata. Updates they hold are dropped too. Returns
        the jobs of those who were still at work: whoever is told to stop says so, the dead say nothing."""
        raise NotImplementedError

    def fetch(self, clients: ArrayLike) -> Updates:
        """Bring held vectors home; blocks for the upload."""
        raise NotImplementedError

    def pass_rounds(self, policy: Policy, work: LocalSGD, weigh: Weigh) -> bool:
        """Pass rounds in one go, where all that happens in them is known beforehand: clients that deliver begin again
        with this work, and `weigh(clients, staleness)` says what each update counts in the step. False where the next
        round has to be gone through."""
        return False

    def settle(self) -> None:
        """Finish what must not be left open between two rounds."""

    # -- the law ----------------------------------------------------------------------------------------------

    def step(self, updates: Updates, weights: ArrayLike) -> Updates:
        """Move the model by the weighted sum of differences, or by what the method's parts make of them. Returns the
        updates that counted; an update may count once."""
        return self.law.step(self, updates, weights)

    def publish(self, model: Tensor, updates: Updates, weights: ArrayLike | None) -> None:
        """Replace the model, for methods that keep their own memory of updates. `updates` may be old ones; `weights`
        say what each contributes in this round, None if the rule is not linear."""
        self.law.publish(self, model, updates, weights)

    def finite(self, updates: Updates, weights: FloatArray | None = None) -> Updates:
        """Drop the rows that hold NaN or infinity: they are rejected, their weight is lost, and that is logged."""
        return self.law.finite(self, updates, weights)

    def combined(self, rows: Tensor, weights: FloatArray, around: Tensor | None = None, group: int = 0) -> Tensor:
        """Make one row `[P]` of rows `[k, P]`: their weighted sum, or what the rule puts in its place. Rows that are
        models differ from `around`; a method with several models says for which `group` of clients it is."""
        return self.law.combined(self, rows, weights, around, group)

    @property
    def optimiser(self) -> Step:
        """Give what makes a step of the aggregated difference."""
        return self.law.optimiser

    def diverge(self, why: str) -> None:
        """Stop, and keep everything recorded so far."""
        self.log("diverged", why=why)
        self.stopped = f"diverged: {why}"

    def close_aggregation(self, updates: Updates, weights: FloatArray, linear: bool = True) -> None:
        """Count an aggregation of these updates, a new version; `linear`: it is their weighted sum."""
        self._rounds.record.linear &= linear
        self._rounds.used.append((updates, weights, self.version))
        if updates.columns is None:
            clients = [job.client for job, weight in zip(updates.jobs, weights.tolist(), strict=True) if weight]
            new = {client for client in clients if not self.heard[client]}
        else:
            clients = updates.clients[weights != 0]
            new = set(clients[~self.heard[clients]].tolist())
        if new:
            self.heard[list(new)] = True
            self._count_heard += len(new)
        self.version += 1

    # -- rounds -----------------------------------------------------------------------------------------------

    def rounds(self) -> Iterator[int]:
        """Go through rounds until the stop rule: here they are recorded, evaluated and checkpointed."""
        return self._rounds.run(self)

    def note(self, **facts: float) -> None:
        """Add columns to this round's row of the history."""
        self._rounds.notes |= facts

    def log(self, kind: str, **facts: Any) -> None:
        """Tell the observers of an event: nothing is silent."""
        event = Event(kind, self.version, self.now, facts)
        for observer in self.observers:
            observer.on_event(self, event)

    @property
    def _threads(self) -> int:
        """Count the threads of the server's own kernels."""
        return self.plan.threads

    def run(self) -> Server:
        """Begin (unless resumed) and run to the end."""
        with threads(self._threads), torch.no_grad():
            for observer in self.observers:
                observer.on_start(self)
            if not self.begun:
                if self.cohort.falls_back:
                    self.log("one_by_one", why=self.task.alone)
                reset_state(self.algorithm)
                for name, clients in undefined(self.evaluate()).items():
                    self.log("undefined_measure", measure=name, clients=clients)
                self.algorithm.begin(self)
                self.begun = True
            self.algorithm.run(self)
            for observer in self.observers:
                observer.on_end(self)
        return self

    # -- evaluation -------------------------------------------------------------------------------------------

    def _prepare_evaluation(self) -> dict[str, Evaluator]:
        return evaluators_of(self)

    @property
    def central(self) -> tuple[Tensor, Tensor]:
        """Give inputs and targets of test data that belongs to nobody, where the engine computes."""
        return self._measurement.central(self)

    @property
    def output(self) -> Tensor:
        """Give what the algorithm has to show, `[P]`: as a rule the current model."""
        return self.algorithm.output(self.model)

    def evaluate(self) -> dict[str, float]:
        """Measure the output, and tell the observers; takes no time."""
        self.measures = self.measure(self.output)
        self._rounds.evaluated(self)
        for observer in self.observers:
            observer.on_evaluate(self, self.measures)
        return self.measures

    def measure(self, model: Tensor) -> dict[str, float]:
        """Compute federated loss and metrics of a model `[P]` over all clients (or the panel), and on the central test
        set."""
        return self._measurement.measure(self, model)

    def client_measures(self, model: Tensor) -> dict[str, ByClient]:
        """Give, by split, the clients evaluated, their measures, and how many samples of it they have."""
        return self._measurement.by_client(self, model)

    def clients(self) -> dict[str, NDArray[Any]]:
        """Give a row for each client evaluated: its measures under the output, whether it is unseen, and what the
        algorithm knows of it."""
        return self._measurement.table(self)

    # -- state ------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Facts, Named]:
        """Give everything that is not configuration, between two rounds: JSON facts and tensors."""
        algorithm, algorithm_tensors = save_state(self.algorithm)
        optimiser, optimiser_tensors = save_state(self.optimiser)
        facts: Facts = {
            "version": self.version,
            "begun": self.begun,
            "measures": self.measures,
            "algorithm": algorithm,
            "optimiser": optimiser,
            "stopped": self.stopped,
            "observers": {},
        }
        facts |= self._rounds.save()
        tensors = {"model": self.model, "heard": torch.as_tensor(self.heard)}
        tensors |= nest("algorithm", algorithm_tensors) | nest("optimiser", optimiser_tensors)
        tensors |= nest("law", self.law.last) | nest("held", self.held.tensors) | self._absent.save()
        tensors |= nest("store", self._store.save()) | nest("best", self._rounds.best.save()[1])
        for name, observer in self._named_observers():
            facts["observers"][name], observer_tensors = observer.save()
            tensors |= nest(name, observer_tensors)
        return facts, tensors

    def load(self, facts: Facts, tensors: Named) -> None:
        """Undo `save`, into a server built with the same configuration."""
        device = self.plan.device
        self.model, self.heard = tensors["model"].to(device), tensors["heard"].numpy().copy()
        self._count_heard = int(self.heard.sum())
        self.version, self.begun, self.measures = facts["version"], facts["begun"], facts["measures"]
        self._rounds.load(facts, tensors)
        self._absent = Absent.saved(tensors)
        load_state(self.algorithm, facts["algorithm"], unnest("algorithm", tensors), device)
        load_state(self.optimiser, facts["optimiser"], unnest("optimiser", tensors), device)
        former = {"law/last": tensors["algorithm/direction"]} if "algorithm/direction" in tensors else {}  # version 0.1
        self.law.last = {name: last.to(device) for name, last in unnest("law", former | tensors).items()}
        self.held.load(self.algorithm, tensors, device)
        self._store.load(unnest("store", tensors))
        self.stopped = facts["stopped"]
        for name, observer in self._named_observers():
            if name in facts["observers"]:  # one that was not there before starts afresh
                observer.load(facts["observers"][name], unnest(name, tensors))
        self.importance = self.population.importance_at(self.now)

    def _named_observers(self) -> Iterator[tuple[str, Observer]]:
        """Name observers without regard to which others listen."""
        seen: dict[str, int] = {}
        for observer in self.observers:
            kind = type(observer).__name__
            seen[kind] = seen.get(kind, 0) + 1
            yield f"observer.{kind}{seen[kind]}", observer
