"""Do free-riders get the model without anybody's noticing in its quality? Five honest clients and 1, 5 or 45 others.

Fraboni, Vidal, Lorenzi, "Free-rider attacks on model aggregation in federated learning", AISTATS 2021, section 4;
Fraboni's thesis, section 6.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import torch

from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedprox import FedProx
from turnout.clients.behaviour import Behaviour, DisguisedDecay, FreeRider
from turnout.clients.population import Population
from turnout.core import random
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray
from turnout.data.dataset import Dataset
from turnout.engine.evaluate import Evaluator, sample_measures
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.sampling.full import Full
from turnout.server.observer import Observer, Round
from turnout.server.server import Server
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.models import linear
from turnout.task.task import Task
from turnout_studies.images import mnist_flat, small_digits
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

HONEST = 5
RIDERS = {0: 1, 1: 1, 5: 2, 45: 3}  # and how many times the rounds of honest training they are given
ALGORITHMS = ("fedavg", "fedprox")
PLAIN, DISGUISED = DISGUISES = ("plain", "disguised")
THESIS = "Fraboni, thesis, section 6.4"
Pair = tuple[torch.Tensor, torch.Tensor]
Values = Callable[[Results], FloatArray]


@dataclass(frozen=True)
class Size:
    rounds: int
    samples: int  # of each client
    test_samples: int
    batch_size: int = 100
    lr: float = 0.01
    mu: float = 1.0
    digits: bool = False  # bundled digits instead of MNIST


class HonestCurves(Observer):
    """Training loss of the honest clients and accuracy on test data after every round."""

    def __init__(self, test: Pair) -> None:
        self.test = test
        self.losses: list[float] = []
        self.accuracies: list[float] = []

    def on_start(self, server: Server) -> None:
        honest = np.arange(HONEST)
        self._evaluator = Evaluator(server.cohort, honest, server.population.train.rows(honest))
        self._test = [server.cohort.place(part) for part in self.test]
        self._look(server)

    def on_round(self, server: Server, record: Round) -> None:
        self._look(server)

    def _look(self, server: Server) -> None:
        losses = self._evaluator.global_model(server.model)["loss"]
        inputs, targets = self._test
        tested = sample_measures(server.task, server.model, inputs, targets, len(inputs))
        self.losses.append(float(f"{losses.mean():.7g}"))
        self.accuracies.append(float(f"{tested['accuracy'].mean():.5g}"))


# -- what follows from the curves ------------------------------------------------------------------------------


def trial_of(algorithm: str, riders: int, disguise: str = PLAIN) -> Trial:
    return {"algorithm": algorithm, "riders": riders, "disguise": disguise if riders else PLAIN}


def final_accuracy(measures: Measures) -> float:
    return float(measures["accuracies"][-1])


def final_loss(measures: Measures) -> float:
    return float(measures["losses"][-1])


def early_loss(measures: Measures) -> float:
    """After a fifth of the rounds of honest training."""
    return float(measures["losses"][measures["rounds"] // 5])


def unrest(measures: Measures) -> float:
    """Standard deviation of the loss's change from round to round around its trend over five rounds, in the second
    half of the rounds of honest training."""
    rounds = measures["rounds"]
    changes = np.diff(np.asarray(measures["losses"])[rounds // 2 : rounds + 1])
    trend = np.convolve(changes, np.full(5, 0.2), "valid")
    return float((changes[2:-2] - trend).std())


def slowdown(results: Results, algorithm: str, riders: int, disguise: str) -> FloatArray:
    """How many times the rounds it takes to where honest training is after half of its own, a number a seed."""
    found = []
    for seed in results.seeds:
        honest, attacked = (
            next(m for t, m in results.trials if t == trial_of(algorithm, count, disguise) | {"seed": seed})
            for count in (0, riders)
        )
        half = honest["rounds"] // 2
        found.append(np.argmax(np.asarray(attacked["losses"]) <= honest["losses"][half]) / half)
    return np.array(found)


def gap(quantity: Callable[[Measures], float], more: int, fewer: int, pair: tuple[str, str]) -> Values:
    """How much larger it is with more free-riders than with fewer, of an algorithm and a disguise."""
    algorithm, disguise = pair
    return lambda results: (
        results.each(quantity, **trial_of(algorithm, more, disguise))
        - results.each(quantity, **trial_of(algorithm, fewer, disguise))
    )


def _claims() -> Iterator[Claim]:
    for algorithm, disguise in product(ALGORITHMS, DISGUISES):
        where = f"{disguise}, {algorithm}"

        claim, pair = partial(Claim, source=THESIS), (algorithm, disguise)
        for riders in (1, 5, 45):
            yield claim(
                f"accuracy with {riders}, {where}",
                "The final accuracy is comparable to that of honest training.",
                measured=f"final test accuracy with {riders} free-riders minus without",
                values=gap(final_accuracy, riders, 0, pair),
                above=-0.02,
                below=0.02,
            )
        for riders in (1, 5):
            yield claim(
                f"loss with {riders}, {where}",
                "With up to half of the clients free-riding the loss converges within the budget.",
                measured=f"final training loss with {riders} free-riders minus without",
                values=gap(final_loss, riders, 0, pair),
                above=-0.02,
                below=0.02,
            )
        yield claim(
            f"loss with 45, {where}",
            "With nine tenths of the clients free-riding the optimum is not reached within the budget.",
            measured="final training loss with 45 free-riders minus without",
            values=gap(final_loss, 45, 0, pair),
            above=0.02,
        )
        for fewer, more in pairwise(RIDERS):
            yield claim(
                f"slower with {more} than with {fewer}, {where}",
                "The more free-riders, the slower the loss falls.",
                measured=f"training loss after a fifth of the rounds, {more} free-riders minus {fewer}",
                values=gap(early_loss, more, fewer, pair),
                above=0,
            )
            yield claim(
                f"calmer with {more} than with {fewer}, {where}",
                "The peaks of the loss are smaller with free-riders.",
                measured=f"unrest of the loss, {more} free-riders minus {fewer}",
                values=gap(unrest, more, fewer, pair),
                below=0,
            )
        for riders, share in ((1, 1 / 6), (5, 1 / 2)):
            yield Claim(
                f"slowdown with {riders}, {where}",
                "Rounds to converge grow as 1 / (1 - f) with the free-riders' share f of the declared samples.",
                "derived: turnout_studies.theory.free_riding",
                "rounds to the loss of half of honest training, over those rounds",
                partial(slowdown, algorithm=algorithm, riders=riders, disguise=disguise),
                above=0.85 / (1 - share),
                below=1.15 / (1 - share),
            )


class FreeRiders(Study):
    name = "free_riders"
    title = "Free-riders among five honest clients"
    source = "Fraboni, Vidal, Lorenzi, Free-rider attacks on model aggregation, AISTATS 2021; thesis, section 6.4"
    setting = """\
