"""Does not renormalising by who answered help when an adversary decides who does? CIFAR-10, equal clients.

Su, Xu, Yang, "Federated learning in the presence of adversarial client unavailability", 2023, sections 6.2 and E.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from turnout.clients.population import Population
from turnout.core import random
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.run import shadow
from turnout.task.models import linear
from turnout.task.task import Task
from turnout_studies.adversarial_runs import (
    BYZANTINE,
    GM,
    METHODS,
    MIFA,
    NAIVE,
    NAIVE_PROX,
    RATES,
    ROBUST,
    ROBUST_PROX,
    SEARCH,
    SHADOW,
    WORST,
    adversary,
    difference,
    late_accuracy,
    method,
    over_the_best,
    train,
    tune_and_try,
    unrest,
)
from turnout_studies.images import cifar10_subset, small_digits
from turnout_studies.study import Claim, Experiment, Measures, Study, Trial, Trials

MANY, FEW = 0.8, 0.2
ATTACKS = ((MANY, SHADOW), (MANY, WORST), (FEW, SHADOW))
ROBUST_METHODS = {ROBUST: NAIVE, ROBUST_PROX: NAIVE_PROX}  # and their naive forms
SECTION, APPENDIX = "Su, Xu, Yang, section 6.2", "Su, Xu, Yang, appendix E.1"


@dataclass(frozen=True)
class Size:
    clients: int
    invited: int
    rounds: int
    every: int  # rounds between evaluations
    steps: int  # of FedAvg's clients
    prox_steps: int
    batch_size: int
    shadow_rounds: tuple[int, int]
    candidates: tuple[int, int]  # by gradients, by momenta
    shadow_lr: float = 0.03
    mu: float = 0.1
    rates: tuple[float, ...] = RATES
    digits: bool = False  # bundled digits and a linear model instead of CIFAR-10 and LeNet-5


def lenet5(channels: int = 3, classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def other_images(dataset: Dataset, seed: int) -> Dataset:
    """Every image is exchanged for one of its class, so that the same mixtures are dealt other images."""
    labels = dataset.targets.numpy()
    drawn = random.permutation(random.key(seed, "other images"), len(labels))
    order = np.empty_like(drawn)
    order[np.argsort(labels, kind="stable")] = drawn[np.argsort(labels[drawn], kind="stable")]
    return replace(dataset, inputs=dataset.inputs[torch.from_numpy(order)])


def _claims() -> Iterator[Claim]:
    for epsilon, foe in ATTACKS:
        yield from (_claims_of_many if epsilon == MANY else _claims_of_few)(foe)


def _claims_of_many(foe: str) -> Iterator[Claim]:
    for robust, usual in ROBUST_METHODS.items():
        others = [name for name in METHODS if name not in ROBUST_METHODS]
        yield Claim(
            f"{robust} is best, 0.8 {foe}",
            "At epsilon 0.8 robust FedAvg and robust FedProx beat every other method.",
            SECTION,
            f"late test accuracy, {robust} minus the best of the others",
            over_the_best(late_accuracy, MANY, foe, robust, others),
            above=0,
        )
        yield Claim(
            f"{robust} is smoother, 0.8 {foe}",
            "They are visibly smoother.",
            SECTION,
            f"unrest of the training loss, {usual} minus {robust}",
            difference(unrest, MANY, foe, usual, robust),
            above=0,
        )
    yield Claim(
        f"mifa beats fedavg, 0.8 {foe}",
        "MIFA is better than naive FedAvg.",
        SECTION,
        "late test accuracy, mifa minus fedavg",
        difference(late_accuracy, MANY, foe, MIFA, NAIVE),
        above=0,
    )
    yield Claim(
        f"byzantine rules lag, 0.8 {foe}",
        "Byzantine-resilient rules lag far behind.",
        SECTION,
        "late test accuracy, robust FedAvg minus the best Byzantine-resilient rule",
        over_the_best(late_accuracy, MANY, foe, ROBUST, BYZANTINE),
        above=0.05,
    )


def _claims_of_few(foe: str) -> Iterator[Claim]:
    for other in (NAIVE, MIFA):
        yield Claim(
            f"{other} comparable, 0.2 {foe}",
            "At epsilon 0.2 all methods of FedAvg's type are comparable.",
            APPENDIX,
            f"late test accuracy, robust FedAvg minus {other}",
            difference(late_accuracy, FEW, foe, ROBUST, other),
            above=-0.02,
            below=0.02,
        )
    yield Claim(
        f"robust_fedprox is best, 0.2 {foe}",
        "Robust FedProx has the best test accuracy.",
        APPENDIX,
        "late test accuracy, robust FedProx minus the best of the others",
        over_the_best(late_accuracy, FEW, foe, ROBUST_PROX, [name for name in METHODS if name != ROBUST_PROX]),
        above=0,
    )
    for robust, usual in ROBUST_METHODS.items():
        yield Claim(
            f"{robust} is smoother, 0.2 {foe}",
            "The robust curves are less noisy than the naive ones.",
            APPENDIX,
            f"unrest of the training loss, {usual} minus {robust}",
            difference(unrest, FEW, foe, usual, robust),
            above=0,
        )
    for rule in BYZANTINE:
        if rule != GM:
            yield Claim(
                f"{rule} comparable, 0.2 {foe}",
                "Byzantine-resilient rules except the plain geometric median are comparable.",
                APPENDIX,
                f"late test accuracy, robust FedAvg minus {rule}",
                difference(late_accuracy, FEW, foe, ROBUST, rule),
                above=-0.05,
                below=0.05,
            )


class AdversarialCifar(Study):
    name = "adversarial_cifar"
    title = "Robust averages against an adversary that silences clients, on CIFAR-10"
    source = "Su, Xu, Yang, Federated learning in the presence of adversarial client unavailability, 2023"
    setting = """\
