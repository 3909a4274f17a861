"""How accurate is SAFA when clients crash? Boston Housing and KDD99, linear models.

Wu et al., "SAFA: a semi-asynchronous protocol for fast federated learning with low overhead", IEEE Transactions on
Computers 2021; Wu's thesis (Warwick), tables A.1 to A.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from turnout.algorithms._algorithm import Algorithm
from turnout.algorithms.local import Local
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.data import boston, kdd99, mnist
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.sampling.uniform import Uniform
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.models import cnn_mnist, linear
from turnout.task.task import Task
from turnout_studies import safa_time
from turnout_studies.safa_tables import ACCURACIES, CRASH_RATES, FRACTIONS
from turnout_studies.safa_time import cells, whole_grid
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials
from turnout_studies.worlds.safa import TASKS

SCHEMES = ("local", "fedavg", "fedcs", "safa")
THESIS = "Wu, thesis, section 3.5 and appendix A"


@dataclass(frozen=True)
class Size:
    tasks: tuple[str, ...]
    rounds: int | None = None  # None: those of the task
    fractions: tuple[float, ...] = FRACTIONS
    crash_rates: tuple[float, ...] = CRASH_RATES
    share: float = 1.0  # of the data: every so many-th row
    stand_in: bool = False  # random numbers in the place of the data


def relative_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 - |y - y'| / max(y, y'), clipped to [0, 1]: the thesis's accuracy of a regression."""
    larger = torch.maximum(outputs, targets).clamp_min(1e-8)
    return (1 - (outputs - targets).abs() / larger).clamp(0, 1).flatten(1).mean(1)


def load(name: str, data: Path | None) -> Dataset:
    """In the order of the file, all rows to be dealt; features, and Boston's target, scaled to [0, 1]; raw pixels."""
    if name == "boston":
        return boston.load(folder=data, normalise="minmax", test_fraction=0.0)
    if name == "kdd99":
        return kdd99.load(folder=data, normalise="minmax", test_fraction=0.0)
    whole = mnist.load(folder=data, normalise="raw")
    assert whole.test_inputs is not None
    assert whole.test_targets is not None
    inputs = torch.cat([whole.inputs, whole.test_inputs])
    return Dataset("mnist", inputs, torch.cat([whole.targets, whole.test_targets]), 10)


def stand_in(name: str) -> Dataset:
    """As many numbers as the smallest trial needs."""
    rows = 3 * TASKS[name].clients
    if name == "mnist":
        return Dataset(name, torch.zeros(rows, 1, 28, 28), torch.arange(rows) % 10, 10)
    width = 13 if name == "boston" else 35
    inputs = torch.linspace(0, 1, rows * width).reshape(rows, width)
    return Dataset(name, inputs, torch.sign(inputs[:, :1] - 0.5) if name == "kdd99" else inputs[:, :1], None)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "boston": partial(linear, 13, 1, zero_init=True),
    "kdd99": partial(linear, 35, 1, zero_init=True),
    "mnist": cnn_mnist,
}
LOSSES = {"boston": "mse", "kdd99": "squared_hinge", "mnist": "cross_entropy"}


class Best(Observer):
    """The best test accuracy so far, which is what the tables show, and the last."""

    def __init__(self) -> None:
        self.best = self.last = 0.0

    def on_round(self, server: Server, record: Round) -> None:
        self.last = record.measures["test_accuracy"]
        self.best = max(self.best, self.last)


def algorithm(scheme: str, name: str, fraction: float) -> Algorithm:
    task = TASKS[name]
    if scheme == "local":
        return Local(task.local, Uniform(max(1, round(np.ceil(round(fraction * task.clients, 9))))), average=True)
    return safa_time.algorithm(scheme, task, fraction)


def best_accuracy(measures: Measures) -> float:
    return float(measures["best"])


def between(
    one: str, other: str, task: str, where: Callable[[FloatArray], FloatArray]
) -> Callable[[Results], FloatArray]:
    """The difference of two schemes' best accuracies, brought to one number a seed."""

    def values(results: Results) -> FloatArray:
        return where(cells(results, best_accuracy, task, one) - cells(results, best_accuracy, task, other))

    return values


def from_published(scheme: str, task: str) -> Callable[[Results], FloatArray]:
    """Mean distance to the table over the grid."""

    def values(results: Results) -> FloatArray:
        size = results.setting
        published = [
            [ACCURACIES[task][scheme][crash][FRACTIONS.index(fraction)] for fraction in size["fractions"]]
            for crash in size["crash_rates"]
        ]
        measured = cells(results, best_accuracy, task, scheme)
        return np.asarray(np.abs(measured - np.array(published)).mean(axis=(1, 2)))

    return values


