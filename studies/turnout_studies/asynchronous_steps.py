"""How many local steps can asynchronous FedAvg take at one learning rate?

Fraboni, Vidal, Kameni, Lorenzi, "A general theory for federated optimization with asynchronous and heterogeneous
clients updates", JMLR 2023, section 5.2.2 and figure 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from turnout.algorithms.async_fedavg import AsyncFedAvg
from turnout.core.random import FloatArray
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.task.models import linear
from turnout_studies.images import cifar10_shrunk, small_digits
from turnout_studies.losses import bounded_loss, climb, federation, late_loss, train, unrest
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

RULES = {"IDENTICAL": "naive", "TIME-BASED": "unbiased"}
STEPS = (1, 4, 8, 16, 25)
BEYOND = (16, 25)
SOURCE = "Fraboni et al., JMLR 2023, section 5.2.2"


@dataclass(frozen=True)
class Size:
    clients: int
    horizon: float  # units of time: what the slowest client needs for a job
    first_rate: float
    batch_size: int = 64
    digits: bool = False  # bundled digits instead of CIFAR-10


def of(results: Results, quantity: Callable[[Measures], float], rule: str, steps: int) -> FloatArray:
    """A number a seed."""
    return results.each(quantity, rule=RULES[rule], steps=steps, lr=results.tuned["lr"])


def change(rule: str, first: int, last: int) -> Callable[[Results], FloatArray]:
    """By how much the loss is higher with `last` than with `first` steps."""
    return lambda results: of(results, late_loss, rule, last) - of(results, late_loss, rule, first)


def relative_change(rule: str, first: int, last: int) -> Callable[[Results], FloatArray]:
    return lambda results: change(rule, first, last)(results) / of(results, late_loss, rule, first)


def smallest_growth(rule: str) -> Callable[[Results], FloatArray]:
    """Of the unrest, from one number of steps to the next."""
    return lambda results: np.diff([of(results, unrest, rule, steps) for steps in STEPS], axis=0).min(axis=0)


def excess(quantity: Callable[[Measures], float]) -> Callable[[Results], FloatArray]:
    """TIME-BASED minus IDENTICAL, mean over the large numbers of steps."""

    def values(results: Results) -> FloatArray:
        both = [[of(results, quantity, rule, steps) for steps in BEYOND] for rule in ("TIME-BASED", "IDENTICAL")]
        return np.asarray(np.mean(both[0], axis=0) - np.mean(both[1], axis=0))

    return values


def _claims() -> Iterator[Claim]:
    for rule in RULES:
        sentence = "With more local steps the loss first falls, then rises."
        words = "late federated loss at {} steps minus at {}"
        yield Claim(f"first falls, {rule}", sentence, SOURCE, words.format(4, 1), change(rule, 1, 4), below=0)
        yield Claim(f"then rises, {rule}", sentence, SOURCE, words.format(25, 8), change(rule, 8, 25), above=0)
    for rule in RULES:
        yield Claim(
            f"unrest grows, {rule}",
            "The standard deviation of the loss over the last rounds grows strictly with the number of local steps.",
            SOURCE,
            "smallest growth of the late unrest from one number of steps to the next (1, 4, 8, 16, 25)",
            smallest_growth(rule),
            above=0,
        )
    yield Claim(
        "larger unrest beyond 8 steps",
        "Beyond 8 steps the loss varies more with TIME-BASED than with IDENTICAL weights.",
        SOURCE,
        "late unrest at 16 and 25 steps, TIME-BASED minus IDENTICAL",
        excess(unrest),
        above=0,
    )
    yield Claim(
        "larger loss beyond 15 steps",
        "Beyond 15 steps the loss is larger with TIME-BASED than with IDENTICAL weights.",
        SOURCE,
        "late federated loss at 16 and 25 steps, TIME-BASED minus IDENTICAL",
        excess(late_loss),
        above=0,
    )
    yield Claim(
        "flat from 8 to 16 steps, IDENTICAL",
        "With IDENTICAL weights the loss stays the same from 8 to 16 steps.",
        SOURCE,
        "relative change of the late federated loss from 8 to 16 steps (flat: within 5 %)",
        relative_change("IDENTICAL", 8, 16),
        above=-0.05,
        below=0.05,
    )


class AsynchronousSteps(Study):
    name = "asynchronous_steps"
    title = "Asynchronous FedAvg with more and more local steps"
    source = "Fraboni et al., JMLR 2023, figure 3"
    setting = """\
CIFAR-10 with Dir(0.1) class mixtures, 10 clients of equal size and importance, scenario F80 (delays 1, ..., 0.2),
1, 4, 8, 16 or 25 local SGD steps of batch 64, IDENTICAL and TIME-BASED weights. All use the learning rate that is best
for IDENTICAL with one step: the late federated loss of the first seed, walking over a 1-2-5 grid from 0.005 until both
neighbours are worse. Late values are means of ten evaluations in the last tenth of the time; unrest is the standard
deviation of those around their straight line.
Other than in the source: logistic regression on images shrunk to 3 x 16 x 16 instead of a convolutional network, and
100 units of virtual time instead of 25,000."""
    small_data = "bundled 8 x 8 digits in the place of CIFAR-10"
    sizes = {
        "small": Size(clients=3, horizon=4, first_rate=0.5, batch_size=16, digits=True),
        "default": Size(clients=10, horizon=100, first_rate=0.005),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            return small_digits() if size.digits else cifar10_shrunk(data)

        def carry_out(trial: Trial) -> Measures:
            samples = dataset()
            people = federation(samples, size.clients, 0.1, 80, trial["seed"])
            local = LocalSGD(trial["lr"], steps=trial["steps"], batch_size=size.batch_size)
            algorithm = AsyncFedAvg(local, weight_rule=trial["rule"])
            width = samples.inputs.shape[1]
            return train(lambda: linear(width, 10), people, algorithm, trial["seed"], size.horizon, plan)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        def loss(lr: float) -> float:
            return bounded_loss(trials(rule=RULES["IDENTICAL"], steps=1, lr=lr, seed=seeds[0]))

        tuned = climb(loss, size.first_rate)
        for steps in STEPS:
            for seed in seeds:
                for rule in RULES.values():
                    trials(rule=rule, steps=steps, lr=tuned, seed=seed)
        return {"lr": tuned}


STUDY = AsynchronousSteps()
