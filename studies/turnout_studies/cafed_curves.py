"""What studies of availability-aware weights share: their trials, what is measured of a run, how rates are chosen.

A trial is a task, a scheme (the name of a sampler and its options), a client and a server learning rate, a number of
rounds and a seed. Tasks: `synthetic G` is LEAF's synthetic(G, G), where 0 means the same rule for everybody; `mnist` is
Dirichlet(0.5) for each class; `even clusters` and `mixed clusters` are MNIST, iid or Dirichlet(0.5), with clients that
come and go in clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from turnout.algorithms.fedavg import FedAvg
from turnout.clients.chains import clustered, heterogeneous
from turnout.clients.population import Population
from turnout.config import registry
from turnout.core.random import FloatArray
from turnout.data import synthetic
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.record.audit import Audit
from turnout.sampling.cafed import CAFed
from turnout.server.observer import Event, Observer, Round
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.models import linear
from turnout.task.task import Task
from turnout_studies.images import mnist_flat, small_digits
from turnout_studies.study import Experiment, Measures, Results, Study, Trial, Trials

THESIS = "Marfoq, thesis, section 2.2.6"
GUESSING = 0.1  # accuracy among ten classes: what a diverged run counts as
LATE = 5  # evaluations whose mean is the final accuracy
CLUSTERS = 10
RIDGE = 0.01
Quantity = Callable[[Measures], float]
Values = Callable[[Results], FloatArray]
Scheme = dict[str, Any]

UNBIASED: Scheme = {"name": "unbiased"}
ADAFED: Scheme = {"name": "adafed"}


@dataclass(frozen=True)
class Size:
    clients: int = 100
    every: int = 5  # rounds between evaluations
    local_steps: int = 5
    batch_size: int = 32
    max_samples: int = 1000  # of a synthetic client
    share: float = 0.2  # of MNIST: every so many-th image
    digits: bool = False  # bundled digits in the place of MNIST
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)  # of clients
    server_rates: tuple[float, ...] = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)


def small(**changes: Any) -> dict[str, Any]:
    """Options of a size that takes seconds."""
    return {
        "clients": 20, "every": 2, "local_steps": 2, "max_samples": 60, "digits": True, "rates": (1.0,),
        "server_rates": (1.0,), **changes,
    }  # fmt: skip


class Curve(Observer):
    """Accuracy, mean over clients, at every evaluation; who trained; whom CA-Fed left out in the second half."""

    def __init__(self, rounds: int, every: int, clients: int) -> None:
        self.rounds, self.evaluations, self.excluded = rounds, rounds // every + 1, np.zeros(clients)
        self.rows: list[tuple[float, float]] = []
        self.used: list[float] = []
        self.diverged = False

    def on_event(self, server: Server, event: Event) -> None:
        self.diverged |= event.kind == "diverged"

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        self.rows.append((measures["train_accuracy"], measures["test_accuracy"]))

    def on_round(self, server: Server, record: Round) -> None:
        self.used.append(record.facts["used"])
        assert isinstance(server.algorithm, FedAvg)
        if isinstance(server.algorithm.sampler, CAFed) and record.number > self.rounds // 2:
            self.excluded += server.algorithm.sampler.excluded

    def measures(self) -> Measures:
        """A diverged run guesses from then on, and at the end in any case: in all that makes its final accuracy."""
        rows = self.rows
        if self.diverged:
            rows = rows[: min(len(rows) - 1, max(0, self.evaluations - LATE))]  # the last is of the round it stopped in
            rows = rows + [(GUESSING, GUESSING)] * (self.evaluations - len(rows))
        train, test = np.array(rows).T
        return {
            "train": train.tolist(),
            "test": test.tolist(),
            "used": float(np.mean(self.used)),
            "excluded": (self.excluded / (self.rounds - self.rounds // 2)).tolist(),
        }


def _dataset(task: str, size: Size, data: Path | None, seed: int) -> Dataset:
    kind, _, level = task.partition(" ")
    if kind == "synthetic":
        spread = float(level)
        return synthetic.load(
            alpha=spread, beta=spread, clients=size.clients, max_samples=size.max_samples, iid=spread == 0, seed=seed
        )
    if size.digits:
        return small_digits()
    whole, step = mnist_flat(data), round(1 / size.share)
    return replace(whole, inputs=whole.inputs[::step], targets=whole.targets[::step])


def _population(task: str, dataset: Dataset, size: Size, seed: int) -> Population:
    by_cluster = task.endswith("clusters")
    presence = clustered(size.clients, CLUSTERS) if by_cluster else heterogeneous(size.clients, seed=seed)
    shared: dict[str, Any] = {"seed": seed, "importance": "equal", "availability": presence}
    if task.startswith("synthetic"):
        return Population.of(dataset, size.clients, "natural", test="matched", **shared)
    if task.startswith("even"):
        return Population.of(dataset, size.clients, "iid", **shared)
    return Population.of(dataset, size.clients, "dirichlet", partition_options={"alpha": 0.5}, **shared)


class CAFedStudy(Study):
    """Trials of one task with one scheme each."""

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(2)
        def people(task: str, seed: int) -> Population:
            return _population(task, _dataset(task, size, data, seed), size, seed)

        def carry_out(trial: Trial) -> Measures:
            population, rounds, options = people(trial["task"], trial["seed"]), trial["rounds"], dict(trial["scheme"])
            local = LocalSGD(trial["lr"], steps=size.local_steps, batch_size=size.batch_size, weight_decay=RIDGE)
            sampler = registry.find("sampler", options.pop("name"))(**options)
            curve, audit = Curve(rounds, size.every, size.clients), Audit()
            Simulation(
                Task(partial(linear, population.inputs.shape[1], 10, zero_init=True), seed=trial["seed"]),
                population,
                FedAvg(local, sampler, server_lr=trial["server_lr"]),
                seed=trial["seed"],
                plan=plan,
                stopping=Stopping(rounds),
                evaluation=Evaluation(size.every),
                observers=[curve, audit],
            ).run()
            return {**curve.measures(), "weights": audit.findings.realised.tolist()}

        return carry_out


def planned(task: str, scheme: Scheme, rates: str) -> Trial:
    """A trial whose rates are those tuned under that name."""
    return {"task": task, "scheme": scheme, "rates": rates}


def completed(trial: Trial, tuned: dict[str, float], rounds: dict[str, int]) -> Trial:
    """A planned trial as it is carried out."""
    rates = {kind: tuned[f"{trial['rates']} {kind}"] for kind in ("lr", "server_lr")}
    return {"task": trial["task"], "scheme": trial["scheme"], "rounds": rounds[trial["task"]], **rates}


def tune(trials: Trials, seed: int, size: Size, rounds: dict[str, int], wanted: Sequence[Trial]) -> dict[str, float]:
    """Both learning rates of each planned trial: the best of the grid by the final training accuracy of one seed."""
    tried = {
        trial["rates"]: [
            {
                "task": trial["task"],
                "scheme": trial["scheme"],
                "rounds": rounds[trial["task"]],
                "lr": lr,
                "server_lr": server_lr,
                "seed": seed,
            }
            for lr in size.rates
            for server_lr in size.server_rates
        ]
        for trial in wanted
    }
    trials.ahead(one for grid in tried.values() for one in grid)
    best = {name: max(grid, key=lambda one: by(1.0, "train")(trials(**one))) for name, grid in tried.items()}
    return {f"{name} {kind}": one[kind] for name, one in best.items() for kind in ("lr", "server_lr")}


def carry_out(trials: Trials, seeds: Sequence[int], wanted: Sequence[Trial]) -> None:
    """These trials for every seed, in several processes where there are."""
    every = [{**trial, "seed": seed} for seed in seeds for trial in wanted]
    trials.all(every)


# -- what follows from the curves -----------------------------------------------------------------------------


def by(share: float, split: str = "test") -> Quantity:
    """Accuracy at the end, had the run ended after that share of the rounds: the mean of the last evaluations."""

    def value(measures: Measures) -> float:
        curve = measures[split][: round(share * (len(measures[split]) - 1)) + 1]
        return float(np.mean(curve[-LATE:]))

    return value


final = by(1.0)


def time_average(measures: Measures) -> float:
    return float(np.mean(measures["test"]))


def unrest(measures: Measures) -> float:
    """Standard deviation over the second half of the run."""
    curve = np.array(measures["test"])
    return float(curve[len(curve) // 2 :].std())


def at(share: float) -> Quantity:
    """Test accuracy after that share of the rounds."""
    return lambda measures: float(measures["test"][round(share * (len(measures["test"]) - 1))])


def shares(measures: Measures) -> FloatArray:
    """`[4]` share of all weight of the clients that are often online and correlated, often and not, seldom and
    correlated, seldom and not."""
    weights = np.array(measures["weights"])
    quarters = np.array([part.sum() for part in np.split(weights, 4)])
    return quarters / quarters.sum() if quarters.sum() else quarters


def each(results: Results, quantity: Quantity, trial: Trial) -> FloatArray:
    """The quantity of a planned trial, one number a seed."""
    return results.each(quantity, **completed(trial, results.tuned, results.setting["rounds"]))


def difference(quantity: Quantity, one: Trial, other: Trial) -> Values:
    """One trial's quantity minus another's, within each seed."""
    return lambda results: each(results, quantity, one) - each(results, quantity, other)


def distance(one: Trial, other: Trial) -> Values:
    """Mean distance between the test accuracies of two trials over the run, within each seed."""

    def values(results: Results) -> FloatArray:
        first, second = (each(results, lambda measures: measures["test"], trial) for trial in (one, other))
        return np.asarray(np.abs(first - second).mean(axis=1))  # over evaluations

    return values