def whole_mean(grid: FloatArray) -> FloatArray:
    return np.asarray(grid.mean(axis=(1, 2)))


def _worst_corner(grid: FloatArray) -> FloatArray:
    """The highest crash rate with the smallest fraction."""
    return np.asarray(grid[:, -1, 0])


def all_clients(grid: FloatArray) -> FloatArray:
    return np.asarray(grid[:, :, -1].mean(axis=1))


def _claims() -> Iterator[Claim]:
    for task, points in (("boston", 0.02), ("kdd99", 0.01)):
        for scheme in ("fedavg", "safa"):
            yield Claim(
                f"accuracy as published, {scheme}, {task}",
                "Table of best accuracies.",
                THESIS,
                "mean |measured - published| over the grid",
                from_published(scheme, task),
                below=points,
            )
        yield Claim(
            f"SAFA over local training, {task}",
            "SAFA reaches a higher accuracy than fully local training.",
            THESIS,
            "best accuracy, SAFA minus local, mean over the grid",
            between("safa", "local", task, whole_mean),
            above=0,
        )
        yield Claim(
            f"all clients, {task}",
            "With C = 1 FedAvg may win slightly.",
            THESIS,
            "best accuracy, SAFA minus FedAvg, at C = 1, mean over crash rates",
            between("safa", "fedavg", task, all_clients),
            above=-0.01,
            below=0.01,
        )
    yield Claim(
        "SAFA over FedAvg when most crash, boston",
        "SAFA's accuracy does not collapse when 70 % of the clients crash, where FedAvg's does (Boston, C = 0.1).",
        THESIS,
        "best accuracy, SAFA minus FedAvg, at crash rate 0.7 and C = 0.1 (published: 0.264)",
        between("safa", "fedavg", "boston", _worst_corner),
        above=0.05,
    )


class SafaTraining(Study):
    """What the studies of SAFA's accuracy share."""

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset(name: str) -> Dataset:
            return stand_in(name) if size.stand_in else load(name, data)

        def carry_out(trial: Trial) -> Measures:
            name, task = trial["task"], TASKS[trial["task"]]
            whole, step = dataset(name), round(1 / size.share)
            samples = Dataset(name, whole.inputs[::step], whole.targets[::step], whole.num_classes)
            people = Population.of(
                samples,
                task.clients,
                "gaussian_sizes",
                seed=trial["seed"],
                test_fraction=1 - task.train_share,
                partition_options={"in_order": True},
                **task.world(trial["crash"]),
            )
            metrics = {"accuracy": relative_accuracy} if name == "boston" else None
            best = Best()
            Simulation(
                Task(MODELS[name], LOSSES[name], metrics, seed=trial["seed"]),
                people,
                algorithm(trial["scheme"], name, trial["fraction"]),
                seed=trial["seed"],
                plan=plan,
                stopping=Stopping(size.rounds or task.rounds),
                evaluation=Evaluation(train=False),
                observers=[best],
            ).run()
            return {"best": best.best, "last": best.last}

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        whole_grid(seeds, size.tasks, size.crash_rates, size.fractions, SCHEMES, trials)
        return {}


class SafaAccuracy(SafaTraining):
    name = "safa_accuracy"
    title = "Accuracy of SAFA, FedAvg, FedCS and local training when clients crash"
    source = "Wu et al., SAFA, IEEE Transactions on Computers 2021; thesis tables A.1 to A.6"
    setting = """\
Task 1: Boston Housing, linear regression from zero, 5 clients, 100 rounds of 3 epochs, batch 5, lr 1e-4, accuracy
1 - mean |y - y'| / max(y, y'). Task 3: KDD99, linear SVM (squared hinge) from zero, 500 clients, 100 rounds of 5
epochs, batch 100, lr 1e-2. Slices of the file with Gaussian sizes, 70 % of each for training; features (and Boston's
target) scaled to [0, 1]. Crash rates 0.1, 0.3, 0.5, 0.7 and fractions 0.1, 0.3, 0.5, 0.7, 1; the best accuracy over the
rounds, on the clients' own test samples. SAFA with the conventions of the published tables (`safa_thesis`); local
training is averaged once, as if the run ended there.
Other than in the source: several seeds; the best model is not carried over between
rounds; no training before round 1."""
    small_data = "invented numbers in the place of Boston housing and KDD Cup 1999"
    sizes = {
        "small": Size(tasks=("boston", "kdd99"), rounds=2, fractions=(0.1, 1.0), crash_rates=(0.7,), stand_in=True),
        "default": Size(tasks=("boston", "kdd99")),
    }
    claims = tuple(_claims())


STUDY = SafaAccuracy()
