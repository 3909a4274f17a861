"""Does it pay to draw clients whose data look like the server's? Noisy, blurred and irrelevant data.

Wu, He, Lin, Mao, "FedProf: selective federated learning based on distributional representation profiling", IEEE
Transactions on Parallel and Distributed Systems 2023; Wu's thesis (Warwick), section 5.5, tables 5.3 and 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turnout import random
from turnout.algorithms.algorithm import Algorithm
from turnout.algorithms.cfcfm import CFCFM
from turnout.algorithms.fedadam import FedAdam
from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedavg_rp import FedAvgRP
from turnout.algorithms.fedavgm import FedAvgM
from turnout.algorithms.fedprof import FedProf
from turnout.algorithms.fedprox import FedProx
from turnout.cohort.plan import Plan
from turnout.datasets import gas_turbine, mnist
from turnout.datasets.dataset import Dataset
from turnout.models import Reshape, mlp
from turnout.population.fedprof_world import TASKS, FedProfTask
from turnout.population.population import Population
from turnout.population.quality import NORMAL, degrade
from turnout.population.ragged import Ragged
from turnout.random import FloatArray
from turnout.run import Result, simulate
from turnout.sampling.afl import AFL
from turnout.sampling.fill import Fill
from turnout.sampling.md import MD
from turnout.sampling.uniform import Uniform
from turnout.server.stopping import Evaluation
from turnout.studies.safa_accuracy import relative_accuracy
from turnout.studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials
from turnout.task import Task

THESIS = "Wu, thesis, section 5.5"
SCHEMES = {"full": ("fedavg", "cfcfm", "fedprof"), "partial": ("fedavg_rp", "fedprox", "fedadam", "afl", "fedprof")}
FRACTIONS = {"S": (0.2, 0.3), "L": (0.05, 0.1)}
QUALITY = {
    "S": {"irrelevant": 0.1, "gaussian_noise": 0.4},
    "L": {"irrelevant": 0.15, "blur": 0.2, "salt_and_pepper": 0.25},
}
DOMINANT = 0.6  # share of a client's main class


@dataclass(frozen=True)
class Size:
    tasks: tuple[str, ...]
    clients: dict[str, int]
    rounds: int | None = None  # None: those of the task
    stand_in: bool = False  # random numbers in the place of the data


def load(name: str, data: Path | None) -> Dataset:
    """Gas turbine: inputs and targets standardised, 30 % for the server. Digits: the server has the test set."""
    if name == "S":
        return gas_turbine.load(folder=data, test_fraction=0.3)
    return mnist.load(folder=data)


def stand_in(name: str, clients: int) -> Dataset:
    """As many numbers as the smallest trial needs; what is true of them can be learnt."""
    rows = 20 * clients + 100
    shape = (9,) if name == "S" else (1, 28, 28)
    inputs = torch.from_numpy(random.normal(random.key(0, name), rows * math.prod(shape))).float().reshape(rows, *shape)
    first = inputs.flatten(1)[:, :2]
    targets, classes = (first, None) if name == "S" else ((first[:, 0] > 0).long(), 10)
    facts: dict[str, object] = {"target_offset": np.array([5.0, 5.0]), "target_scale": np.array([1.0, 1.0])}
    return Dataset(name, inputs[100:], targets[100:], classes, inputs[:100], targets[:100], facts=facts)


def dominated(data: Dataset, clients: int, seed: int) -> Ragged:
    """Equal sizes; six in ten samples of client i are of class i mod C, as far as there are so many."""
    labels = data.targets.numpy()
    classes = int(labels.max()) + 1
    order = random.permutation(random.key(seed, "dominated"), len(labels))
    size = len(labels) // clients
    rows: list[list[int]] = [[] for _ in range(clients)]
    rest = []
    for label in range(classes):
        mine = order[labels[order] == label]
        owners = range(label, clients, classes)
        share = min(round(DOMINANT * size), len(mine) // max(1, len(owners)))
        for place, client in enumerate(owners):
            rows[client] += mine[place * share : (place + 1) * share].tolist()
        rest.append(mine[share * len(owners) :])
    left = np.concatenate(rest)
    left = left[random.permutation(random.key(seed, "dominated rest"), len(left))]
    for row in rows:
        missing, left = left[: size - len(row)], left[size - len(row) :]
        row += missing.tolist()
    return Ragged.from_rows(rows)


def cnn() -> nn.Module:
    """LeNet-like, 128 units in the first fully connected layer."""
    return nn.Sequential(
        Reshape(1, 28, 28),
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),  # 6 x 12 x 12
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),  # 16 x 4 x 4
        *(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def learner(name: str, data: Dataset, seed: int) -> Task:
    if name == "L":
        return Task(cnn, seed=seed)
    offset, scale = (torch.as_tensor(data.facts[f"target_{part}"]) for part in ("offset", "scale"))

    def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
        """Of CO and NOx as they are measured."""
        shift, unit = offset.to(outputs), scale.to(outputs)
        return relative_accuracy(outputs * unit + shift, targets * unit + shift)

    return Task(partial(mlp, 9, [64, 32], 2), "mse", {"accuracy": accuracy}, seed=seed)


def algorithm(scheme: str, mode: str, task: FedProfTask, clients: int, fraction: float) -> Algorithm:
    work, k = task.local, math.ceil(round(fraction * clients, 9))
    made: dict[str, Callable[[], Algorithm]] = {
        "fedavg": lambda: FedAvg(work, Fill(k)),
        "cfcfm": lambda: CFCFM(work, fraction=fraction),
        "fedavg_rp": lambda: FedAvgRP(work, Uniform(k)),
        "fedprox": lambda: FedProx(work, MD(k), mu=0.01),
        "fedadam": lambda: FedAdam(work, Uniform(k)),
        "afl": lambda: FedAvgM(work, AFL(k)),
        "fedprof": lambda: FedProf(work, clients_per_round=k, aggregation=mode),
    }
    return made[scheme]()


def summary(result: Result, task: FedProfTask, tags: NDArray[np.str_], seed: int) -> Measures:
    """Accuracy, time and energy at every round, what came before the first, and how often clients trained, by tag."""
    rounds, jobs = result.rounds(), result.jobs()
    energy = task.energy_of(jobs, len(tags), seed)
    alone = jobs["steps"] == 0
    times = np.bincount(jobs["client"][~alone], minlength=len(tags))
    return {
        "accuracy": rounds["central_accuracy"].tolist(),
        "seconds": rounds["time"].tolist(),
        "energy": np.cumsum(np.bincount(jobs["round"], energy, minlength=len(rounds["time"]))).tolist(),
        "init_energy": float(energy[alone].sum()),
        "init_seconds": float(jobs["ended_at"][alone].max(initial=0.0)),
        "trained": {str(tag): float(times[tags == tag].mean()) for tag in np.unique(tags)},
    }


# -- what is measured -----------------------------------------------------------------------------------------

Quantity = Callable[[Measures], float]


def best(measures: Measures) -> float:
    return float(max(measures["accuracy"]))


def rounds_to(target: float) -> Quantity:
    """The first round with that accuracy; one more than there are where there is none."""

    def first(measures: Measures) -> float:
        good = (number for number, value in enumerate(measures["accuracy"]) if number and value >= target)
        return float(next(good, len(measures["accuracy"])))

    return first


def energy_to(target: float) -> Quantity:
    """Spent by then; all of it where that never comes."""
    return lambda measures: float(measures["energy"][: int(rounds_to(target)(measures)) + 1][-1])


def trained(*tags: str) -> Quantity:
    """How often a client of these kinds trained in a hundred rounds, the most of them."""
    return lambda measures: (
        max(measures["trained"].get(tag, 0.0) for tag in tags) * 100 / (len(measures["accuracy"]) - 1)
    )


def grid(results: Results, quantity: Quantity, task: str, mode: str, scheme: str) -> FloatArray:
    """`[seeds, fractions]`."""
    columns = [
        results.each(quantity, task=task, mode=mode, scheme=scheme, fraction=fraction) for fraction in FRACTIONS[task]
    ]
    return np.stack(columns, axis=1)


def lead(task: str, mode: str, *rivals: str) -> Callable[[Results], FloatArray]:
    """Best accuracy of FedProf minus the best of its rivals, mean over fractions."""

    def values(results: Results) -> FloatArray:
        others = np.max([grid(results, best, task, mode, scheme) for scheme in rivals], axis=0)
        return np.asarray((grid(results, best, task, mode, "fedprof") - others).mean(axis=1))

    return values


def ratio(
    quantity: Quantity, task: str, one: tuple[str, str], other: tuple[str, str]
) -> Callable[[Results], FloatArray]:
    """Of two (mode, scheme), mean over fractions."""

    def values(results: Results) -> FloatArray:
        top, bottom = (grid(results, quantity, task, *which) for which in (one, other))
        return np.asarray((top / bottom).mean(axis=1))

    return values


def more_often(task: str, mode: str, one: str, *others: str) -> Callable[[Results], FloatArray]:
    """How much more often the one kind trained under FedProf than the most frequent of the others."""

    def values(results: Results) -> FloatArray:
        counts = (grid(results, trained(*tags), task, mode, "fedprof") for tags in ((one,), others))
        return np.asarray((next(counts) - next(counts)).mean(axis=1))

    return values


def _claims() -> Iterator[Claim]:
    for task in ("S", "L"):
        target = TASKS[task].target
        for mode, schemes in SCHEMES.items():
            yield Claim(
                f"first of all, {task} {mode}",
                "FedProf has the best accuracy in every column.",
                THESIS,
                "best accuracy, FedProf minus the best of the others, mean over C",
                lead(task, mode, *(scheme for scheme in schemes if scheme != "fedprof")),
                above=0,
            )
        yield Claim(
            f"over FedAvg-RP, {task}",
            "Up to 2.5 points more than FedAvg-RP (0.844 and 0.819; 0.962 and 0.937).",
            THESIS,
            "best accuracy, FedProf minus FedAvg-RP, partial, mean over C",
            lead(task, "partial", "fedavg_rp"),
            above=0.005,
        )
        yield Claim(
            f"rounds, {task}",
            "Far fewer rounds to the target than FedAvg (16 and 56, 12 and 52; 98 and 213, 45 and 76).",
            THESIS,
            f"rounds to {target}, FedProf over FedAvg, full, mean over C; all rounds and one where it is not reached",
            ratio(rounds_to(target), task, ("full", "fedprof"), ("full", "fedavg")),
            below=0.6,
        )
        yield Claim(
            f"energy, {task}",
            "Less energy to the target than FedAvg-RP (0.27 and 0.71 Wh; 2.26 and 3.29 Wh).",
            THESIS,
            f"energy to {target}, first profiles included, FedProf over FedAvg-RP, partial, mean over C",
            ratio(energy_to(target), task, ("partial", "fedprof"), ("partial", "fedavg_rp")),
            below=1,
        )
        yield Claim(
            f"partial is faster, {task}",
            "Partial aggregation converges far faster than full (5 and 16 rounds; 8 and 98).",
            THESIS,
            f"rounds to {target}, FedProf, partial over full, mean over C",
            ratio(rounds_to(target), task, ("partial", "fedprof"), ("full", "fedprof")),
            below=0.6,
        )
    for mode in SCHEMES:
        yield Claim(
            f"who trains, S {mode}",
            "Clients without valid data and noisy ones take part less than normal ones.",
            THESIS,
            "times trained in 100 rounds, normal minus the more frequent of noisy and irrelevant",
            more_often("S", mode, NORMAL, "gaussian_noise", "irrelevant"),
            above=0,
        )
        yield Claim(
            f"normal over salt and pepper, L {mode}",
            "Clients with salt and pepper take part less than normal ones.",
            THESIS,
            "times trained in 100 rounds, normal minus salt and pepper",
            more_often("L", mode, NORMAL, "salt_and_pepper"),
            above=0,
        )
        yield Claim(
            f"salt and pepper over blurred and irrelevant, L {mode}",
            "Blurred and irrelevant clients are practically excluded.",
            THESIS,
            "times trained in 100 rounds, salt and pepper minus the more frequent of blurred and irrelevant",
            more_often("L", mode, "salt_and_pepper", "blur", "irrelevant"),
            above=0,
        )
    yield Claim(
        "bad clients seldom train, S",
        "Noisy and invalid clients are drawn fewer than ten times in 100 rounds (C = 0.2).",
        THESIS,
        "times a noisy or irrelevant client trained in 100 rounds, full, C = 0.2",
        lambda results: results.each(
            trained("gaussian_noise", "irrelevant"), task="S", mode="full", scheme="fedprof", fraction=0.2
        ),
        below=10,
    )


class FedProfStudy(Study):
    name = "fedprof"
    title = "FedProf against random, fast and loss-based selection when many clients have bad data"
    source = "Wu et al., FedProf, IEEE TPDS 2023; thesis tables 5.3 and 5.4, figures 5.11 and 5.12"
    setting = """\
