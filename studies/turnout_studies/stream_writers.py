"""How much should people count who are there for a moment? MNIST by writer.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, tables 4.3 to 4.5
(FEMNIST).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from turnout.clients.arriving import once
from turnout.clients.memories import Latest
from turnout.clients.population import Population
from turnout.core.random import key, subset
from turnout.data import mnist
from turnout.data.dataset import Dataset
from turnout.task.models import linear, mlp
from turnout.task.task import Task
from turnout_studies.stream_runs import THESIS, Size, StreamStudy, ahead, claims_of
from turnout_studies.study import Claim

SHARES = (0.05, 0.2, 0.5)


class StreamWriters(StreamStudy):
    name = "stream_writers"
    title = "Weights for historical clients and such that are seen once: MNIST by writer"
    source = "Marfoq et al., AISTATS 2023; thesis tables 4.3, 4.4, 4.5, FEMNIST"
    setting = """\
The first 200 writers of MNIST with their own digits, a fifth for testing, a fifth of the others held back. A share nu
of the writers is historical; every other one is there in a single round out of 100, drawn at random. 784-100-10
perceptron, 100 rounds of one epoch, batch 32. Learning rates of 0.003, 0.01, 0.03, 0.1 by the accuracy of the first
seed on what is held back, for each weighting. Ours uses the ratio that is estimated with ten local steps.
Other than in the source: digits only, 200 writers instead of 3,597, another network, nu by writers."""
    small_data = "invented numbers in the place of MNIST"
    sizes = {
        "small": Size(rounds=2, clients=20, batch_size=32, rates=(0.1,), stand_in=True),
        "default": Size(clients=200, batch_size=32),
    }
    claims = (
        *claims_of(SHARES),
        *(
            Claim(
                f"historical beats uniform, nu = {share:g}",
                "Where fresh clients are seen once, historical ones alone make the better model: 66 to 55 or 58 %.",
                THESIS,
                "test accuracy, historical minus uniform",
                ahead(share, "historical", "uniform"),
                above=0.03,
            )
            for share in SHARES
        ),
    )

    def world(self, share: float, size: Size, data: Path | None, seed: int) -> tuple[Task, Population]:
        if size.stand_in:
            labels = torch.arange(400) % 10
            inputs = labels[:, None].expand(-1, 12) / 10.0
            written = Dataset("mnist", inputs, labels, 10, groups=torch.arange(400).numpy() % size.clients)
        else:
            whole = mnist.load(folder=data)
            written = Dataset("mnist", whole.inputs, whole.targets, 10, groups=whole.groups)
        people = Population.of(written, size.clients, "natural", validation_fraction=0.2, seed=seed)
        old = subset(key(seed, "historical"), max(1, round(share * size.clients)), size.clients)
        people = people.streaming(once(size.rounds), Latest(), fresh=np.setdiff1d(people.ids, old).tolist())
        model = (lambda: linear(12, 10)) if size.stand_in else (lambda: mlp(784, [100], 10))
        return Task(model, seed=seed), people


STUDY = StreamWriters()