MNIST iid: five honest clients with 600 images each, 300 a client to test; logistic regression, one epoch a round of
batch 100 at lr 0.01, everybody in every round; FedAvg and FedProx (mu = 1). 1, 5 or 45 free-riders (a sixth, a half,
nine tenths of the declared samples), each declaring 600 samples: plain, or disguised by three times the noise
calibrated on the first change, falling as 1 / t. 100 rounds, twice as many with 5 free-riders and three times with 45,
as the authors' code has it. Losses are of the honest clients' training images.
Other than in the source: MNIST iid only, with one epoch at lr 0.01 and half as many rounds in place of five at 0.001,
several seeds in place of bands of 30 initialisations, one disguise."""
    small_data = "bundled 8 x 8 digits in the place of MNIST"
    sizes = {
        "small": Size(10, 40, 20, batch_size=40, digits=True),
        "default": Size(100, 600, 300),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            return small_digits() if size.digits else mnist_flat(data)

        def carry_out(trial: Trial) -> Measures:
            seed, riders = trial["seed"], trial["riders"]
            people, test = world(dataset(), size, riders, trial["disguise"], seed)
            curves = HonestCurves(test)
            local = LocalSGD(size.lr, batch_size=size.batch_size)
            prox = trial["algorithm"] == "fedprox"
            Simulation(
                Task(partial(linear, people.inputs[0].numel(), 10), seed=seed),
                people,
                FedProx(local, Full(), mu=size.mu) if prox else FedAvg(local, Full()),
                seed=seed,
                plan=plan,
                stopping=Stopping(size.rounds * RIDERS[riders]),
                evaluation=Evaluation(rounds=None, clients=1),
                observers=[curves],
            ).run()
            return {"losses": curves.losses, "accuracies": curves.accuracies, "rounds": size.rounds}

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        some = [(riders, disguise) for riders in RIDERS for disguise in (DISGUISES if riders else (PLAIN,))]
        every = product(seeds, ALGORITHMS, some)
        trials.all([trial_of(algorithm, *rest) | {"seed": seed} for seed, algorithm, rest in every])
        return {}


def world(dataset: Dataset, size: Size, riders: int, disguise: str, seed: int) -> tuple[Population, Pair]:
    """Honest clients, then free-riders, to whom one sample each is dealt that they never look at; and test data."""
    train, test = HONEST * size.samples, HONEST * size.test_samples
    rows = torch.as_tensor(random.subset(random.key(seed, "study rows"), train + test, len(dataset.inputs)))
    inputs, targets = dataset.inputs[rows], dataset.targets[rows]
    held = [range(i * size.samples, (i + 1) * size.samples) for i in range(HONEST)] + [range(1)] * riders
    others = list(range(HONEST, HONEST + riders))
    lies: Behaviour | None = None
    if riders:
        kind = FreeRider if disguise == PLAIN else partial(DisguisedDecay, scale=3.0)
        lies = kind(clients=others, declared_samples=size.samples)
    people = Population(inputs[:train], targets[:train], Ragged.from_rows(held), behaviour=lies, seed=seed)
    return people, (inputs[train:], targets[train:])


STUDY = FreeRiders()