Task S: gas turbine emissions (CO and NOx from nine sensors), 50 clients of about 514 rows, MLP 9-64-32-2, 2 epochs, 100
rounds; 10 % of the clients hold uniform random numbers, 40 % inputs with noise of one standard deviation; the server
holds 30 % of the rows. Accuracy 1 - |y - y'| / max(y, y'), mean of both targets. Task L: MNIST in the place of EMNIST
digits, LeNet-like CNN with 128 units in its first dense layer, 5 epochs, 300 rounds (partial: 50), 60 % of a client's
images of one class; 15 % of the clients hold uniform noise with random labels, 20 % blurred images (3 pixels), 25 %
salt and pepper (0.3); the server holds the test set. Batch 32, lr 1e-2, alpha 10, first dense layer; devices, links
and energy of the thesis. The profiles of all clients at the start are charged.
Other than in the source: 250 clients of 240 images in task L instead of 1,000 (MNIST has no more); no decay of the
learning rate; the best model is reported and not carried over between rounds; FedProx with mu 0.01, AFL with momentum
0.9; strengths of noise and blur are not published; several seeds."""
    sizes = {
        "small": Size(tasks=("S", "L"), clients={"S": 10, "L": 20}, rounds=2, stand_in=True),
        "default": Size(tasks=("S", "L"), clients={"S": 50, "L": 250}),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset(name: str) -> Dataset:
            return stand_in(name, size.clients[name]) if size.stand_in else load(name, data)

        def carry_out(trial: Trial) -> Measures:
            name, seed, mode = trial["task"], trial["seed"], trial["mode"]
            task, clients = TASKS[name], size.clients[name]
            whole = dataset(name)
            deal = "gaussian_sizes" if name == "S" else dominated
            people = Population.of(whole, clients, deal, seed=seed, test="none", **task.world(clients, seed))
            people, tags = degrade(people, QUALITY[name], seed)
            result = simulate(
                learner(name, whole, seed),
                people,
                algorithm(trial["scheme"], mode, task, clients, trial["fraction"]),
                size.rounds or task.rounds[mode],
                seed=seed,
                plan=plan,
                evaluation=Evaluation(train=False, clients=1),
            )
            return summary(result, task, tags, seed)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        every = [
            {"task": task, "mode": mode, "scheme": scheme, "fraction": fraction, "seed": seed}
            for task in size.tasks
            for mode, schemes in SCHEMES.items()
            for scheme in schemes
            for fraction in FRACTIONS[task]
            for seed in seeds
        ]
        trials.ahead(every)
        for trial in every:
            trials(**trial)
        return {}


STUDY = FedProfStudy()