CIFAR-10 with Dir(0.1) class mixtures over 100 clients of equal size, ten invited a round; LeNet-5. Budget 0.8 of two
adversaries: shadow silences the 25 clients whose gradients and the 10 whose momenta grew most between rounds 5 and 60
of shadow runs (lr 0.03) with the same class mixtures and other images; worst_case silences the set whose updates weigh
most. Budget 0.2 of shadow alone, whose 35 candidates mostly exhaust it; at 0.8, outside of the theory, they seldom do.
Both spare the first round, in which MIFA hears everybody. Naive FedAvg and FedProx (the mean of those who answered),
robust ones (beta = M / K), MIFA, and centred clipping and geometric median of remembered momenta (0.9), plain and with
2 buckets. FedAvg's type: 15 steps of batch 16 (3 epochs), learning rate lr / sqrt(t + 1); FedProx: 6 steps with
momentum 0.9 and mu 0.1; the others one; both at constant rates. Each method and budget is tuned on the late training
loss of the first seed against shadow: from the better of 0.01 and 0.1, walking over a 1-3-10 grid until both neighbours
are worse. Late values are means of the last ten evaluations, one every four rounds; unrest is the standard deviation of
the loss's change between evaluations in the second half. A diverged model counts as guessing, and its loss and unrest
as twice the loss of guessing.
Other than in the source: 120 rounds instead of 2,000; 15 and 6 steps instead of 25 and 10, of batch 16 instead of 100;
the shadows' last round 60 instead of 150; a stratified subset of 10,000 images (80 training and 20 test images a
client); mu not tuned. Meant for a CUDA device."""
    small_data = "bundled 8 x 8 digits and a linear model in the place of CIFAR-10 and LeNet-5"
    sizes = {
        "small": Size(10, 4, 4, 1, 3, 2, 16, (1, 3), (3, 1), rates=(0.1,), digits=True),
        "default": Size(100, 10, 120, 4, 15, 6, 16, (5, 60), (25, 10)),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            return small_digits() if size.digits else cifar10_subset(data)

        def task(seed: int) -> Task:
            return Task(partial(linear, 64, 10) if size.digits else lenet5, seed=seed)

        @lru_cache(2)
        def people(seed: int, shadows: bool = False) -> Population:
            images = other_images(dataset(), seed) if shadows else dataset()
            dealt = {"alpha": 0.1}
            return Population.of(images, size.clients, "dirichlet_equal", seed=seed, partition_options=dealt)

        def candidates(seed: int) -> list[int]:
            by_gradient, by_momentum = size.candidates
            return shadow.candidates(
                task(seed + 1000),
                people(seed, shadows=True),
                LocalSGD(size.shadow_lr, steps=size.steps, batch_size=size.batch_size),
                first=size.shadow_rounds[0],
                last=size.shadow_rounds[1],
                by_gradient=by_gradient,
                by_momentum=by_momentum,
                seed=seed + 1000,
                plan=plan,
            )

        def carry_out(trial: Trial) -> Measures:
            seed = trial["seed"]
            if SEARCH.items() <= trial.items():
                return {"candidates": candidates(seed)}
            local = LocalSGD(trial["lr"], steps=size.steps, batch_size=size.batch_size, lr_power=0.5)
            prox = LocalSGD(trial["lr"], steps=size.prox_steps, batch_size=size.batch_size, momentum=0.9)
            algorithm = method(trial["method"], local, prox, size.mu, size.invited)
            return train(task(seed), people(seed), adversary(trial), algorithm, seed, size.rounds, size.every, plan)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        return tune_and_try(ATTACKS, size.rates, seeds, trials)


STUDY = AdversarialCifar()
