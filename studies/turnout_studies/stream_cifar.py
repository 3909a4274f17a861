"""How much should clients with old data count? CIFAR-10, half of the clients historical and half fresh.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, tables 4.3 to 4.5.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from turnout.clients.arriving import spread
from turnout.clients.memories import Latest
from turnout.clients.population import Population
from turnout.data.dataset import Dataset
from turnout.data.partition import dirichlet
from turnout.task.models import cnn_cifar, linear
from turnout.task.task import Task
from turnout_studies.images import cifar10_subset
from turnout_studies.stream_runs import THESIS, Size, StreamStudy, claims_of, gap, two_pools
from turnout_studies.study import Claim

SHARES = (0.05, 0.2, 0.5)


class StreamCifar(StreamStudy):
    name = "stream_cifar"
    title = "Weights for historical and fresh clients: CIFAR-10"
    source = "Marfoq et al., AISTATS 2023; thesis tables 4.3, 4.4, 4.5"
    setting = """\
A stratified subset of 10,000 images of CIFAR-10. A share nu of them is dealt to 25 historical clients, the rest to 25
fresh ones, each pool by Dirichlet(0.4); a fifth of a client's images for testing, a fifth of the others held back. What
a fresh client has arrives evenly over 100 rounds, and it stores only the last batch. Three-convolution network without
dropout, 100 rounds of one epoch, batch 128, everybody takes part. Learning rates of 0.003, 0.01, 0.03, 0.1 by the
accuracy of the first seed on what is held back, for each weighting. Ours uses c2 / c1 = 0.15, the published ratio; the
one estimated is recorded.
Other than in the source: a fifth of the images, another network, rounds and rates of our own (not published).
Meant for a CUDA device."""
    small_data = "invented numbers in the place of CIFAR-10"
    sizes = {
        "small": Size(rounds=2, clients=10, rates=(0.1,), ratio=0.15, stand_in=True),
        "default": Size(ratio=0.15),
    }
    claims = (
        *claims_of(SHARES),
        Claim(
            "historical loses less with more of it",
            "The best weighting is ahead of Historical by 15.5, 7.9 and 5.3 points for nu of 5, 20 and 50 %.",
            THESIS,
            "lead over historical at nu = 0.05 minus that at 0.5",
            lambda results: gap(0.05, "historical")(results) - gap(0.5, "historical")(results),
            above=0,
        ),
        Claim(
            "uniform loses most in between",
            "The best weighting is ahead of Uniform by 3.0, 6.2 and 4.3 points for nu of 5, 20 and 50 %.",
            THESIS,
            "lead over uniform at nu = 0.2 minus the larger of those at 0.05 and 0.5 (by their means)",
            lambda results: (
                gap(0.2, "uniform")(results)
                - max(
                    (gap(share, "uniform")(results) for share in (0.05, 0.5)), key=lambda values: float(values.mean())
                )
            ),
            above=0,
        ),
    )

    def world(self, share: float, size: Size, data: Path | None, seed: int) -> tuple[Task, Population]:
        if size.stand_in:
            labels = torch.arange(600) % 10
            images = Dataset("cifar10", labels[:, None].expand(-1, 12) / 10.0, labels, 10)
        else:
            images = cifar10_subset(data)
        deal = partial(dirichlet, alpha=0.4, min_samples=1 if size.stand_in else 2)
        people = Population.of(
            images,
            size.clients,
            partial(two_pools, share=share, deal=deal),
            validation_fraction=0.2,
            seed=seed,
        ).streaming(spread(size.rounds), Latest(), fresh=range(size.clients // 2, size.clients))
        model = (lambda: linear(12, 10)) if size.stand_in else (lambda: cnn_cifar(dropout=0.0))
        return Task(model, seed=seed), people


STUDY = StreamCifar()
