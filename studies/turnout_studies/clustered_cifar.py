"""When does it matter how clients are sampled? CIFAR-10, unbalanced clients, from alike to one class each.

Fraboni, Vidal, Kameni, Lorenzi, "Clustered sampling", ICML 2021, figures 2 and 4 to 8; "A general theory for client
sampling in federated learning", 2022; Fraboni's thesis (2023), figures 3.2, A.5 and B.5 to B.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from turnout.algorithms.fedavg import FedAvg
from turnout.algorithms.fedprox import FedProx
from turnout.clients.population import Population
from turnout.core.random import FloatArray
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.task.models import cnn_cifar, linear
from turnout.task.task import Task
from turnout_studies.images import cifar10_subset, small_digits
from turnout_studies.sampling_curves import Quantity, gap, late_loss, mean_loss, sampler, train, unrest
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

ALPHAS = (0.001, 0.01, 0.1, 10.0)
SKEWED = ALPHAS[:3]
MIDDLE = 0.01  # where the number of clients and the proximal term are varied
SIZES = (1, 2.5, 5, 7.5, 10)  # relative: of 10, 30, 30, 20 and 10 % of the clients
SHARES = (0.1, 0.3, 0.3, 0.2, 0.1)
THESIS = "Fraboni, thesis, section 3.5.2 and appendices A and B"
USUAL: Trial = {"m": 10, "mu": 0.0}


@dataclass(frozen=True)
class Size:
    rounds: int
    every: int  # rounds between evaluations
    clients: int
    unit: int  # samples of the smallest clients
    steps: int
    batch_size: int
    digits: bool = False  # bundled digits and a linear model


def _trials() -> Iterator[Trial]:
    for alpha, scheme in product(ALPHAS, ("md", "size", "similarity", "uniform")):
        if scheme != "uniform" or alpha in SKEWED:
            yield {"alpha": alpha, "scheme": scheme, **USUAL}
    for scheme in ("md", "similarity"):
        yield from ({"alpha": MIDDLE, "scheme": scheme, "m": m, "mu": 0.0} for m in (5, 20))
        yield {"alpha": MIDDLE, "scheme": scheme, "m": 10, "mu": 0.1}


def _advantage(results: Results, quantity: Quantity, alpha: float, worse: str, better: str, **more: Any) -> FloatArray:
    trial = {"alpha": alpha, **USUAL, **more}
    return gap(quantity, {**trial, "scheme": worse}, {**trial, "scheme": better})(results)


def _claims() -> Iterator[Claim]:
    claim = partial(Claim, source=THESIS)

    def lower(quantity: Quantity, alpha: float, worse: str, better: str, **more: Any) -> Any:
        return partial(_advantage, quantity=quantity, alpha=alpha, worse=worse, better=better, **more)

    for alpha in ALPHAS:
        yield claim(
            f"faster, alpha {alpha:g}",
            "Clustered by similarity, the loss falls faster than with MD.",
            measured="training loss, mean over the run, MD minus similarity",
            values=lower(mean_loss, alpha, "md", "similarity"),
            above=0,
        )
        yield claim(
            f"smoother, alpha {alpha:g}",
            "Clustered by similarity, the loss is smoother than with MD.",
            measured="standard deviation of the loss's change between evaluations, MD minus similarity",
            values=lower(unrest, alpha, "md", "similarity"),
            above=0,
        )
    for alpha in ALPHAS[:2]:
        yield claim(
            f"better, alpha {alpha:g}",
            "With very different clients it also ends lower.",
            measured="late training loss, MD minus similarity",
            values=lower(late_loss, alpha, "md", "similarity"),
            above=0,
        )
    for alpha in ALPHAS[2:]:
        yield claim(
            f"similar end, alpha {alpha:g}",
            "With similar clients it ends where MD ends.",
            measured="late training loss, MD minus similarity",
            values=lower(late_loss, alpha, "md", "similarity"),
            above=-0.05,
            below=0.05,
        )
    yield claim(
        "benefit grows with heterogeneity",
        "The benefit grows as alpha falls.",
        measured="late training loss, MD minus similarity, at alpha 0.001 minus at alpha 10",
        values=lambda results: (
            _advantage(results, late_loss, ALPHAS[0], "md", "similarity")
            - _advantage(results, late_loss, ALPHAS[-1], "md", "similarity")
        ),
        above=0,
    )
    yield claim(
        "never worse than MD",
        "Clustered sampling never does worse than MD.",
        measured="late training loss, MD minus the clustered scheme, smallest over alphas and schemes",
        values=lambda results: np.min(
            [_advantage(results, late_loss, alpha, "md", s) for alpha in ALPHAS for s in ("size", "similarity")], axis=0
        ),
        above=-0.02,
    )
    for alpha in SKEWED:
        yield claim(
            f"MD over uniform, alpha {alpha:g}",
            "Where importance is the number of samples, MD ends below uniform sampling.",
            measured="late training loss, uniform minus MD",
            values=lower(late_loss, alpha, "uniform", "md"),
            above=0,
        )
        yield claim(
            f"size over MD, alpha {alpha:g}",
            "Clustered by size ends below MD.",
            measured="late training loss, MD minus size",
            values=lower(late_loss, alpha, "md", "size"),
            above=0,
        )
    yield claim(
        "fewer clients, more benefit",
        "The fewer clients a round, the larger the benefit.",
        measured="late training loss at alpha 0.01, MD minus similarity, with 5 clients a round minus with 20",
        values=lambda results: (
            _advantage(results, late_loss, MIDDLE, "md", "similarity", m=5)
            - _advantage(results, late_loss, MIDDLE, "md", "similarity", m=20)
        ),
        above=0,
    )
    yield claim(
        "still a benefit with 20 clients",
        "The benefit is positive with 20 clients a round.",
        measured="late training loss at alpha 0.01 with 20 clients a round, MD minus similarity",
        values=lower(late_loss, MIDDLE, "md", "similarity", m=20),
        above=0,
    )
    yield claim(
        "still a benefit with FedProx",
        "The benefit survives FedProx (mu = 0.1).",
        measured="late training loss at alpha 0.01 with FedProx, MD minus similarity",
        values=lower(late_loss, MIDDLE, "md", "similarity", mu=0.1),
        above=0,
    )


class ClusteredCifar(Study):
    name = "clustered_cifar"
    title = "MD, uniform and clustered sampling on CIFAR-10, from alike clients to one class each"
    source = "Fraboni et al., Clustered sampling, ICML 2021; Fraboni's thesis, figures 3.2, A.5, B.5 to B.8"
    setting = """\
