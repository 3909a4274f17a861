"""Does asynchronous FedAvg optimise what it should? IDENTICAL against TIME-BASED weights.

Fraboni, Vidal, Kameni, Lorenzi, "A general theory for federated optimization with asynchronous and heterogeneous
clients updates", JMLR 2023, section 5.2.1 and figure 2; Fraboni's thesis (2023), section 4.5 and figure 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.clients import devices
from turnout.core.random import FloatArray
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.task.models import linear
from turnout_studies.images import cifar10_shrunk, mnist_flat, small_digits
from turnout_studies.losses import bounded_loss, climb, early, federated, federation, late, late_loss, spread, train
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

IDENTICAL, TIME_BASED = "naive", "unbiased"
TASKS = ("mnist iid", "mnist dirichlet", "cifar10 dirichlet")
ALPHA = {"iid": 10_000.0, "dirichlet": 0.1}
PERCENT = 80
THESIS = "Fraboni, thesis, section 4.5"
JOURNAL = "Fraboni et al., JMLR 2023, section 5.2.1"
LOADERS: dict[str, Callable[[Path | None], Dataset]] = {
    "mnist": mnist_flat,
    "cifar10": cifar10_shrunk,
    "digits": lambda _: small_digits(),
}


@dataclass(frozen=True)
class Size:
    clients: int
    horizon: float  # units of time: what the slowest client needs for a job
    first_rate: float  # where the search for a learning rate begins
    batch_size: int = 64
    stand_in: str | None = None  # a dataset for all tasks


def speeds(clients: int) -> FloatArray:
    """`[N]` 1 / tau_i, normalised: the weights of the surrogate problem that IDENTICAL optimises."""
    inverse = 1 / devices.fx(PERCENT, clients).seconds(0, np.arange(clients), 0, 1, 1)
    return np.asarray(inverse / inverse.sum())


def compared(quantity: Callable[[Measures], float], task: str, sign: int = 1) -> Callable[[Results], FloatArray]:
    """A quantity of IDENTICAL minus that of TIME-BASED, a number a seed; the other way round with sign -1."""

    def values(results: Results) -> FloatArray:
        identical, time_based = (
            results.each(quantity, task=task, rule=rule, lr=results.tuned[task]) for rule in (IDENTICAL, TIME_BASED)
        )
        return sign * (identical - time_based)

    return values


def _surrogate(measures: Measures) -> float:
    return late(federated(measures, speeds(len(measures["losses"][0]))))


def _ratio_of_gaps(results: Results) -> FloatArray:
    return compared(late_loss, "mnist dirichlet")(results) / compared(late_loss, "mnist iid")(results)


def _claims() -> Iterator[Claim]:
    for task in TASKS:
        yield Claim(
            f"federated loss, {task}",
            "With hardware heterogeneity F80, TIME-BASED weights reach a lower federated loss than IDENTICAL ones on "
            "all tasks, MNIST iid included.",
            THESIS,
            "late federated loss, IDENTICAL minus TIME-BASED",
            compared(late_loss, task),
            above=0,
        )
    for task in TASKS:
        yield Claim(
            f"spread over clients, {task}",
            "TIME-BASED weights lead to a smaller spread of the loss over clients.",
            THESIS,
            "late standard deviation of the loss over clients, IDENTICAL minus TIME-BASED",
            compared(lambda measures: late(spread(measures)), task),
            above=0,
        )
    yield Claim(
        "gap grows with heterogeneity",
        "The gap of IDENTICAL to TIME-BASED on MNIST Dir(0.1) is about twice the one on iid MNIST.",
        THESIS,
        "ratio of the two gaps of the late federated loss, Dir(0.1) over iid",
        _ratio_of_gaps,
        above=1.5,
        below=3,
    )
    for task in TASKS:
        yield Claim(
            f"surrogate loss, {task}",
            "On the surrogate problem, whose weights are the clients' speeds, IDENTICAL is the better one.",
            THESIS,
            "late loss weighted by 1 / tau_i, TIME-BASED minus IDENTICAL",
            compared(_surrogate, task, -1),
            above=0,
        )
    for task in TASKS:
        yield Claim(
            f"first steps, {task}",
            "IDENTICAL weights make the loss fall faster at first.",
            JOURNAL,
            "early federated loss (mean at 1, 2 and 5 % of the time), TIME-BASED minus IDENTICAL",
            compared(lambda measures: early(federated(measures)), task, -1),
            above=0,
        )


class AsynchronousBias(Study):
    name = "asynchronous_bias"
    title = "Asynchronous FedAvg with identical and with time-based weights"
    source = "Fraboni et al., JMLR 2023, figure 2; Fraboni's thesis, figure 4.2"
    setting = """\
Logistic regression; 10 clients of equal size and importance, scenario F80 (delays 1, ..., 0.2), one local SGD step of
batch 64, every update aggregated as it arrives: d_i = 1 (IDENTICAL) or d_i = [sum_j 1 / tau_j] tau_i p_i (TIME-BASED).
MNIST with Dir(10000) ("iid") and Dir(0.1) class mixtures, CIFAR-10 shrunk to 3 x 16 x 16 with Dir(0.1); samples drawn
with replacement inside a class. Both rules use the learning rate tuned for IDENTICAL: the late federated loss of the
first seed, walking over a 1-2-5 grid from 0.01 until both neighbours are worse. A seed changes mixtures, initial model
and batches. Late values are means of ten evaluations in the last tenth of the time.
Other than in the source: 400 units of virtual time instead of 200,000; CIFAR-100 is left out."""
    small_data = "bundled 8 x 8 digits in the place of MNIST and CIFAR-10"
    sizes = {
        "small": Size(clients=3, horizon=4, first_rate=0.5, batch_size=16, stand_in="digits"),
        "default": Size(clients=10, horizon=400, first_rate=0.01),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset(name: str) -> Dataset:
            return LOADERS[name](data)

        def carry_out(trial: Trial) -> Measures:
            name, mixture = trial["task"].split()
            samples = dataset(size.stand_in or name)
            people = federation(samples, size.clients, ALPHA[mixture], PERCENT, trial["seed"])
            local = LocalSGD(trial["lr"], steps=1, batch_size=size.batch_size)
            algorithm = AsyncFedAvg(local, weight_rule=trial["rule"])
            width = samples.inputs.shape[1]
            return train(lambda: linear(width, 10), people, algorithm, trial["seed"], size.horizon, plan)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        tuned = {}
        for task in TASKS:

            def loss(lr: float, task: str = task) -> float:
                return bounded_loss(trials(task=task, rule=IDENTICAL, lr=lr, seed=seeds[0]))

            tuned[task] = climb(loss, size.first_rate)
            for seed in seeds:
                for rule in (IDENTICAL, TIME_BASED):
                    trials(task=task, rule=rule, lr=tuned[task], seed=seed)
        return tuned


STUDY = AsynchronousBias()
