"""The server: what an algorithm sees. It cannot tell a simulation from a deployment.

    model  <-  model + server_lr * sum over contributing jobs i of  weight_i * (returned_i - received_i)

`Server` owns the law, the rounds, evaluation and the record; how clients are reached (`invite`, `wait`, ...) is the
business of a subclass: `Simulation` reaches them in virtual time, `turnout.deploy` over a network.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.clients.online import OnlineSet
from turnout.clients.population import Population
from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.threads import threads
from turnout.engine.evaluate import Evaluator, Personal, distribution, evaluators, sample_measures, set_measures
from turnout.engine.plan import Plan
from turnout.engine.store import ClientStore
from turnout.engine.train import Cohort
from turnout.local.sgd import LocalSGD, Named
from turnout.server.durations import Durations
from turnout.server.observer import Event, Observer, Round
from turnout.server.privacy import Privacy
from turnout.server.sealed import foreign
from turnout.server.state import Facts, load_state, nest, reset_state, save_state, unnest
from turnout.server.stopping import Evaluation, Stopping
from turnout.server.updates import ARRIVED, CANCELLED, Failures, Job, Updates, mark_logged, together
from turnout.task.task import Task

if TYPE_CHECKING:
    from turnout.algorithms._algorithm import Algorithm
    from turnout.server.checkpoint import Checkpoints

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


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
Rule = Callable[[Tensor, Tensor], Tensor]  # one row of rows [k, P] and weights [k]
ByClient = tuple[IntArray, dict[str, FloatArray], IntArray]  # clients, their measures by name, their samples


def _finite(model: Tensor) -> bool:
    """Whether every number is; a sum that is finite says so in one go."""
    return math.isfinite(float(model.sum())) or bool(torch.isfinite(model).all())


class Server:
    """Rounds, the law, evaluation, observers and checkpoints; see the module's docstring."""

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
        self.optimiser = algorithm.optimiser()
        self._optimiser_has_state = any(not part.init for part in fields(self.optimiser))
        self._store = ClientStore(self.population.size, self.plan.device, self.plan.dtype, self.plan.memory_mib)
        self.model = self.task.initial.clone()
        self.version = 0
        self.importance = self.population.importance_at(0.0)
        self.heard = np.zeros(self.population.size, bool)  # whose update ever counted
        self._count_heard = 0
        self.measures: dict[str, float] = {}
        self.stopped: str | None = None
        self.begun = False
        self._open = False  # a round is under way
        self._evaluated_at = 0.0  # time of the last evaluation
        self._record = Round(0, 0.0)
        self._used: list[tuple[Updates, FloatArray, int]] = []  # in this round, with which weights, in which version
        self._ended: list[Sequence[Job]] = []  # in this round
        self._tally = dict.fromkeys(("invited", "arrived", "failed", "cancelled", "bytes_down", "bytes_up"), 0)
        self._notes: dict[str, float] = {}  # what the algorithm says of this round
        self._evaluators = self._prepare_evaluation()
        self.privacy = privacy.bound_to(self) if privacy is not None and privacy.noise else None

    # -- reaching clients: a subclass knows how ---------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the start: virtual in a simulation, wall in a deployment."""
        raise NotImplementedError

    def online(self) -> OnlineSet:
        """Who can be invited now."""
        raise NotImplementedError

    @property
    def store(self) -> ClientStore:
        """What clients keep between their jobs: only a simulation knows it."""
        if self.privacy is not None and foreign(self.algorithm):
            raise UserError("privacy.noise: what clients keep is theirs, and this algorithm looks at it")
        return self._store

    @property
    def in_flight(self) -> int:
        """How many jobs are under way."""
        raise NotImplementedError

    def durations(self, work: LocalSGD) -> Durations:
        """How long the clients take for this work, as far as it is known."""
        raise NotImplementedError

    def push_seconds(self, copies: int, work: LocalSGD) -> float:
        """How long the server takes to send the model so many times."""
        raise NotImplementedError

    def backhaul_seconds(self, edges: int, work: LocalSGD) -> float:
        """How long a model takes from the cloud to so many edges, and one of each back."""
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
        raise NotImplementedError

    def keeps(self, clients: ArrayLike) -> NDArray[np.bool_]:
        """Which of these clients have a model of their own to go on from (`KEEP`)."""
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

    def settle(self) -> None:
        """Finish what must not be left open between two rounds."""

    # -- the law ----------------------------------------------------------------------------------------------

    def step(self, updates: Updates, weights: ArrayLike, rule: Rule | None = None) -> Updates:
        """The law: move the model by the weighted sum of differences. Returns the updates that counted.

        A `rule` takes the place of the sum: of rows `[k, P]` and weights that sum to 1 it makes one vector, which then
        counts as much as all weights together. What it does is not linear, and recorded so."""
        updates, weights = updates.sealed(False), self._checked(updates, weights)
        if updates.used:
            raise UserError("step: an update may be used once; use publish for methods that remember old ones")
        counted, weights = self._screened(updates, weights)
        if rule is not None and self.privacy is not None:
            raise UserError("privacy.noise: it hides a sum of updates, and this algorithm has another rule")
        if rule is not None:  # NaN has no place in an order
            counted, weights = self._finite_rows(counted, weights)
        if self.privacy is not None:
            weights = self.privacy.bounded(counted.clients, weights)
        applied = self._apply(counted, weights, rule)
        updates.mark_used()
        updates = counted
        if not applied:
            updates, weights = self._finite_rows(updates, weights)
            if not self._apply(updates, weights, rule):
                self._diverge("the model is no longer finite")
        self._record.linear &= rule is None
        self._close_aggregation(updates, weights if rule is None else np.ones(len(updates)))
        return updates.sealed(self.privacy is not None)

    def _screened(self, updates: Updates, weights: FloatArray) -> tuple[Updates, FloatArray]:
        """What is left of updates after those have looked who may change their weights."""
        for observer in self.observers:
            counted = observer.on_step(self, updates, weights)
            if counted is not weights and self.privacy is not None:
                name = type(observer).__name__
                raise UserError(f"privacy.noise: nobody's weight may follow from updates, and {name} changes weights")
            if counted is not weights:
                updates, weights = updates.select(counted != 0), counted[counted != 0]
        return updates, weights

    def _finite_rows(self, updates: Updates, weights: FloatArray) -> tuple[Updates, FloatArray]:
        """`finite`, with the weights of those that are left."""
        kept = self.finite(updates, weights)
        left = set(kept.jobs)
        return kept, weights[[job in left for job in updates.jobs]]

    def _apply(self, updates: Updates, weights: FloatArray, rule: Rule | None) -> bool:
        """Move the model, unless it would no longer be finite."""
        if not len(updates):
            self.log("empty_round")
            if self.privacy is None:
                return True
        optimiser = copy.copy(self.optimiser) if self._optimiser_has_state else self.optimiser
        model = optimiser.step(self.model, self._aggregated(updates, weights, rule))
        if not _finite(model):
            return False
        self.model, self.optimiser = model, optimiser
        return True

    def _aggregated(self, updates: Updates, weights: FloatArray, rule: Rule | None) -> Tensor:
        """`[P]` the sum of differences, with noise where that is asked for, or what a rule puts in its place."""
        if self.privacy is not None:
            return self.privacy.noised_sum(updates, weights, self.model, self.version)
        if rule is None or not weights.sum() > 0:
            return updates.weighted_sum(weights)
        rows, total = updates.deltas, float(weights.sum())
        with self.cohort.all_threads():
            return total * rule(rows, torch.as_tensor(weights / total).to(rows))

    def publish(self, model: Tensor, updates: Updates, weights: ArrayLike | None) -> None:
        """Replace the model, for methods that keep their own memory of updates. `updates` may be old ones; `weights`
        say what each contributes in this round, None if the rule is not linear."""
        if model.shape != self.model.shape or model.dtype != self.model.dtype:
            raise UserError(f"publish: a model of shape {tuple(self.model.shape)} is needed, not {tuple(model.shape)}")
        if self.privacy is not None:
            raise UserError("privacy.noise: it hides a sum of updates, and this algorithm replaces the model itself")
        applied = self._checked(updates, np.ones(len(updates)) if weights is None else weights)
        self._record.linear &= weights is not None
        self._set_model(model.clone())
        self._close_aggregation(updates, applied)

    @staticmethod
    def _checked(updates: Updates, weights: ArrayLike) -> FloatArray:
        weights = np.array(weights, np.float64)  # its own: they are recorded when the round closes
        if weights.shape != (len(updates),) or not np.isfinite(weights).all():
            raise UserError(f"step: {len(updates)} updates need as many finite weights, not {weights!r}")
        return weights

    def finite(self, updates: Updates, weights: FloatArray | None = None) -> Updates:
        """Without the rows that hold NaN or infinity: they are rejected, their weight is lost, and that is logged."""
        if not len(updates):
            return updates
        good = updates.finite().cpu().numpy()
        for row in np.flatnonzero(~good).tolist():
            job, lost = updates.jobs[row], {} if weights is None else {"weight": float(weights[row])}
            self.log("rejected_update", client=job.client, job=job.number, why="not finite", **lost)
        return updates if good.all() else updates.select(good)

    def _set_model(self, model: Tensor) -> None:
        if _finite(model):
            self.model = model
        else:
            self._diverge("the model is no longer finite")

    def _diverge(self, why: str) -> None:
        """Stop, and keep everything recorded so far."""
        self.log("diverged", why=why)
        self.stopped = f"diverged: {why}"

    def _close_aggregation(self, updates: Updates, weights: FloatArray) -> None:
        self._used.append((updates, weights, self.version))
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
        """Rounds until the stop rule: here they are recorded, evaluated and checkpointed."""
        while True:
            self.settle()
            if self._open:
                self._close_round()
            if self.checkpoints is not None and self.checkpoints.due(self.version):
                for observer in self.observers:
                    observer.on_checkpoint(self)
                self.checkpoints.save(self)
            self.stopped = self.stopped or self.stopping.reason(self.version, self.now, self.measures)
            if self.stopped:
                return
            self._open = True
            yield self.version

    def _close_round(self) -> None:
        self._open = False
        now, record = self.now, self._record
        self._record = Round(self.version + 1, now)
        record.jobs, record.weights, record.staleness = self._jobs_of_round()
        record.number, record.time = self.version, now
        contributed = record.staleness[record.weights != 0].tolist()
        record.facts = {
            **self._tally,
            "used": len(contributed),
            "heard": self._count_heard,
            "weight": math.fsum(record.weights.tolist()),
            "staleness_mean": sum(contributed) / len(contributed) if contributed else 0.0,
            "staleness_max": max(contributed, default=0),
            **self._notes,
        }
        self._used, self._ended, self._notes = [], [], {}
        self._tally = dict.fromkeys(self._tally, 0)
        last = self.stopped or self.stopping.reason(self.version, now, self.measures)
        if last or self.evaluation.due(self.version, now, self._evaluated_at):
            record.measures = self.evaluate()
            if not all(np.isfinite(value) for name, value in self.measures.items() if name.endswith("_loss")):
                self._diverge("the loss is no longer finite")
        for observer in self.observers:
            observer.on_round(self, record)
        mark_logged(record.jobs)
        if self.population.changes:
            self.importance = self.population.importance_at(self.now)

    def _jobs_of_round(self) -> tuple[Sequence[Job], FloatArray, IntArray]:
        """Those that counted, then those that only ended; with their weights, and their staleness."""
        if len(self._used) == len(self._ended) == 1 and self._used[0][0].crew is self._ended[0]:
            updates, used_weights, version = self._used[0]
            columns = updates.columns
            if columns is not None:
                return self._ended[0], used_weights.copy(), np.full(len(updates), version - columns.version)
        weights = [weight for _, used, _ in self._used for weight in used.tolist()]
        staleness = [version - job.version for updates, _, version in self._used for job in updates.jobs]
        jobs = [job for updates, _, _ in self._used for job in updates.jobs]
        used = set(jobs)
        for job in chain(*self._ended):
            if job not in used:
                jobs.append(job)
                weights.append(0.0)
                staleness.append(max(0, self.version - 1 - job.version))
        return jobs, np.array(weights, np.float64), np.array(staleness, np.int64)

    def _end(self, jobs: Sequence[Job]) -> None:
        """Count jobs that have just ended."""
        self._ended.append(jobs)
        columns = together(jobs)
        if columns is not None:
            self._tally["arrived"] += len(jobs)
            self._tally["bytes_down"] += columns.bytes[0] * len(jobs)
            self._tally["bytes_up"] += columns.bytes[1] * len(jobs)
            return
        outcomes = [job.outcome for job in jobs]
        arrived, cancelled = outcomes.count(ARRIVED), outcomes.count(CANCELLED)
        self._tally["arrived"] += arrived
        self._tally["cancelled"] += cancelled
        self._tally["failed"] += len(jobs) - arrived - cancelled
        self._tally["bytes_down"] += sum([job.bytes[0] for job in jobs])
        self._tally["bytes_up"] += sum([job.bytes[1] for job in jobs])

    def note(self, **facts: float) -> None:
        """Add columns to this round's row of the history."""
        self._notes |= facts

    def log(self, kind: str, **facts: Any) -> None:
        """Nothing is silent."""
        event = Event(kind, self.version, self.now, facts)
        for observer in self.observers:
            observer.on_event(self, event)

    @property
    def _threads(self) -> int:
        """How many the server's own kernels have."""
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
                self.evaluate()
                self.algorithm.begin(self)
                self.begun = True
            self.algorithm.run(self)
            for observer in self.observers:
                observer.on_end(self)
        return self

    # -- evaluation -------------------------------------------------------------------------------------------

    def _prepare_evaluation(self) -> dict[str, Evaluator]:
        population, panel = self.whole_population, self.evaluation.clients
        if panel is not None and panel > population.size:
            raise UserError(f"evaluation.clients: a panel of {panel} out of {population.size} clients")
        clients = (
            population.ids
            if panel is None
            else np.sort(random.subset(random.key(self.seed, "panel"), panel, population.size))
        )
        return evaluators(self.cohort, population, clients, self.evaluation.train)

    @cached_property
    def central(self) -> tuple[Tensor, Tensor]:
        """Test data that belongs to nobody, where the engine computes."""
        assert self.whole_population.central is not None
        inputs, targets = self.whole_population.central
        return self.cohort.place(inputs), self.cohort.place(targets)

    @property
    def output(self) -> Tensor:
        """`[P]` what the algorithm has to show: as a rule the current model."""
        return self.algorithm.output(self.model)

    def evaluate(self) -> dict[str, float]:
        """`measure` the output, and tell the observers; takes no time."""
        self.measures = self.measure(self.output)
        self._evaluated_at = self.now
        for observer in self.observers:
            observer.on_evaluate(self, self.measures)
        return self.measures

    def measure(self, model: Tensor) -> dict[str, float]:
        """Federated loss and metrics over all clients (or the panel), and on the central test set."""
        population, measures = self.whole_population, dict[str, float]()
        for split, (clients, values, counts) in self.client_measures(model).items():
            measures |= distribution(split, values, population.importance_at(self.now)[clients], counts)
            unseen = ~population.joined(clients, self.now)
            measures |= distribution(f"unseen_{split}", values, unseen * population.base_importance[clients], counts)
        if population.central is not None and self._served_by(False) is None:
            inputs, targets = self.central
            chunk = next(iter(self._evaluators.values())).chunk
            with self.cohort.all_threads():
                central = sample_measures(self.task, model, inputs, targets, chunk)
                found = {name: float(sample.mean()) for name, sample in central.items()}
                found |= set_measures(self.task, model, inputs, targets)
            measures |= {f"central_{name}": found[name] for name in ("loss", *self.task.metrics)}
        return measures

    def client_measures(self, model: Tensor) -> dict[str, ByClient]:
        """By split: the clients evaluated, their measures, and how many samples of it they have."""
        found = self._evaluators.items()
        return {split: (each.clients, self.served(each, model), each.index.counts) for split, each in found}

    def served(self, evaluator: Evaluator, model: Tensor) -> dict[str, FloatArray]:
        """`[clients]` by measure, each client served as the algorithm serves it; who should adapt and has no sample to
        do it with is served without."""
        population, ids = self.whole_population, evaluator.clients
        unseen, adapts = ~population.joined(ids, self.now), population.has_samples(ids, self.now)
        values: dict[str, FloatArray] = {}
        rules = {(new, able): self._served_by(new, able) for new in (False, True) for able in (False, True)}
        for (new, able), personal in rules.items():
            rows = (unseen == new) & (adapts == able)
            if rows.all() or not any(rules.values()):
                return self._serve(evaluator, model, personal)
            part = self._serve(evaluator.some(rows), model, personal) if rows.any() else {}
            for name, column in part.items():
                values.setdefault(name, np.empty(len(ids)))[rows] = column
        return values

    def _serve(self, evaluator: Evaluator, model: Tensor, personal: Personal | None) -> dict[str, FloatArray]:
        if personal is None:
            return evaluator.global_model(model)
        with self.cohort.all_threads():
            return evaluator.personal_models(personal, model, self._store)

    def _served_by(self, unseen: bool, adapts: bool = True) -> Personal | None:
        adapted, kept = self.algorithm.adaptation(unseen) if adapts else None, self.algorithm.predictor()
        return Personal.of(adapted, kept, self.whole_population, self.version, self.now, self.seed)

    def clients(self) -> dict[str, NDArray[Any]]:
        """A row for each client evaluated: its measures under the output, whether it is unseen, and what the algorithm
        knows of it."""
        first = next(iter(self._evaluators.values()))
        unseen = ~self.whole_population.joined(first.clients, self.now)
        table: dict[str, NDArray[Any]] = {"client": first.clients, "unseen": unseen}
        with self.cohort.all_threads(), torch.no_grad():
            for split, (_, measures, counts) in self.client_measures(self.output).items():
                table |= {f"{split}_{name}": values for name, values in measures.items()}
                table[f"{split}_samples"] = counts
            return table | self.algorithm.about(self, first.clients)

    # -- state ------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Facts, Named]:
        """Everything that is not configuration: JSON facts and tensors. Called between two rounds."""
        algorithm, algorithm_tensors = save_state(self.algorithm)
        optimiser, optimiser_tensors = save_state(self.optimiser)
        facts: Facts = {
            "version": self.version,
            "begun": self.begun,
            "measures": self.measures,
            "evaluated_at": self._evaluated_at,
            "tally": self._tally,
            "algorithm": algorithm,
            "optimiser": optimiser,
            "stopped": self.stopped,
            "linear": self._record.linear,
            "observers": {},
        }
        tensors = {"model": self.model, "heard": torch.as_tensor(self.heard)}
        tensors |= nest("algorithm", algorithm_tensors) | nest("optimiser", optimiser_tensors)
        tensors |= nest("store", self._store.save())
        for name, observer in self._named_observers():
            facts["observers"][name], observer_tensors = observer.save()
            tensors |= nest(name, observer_tensors)
        return facts, tensors

    def load(self, facts: Facts, tensors: Named) -> None:
        """The inverse of `save`, into a server built with the same configuration."""
        device = self.plan.device
        self.model, self.heard = tensors["model"].to(device), tensors["heard"].numpy().copy()
        self._count_heard = int(self.heard.sum())
        self.version, self.begun, self.measures = facts["version"], facts["begun"], facts["measures"]
        self._evaluated_at, self._tally = facts["evaluated_at"], facts["tally"]
        load_state(self.algorithm, facts["algorithm"], unnest("algorithm", tensors), device)
        load_state(self.optimiser, facts["optimiser"], unnest("optimiser", tensors), device)
        self._store.load(unnest("store", tensors))
        self.stopped, self._record.linear = facts["stopped"], facts["linear"]
        for name, observer in self._named_observers():
            if name in facts["observers"]:  # one that was not there before starts afresh
                observer.load(facts["observers"][name], unnest(name, tensors))
        self.importance = self.population.importance_at(self.now)

    def _named_observers(self) -> Iterator[tuple[str, Observer]]:
        """Observers under names that do not depend on which others listen."""
        seen: dict[str, int] = {}
        for observer in self.observers:
            kind = type(observer).__name__
            seen[kind] = seen.get(kind, 0) + 1
            yield f"observer.{kind}{seen[kind]}", observer
