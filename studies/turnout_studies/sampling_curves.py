"""What studies of client sampling measure: loss, accuracy, and how many clients and classes a round hears of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from turnout.algorithms._algorithm import Algorithm
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.engine.plan import Plan
from turnout.sampling._sampler import Sampler
from turnout.sampling.clustered_similarity import ClusteredSimilarity
from turnout.sampling.clustered_size import ClusteredSize
from turnout.sampling.md import MD
from turnout.sampling.target import Target
from turnout.sampling.uniform import Uniform
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.task import Task
from turnout_studies.study import Measures, Results, Trial

Quantity = Callable[[Measures], float]
Values = Callable[[Results], FloatArray]
LATE = 6  # one part in so many of the evaluations, the last
SCHEMES: dict[str, Callable[[int], Sampler]] = {
    "md": MD,
    "uniform": Uniform,
    "size": ClusteredSize,
    "similarity": ClusteredSimilarity,
    "similarity_l2": lambda m: ClusteredSimilarity(m, distance="l2"),
    "similarity_l1": lambda m: ClusteredSimilarity(m, distance="l1"),
}


def sampler(scheme: str, m: int, groups: Sequence[int]) -> Sampler:
    return Target(m, groups=list(groups)) if scheme == "target" else SCHEMES[scheme](m)


class Curves(Observer):
    """A row every `every` rounds, and the company of every round."""

    def __init__(self, classes: list[set[int]]) -> None:
        self.classes = classes  # that each client holds
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.distinct: list[int] = []
        self.distinct_classes: list[int] = []

    def on_round(self, server: Server, record: Round) -> None:
        heard = {job.client for job, weight in zip(record.jobs, record.weights, strict=True) if weight}
        self.distinct.append(len(heard))
        self.distinct_classes.append(len(set().union(*(self.classes[client] for client in heard))))

    def on_evaluate(self, server: Server, measures: dict[str, float]) -> None:
        self.losses.append(float(f"{measures['train_loss']:.7g}"))
        self.accuracies.append(float(f"{measures.get('test_accuracy', float('nan')):.5g}"))


def train(
    task: Task, people: Population, algorithm: Algorithm, seed: int, rounds: int, every: int, plan: Plan
) -> Measures:
    """The curves of one run."""
    labels = people.targets.numpy()
    curves = Curves([set(np.unique(labels[people.train.row(client)]).tolist()) for client in people.ids])
    stopping, evaluation = Stopping(rounds), Evaluation(rounds=every)
    Simulation(
        task, people, algorithm, seed=seed, plan=plan, stopping=stopping, evaluation=evaluation, observers=[curves]
    ).run()
    names = ("losses", "accuracies", "distinct", "distinct_classes")
    return {name: getattr(curves, name) for name in names}


# -- what follows from the curves ------------------------------------------------------------------------------


def late(values: Sequence[float]) -> float:
    """Mean of the last sixth."""
    return float(np.mean(values[-max(1, len(values) // LATE) :]))


def late_loss(measures: Measures) -> float:
    return late(measures["losses"])


def late_accuracy(measures: Measures) -> float:
    return late(measures["accuracies"])


def mean_loss(measures: Measures) -> float:
    """Over all of the run: how fast it fell."""
    return float(np.mean(measures["losses"]))


def unrest(measures: Measures) -> float:
    """Standard deviation of the change from one evaluation to the next, in the second half."""
    losses = np.asarray(measures["losses"])
    return float(np.diff(losses[len(losses) // 2 :]).std())


def late_classes(measures: Measures) -> float:
    """Distinct classes a round, in the last quarter."""
    seen = measures["distinct_classes"]
    return float(np.mean(seen[-max(1, len(seen) // 4) :]))


def early_classes(measures: Measures) -> float:
    """Distinct classes a round, in the first ten."""
    return float(np.mean(measures["distinct_classes"][:10]))


def fewest_clients(measures: Measures) -> float:
    return float(np.min(measures["distinct"]))


def gap(quantity: Quantity, larger: Trial, smaller: Trial) -> Values:
    """How much larger it is in one trial than in the other, a number a seed."""
    return lambda results: results.each(quantity, **larger) - results.each(quantity, **smaller)