CIFAR-10 over 100 unbalanced clients (10, 30, 30, 20, 10 of them with 1, 2.5, 5, 7.5, 10 times 100 images), class
mixtures Dir(alpha), images drawn with replacement; importance is the number of images. Three-convolution network
without dropout; ten clients a round, 20 local SGD steps of batch 50 at lr 0.05 (0.1 with alpha 10). Evaluated every
four rounds; late values are means of the last sixth of the evaluations, unrest is that of the second half.
Other than in the source: 100 rounds of 20 steps instead of 1,000 of 100, a stratified subset of 10,000 images, no
dropout, training loss only, several seeds. Meant for a CUDA device."""
    small_data = "bundled 8 x 8 digits and a linear model in the place of CIFAR-10 and a convolutional network"
    sizes = {
        "small": Size(2, 1, 20, 4, 1, 10, digits=True),
        "default": Size(100, 4, 100, 100, 20, 50),
    }
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(1)
        def dataset() -> Dataset:
            return small_digits() if size.digits else cifar10_subset(data)

        model = partial(linear, 64, 10) if size.digits else partial(cnn_cifar, dropout=0.0)
        counts = np.repeat(SIZES, [round(share * size.clients) for share in SHARES]) * size.unit

        def carry_out(trial: Trial) -> Measures:
            people = Population.of(
                dataset(),
                size.clients,
                "dirichlet_equal",
                seed=trial["seed"],
                test="none",
                partition_options={"alpha": trial["alpha"], "sizes": counts.astype(np.int64)},
            )
            local = LocalSGD(0.1 if trial["alpha"] > 1 else 0.05, steps=size.steps, batch_size=size.batch_size)
            chosen = sampler(trial["scheme"], trial["m"], [])
            algorithm = FedProx(local, chosen, mu=trial["mu"]) if trial["mu"] else FedAvg(local, chosen)
            task = Task(model, seed=trial["seed"])
            return train(task, people, algorithm, trial["seed"], size.rounds, size.every, plan)

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        every: list[Trial] = [{**trial, "seed": seed} for seed in seeds for trial in _trials()]
        trials.all(every)
        return {}


STUDY = ClusteredCifar()
