"""Does clustered sampling hear of more classes, and learn better from it? MNIST, one digit a client.

Fraboni, Vidal, Kameni, Lorenzi, "Clustered sampling: low-variance and improved representativity for clients selection
in federated learning", ICML 2021, section 6 and figure 1; Fraboni's thesis (2023), figure 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

from turnout.algorithms.fedavg import FedAvg
from turnout.clients.population import Population
from turnout.data import digits, mnist
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.task.models import mlp
from turnout.task.task import Task
from turnout_studies.sampling_curves import (
    Quantity,
    Values,
    early_classes,
    fewest_clients,
    gap,
    late_accuracy,
    late_classes,
    late_loss,
    sampler,
    train,
    unrest,
)
from turnout_studies.study import Claim, Experiment, Measures, Study, Trial, Trials

SCHEMES = ("md", "size", "similarity", "target", "similarity_l2", "similarity_l1")
THESIS = "Fraboni, thesis, section 3.5.1"


@dataclass(frozen=True)
class Size:
    rounds: int
    every: int  # rounds between evaluations
    samples: int
    test_samples: int
    steps: int
    batch_size: int
    clients_per_class: int = 10
    digits: bool = False  # bundled digits instead of MNIST


def _lower(quantity: Quantity, better: str, worse: str) -> Values:
    return gap(quantity, {"scheme": worse}, {"scheme": better})


def _claims() -> Iterator[Claim]:
    claim = partial(Claim, source=THESIS)
    yield claim(
        "digits heard with md",
        "MD sampling hears of six to eight digits a round.",
        measured="distinct digits a round, last quarter (6.513 expected)",
        values=lambda results: results.each(late_classes, scheme="md"),
        above=6,
        below=8,
    )
    yield claim(
        "ten clients by size",
        "Clustered by size, a round always has ten distinct clients.",
        measured="fewest distinct clients of any round",
        values=lambda results: results.each(fewest_clients, scheme="size"),
        above=9.999,
    )
    yield claim(
        "similarity misses digits early",
        "Clustered by similarity, rounds miss digits at first.",
        measured="distinct digits a round, first ten rounds",
        values=lambda results: results.each(early_classes, scheme="similarity"),
        below=9.5,
    )
    yield claim(
        "similarity finds all digits",
        "Later it hears of as many digits as when the groups are known.",
        measured="distinct digits a round, last quarter (target: 10)",
        values=lambda results: results.each(late_classes, scheme="similarity"),
        above=9.5,
    )
    for better, worse in (("size", "md"), ("similarity", "size"), ("similarity", "md")):
        sentence = "Loss and accuracy are worst with MD, better clustered by size, best clustered by similarity."
        yield claim(
            f"loss, {better} over {worse}",
            sentence,
            measured=f"late training loss, {worse} minus {better}",
            values=_lower(late_loss, better, worse),
            above=0,
        )
        yield claim(
            f"accuracy, {better} over {worse}",
            sentence,
            measured=f"late test accuracy, {better} minus {worse}",
            values=_lower(late_accuracy, worse, better),
            above=0,
        )
        yield claim(
            f"smoothness, {better} over {worse}",
            "The curves are smoother in the same order.",
            measured=f"standard deviation of the loss's change between evaluations, {worse} minus {better}",
            values=_lower(unrest, better, worse),
            above=0,
        )
    yield claim(
        "similarity as good as target",
        "Clustered by similarity comes close to known groups.",
        measured="late training loss, similarity minus target",
        values=_lower(late_loss, "target", "similarity"),
        above=-0.02,
        below=0.02,
    )
    for other in ("similarity_l2", "similarity_l1"):
        yield claim(
            f"angle and {other.removeprefix('similarity_')} are equivalent",
            "Angles, L2 and L1 distances work equally well.",
            measured=f"late training loss, {other} minus angles",
            values=_lower(late_loss, "similarity", other),
            above=-0.02,
            below=0.02,
        )


class ClusteredMnist(Study):
    name = "clustered_mnist"
    title = "Clustered sampling on MNIST with one digit a client"
    source = "Fraboni et al., Clustered sampling, ICML 2021; Fraboni's thesis, figure 3.1"
    setting = """\
MNIST, 100 clients, ten a digit, 500 training and 80 test images each; 784-50-10 perceptron; ten clients a round, 50
local SGD steps of batch 50 at lr 0.01, 600 rounds. MD, clustered by size, clustered by similarity (angles; L2, L1),
and clustered by the known digits (target). Evaluated every ten rounds; late values are means of the last sixth
of the evaluations. Other than in the source: 80 test images a client instead of 100, several seeds."""
    small_data = "bundled 8 x 8 digits in the place of MNIST"
    sizes = {
        "small": Size(4, 1, 20, 4, 2, 10, clients_per_class=2, digits=True),
        "default": Size(600, 10, 500, 80, 50, 50),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            return digits.load() if size.digits else mnist.load(folder=data)

        def carry_out(trial: Trial) -> Measures:
            seed, classes, each = trial["seed"], 10, size.clients_per_class
            people = Population.of(
                dataset(),
                classes * each,
                "one_class",
                seed=seed,
                test="matched",
                partition_options={
                    "clients_per_class": each,
                    "samples": size.samples,
                    "test_samples": size.test_samples,
                },
            )
            groups = [client // each for client in range(classes * each)]
            local = LocalSGD(0.01, steps=size.steps, batch_size=size.batch_size)
            algorithm = FedAvg(local, sampler(trial["scheme"], classes, groups))
            task = Task(partial(mlp, people.inputs[0].numel(), [50], classes), seed=seed)
            return train(task, people, algorithm, seed, size.rounds, size.every, plan)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        every: list[Trial] = [{"scheme": scheme, "seed": seed} for seed, scheme in product(seeds, SCHEMES)]
        trials.all(every)
        return {}


STUDY = ClusteredMnist()
