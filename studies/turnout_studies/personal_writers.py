"""Personal models for people who write differently: MNIST by writer.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021;
Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; Marfoq's thesis,
tables 3.2, 3.3, 3.5 and 3.6 (FEMNIST).
"""

from __future__ import annotations

from pathlib import Path

import torch

from turnout.clients.population import Population
from turnout.data import mnist
from turnout.data.dataset import Dataset
from turnout.task.models import mlp
from turnout.task.task import Task
from turnout_studies.personal_runs import RIVALS, UNSEEN, PersonalStudy, Size, claims_of

PART = "writers"
THESIS = "Marfoq, thesis, sections 3.5.4 and 3.6.3"


class PersonalWriters(PersonalStudy):
    name = "personal_writers"
    title = "FedEM, kNN-Per and their rivals on MNIST by writer"
    source = "Marfoq et al., NeurIPS 2021 and ICML 2022; thesis tables 3.2, 3.3, 3.5, 3.6"
    setting = """\
The first 200 writers of MNIST, each with its own digits (19 to 131), a fifth of them for testing; 40 writers never
train. 784-100-10 perceptron, 100 rounds of one epoch, batch 32, full participation. Learning rates of 0.003, 0.01,
0.03, 0.1, 0.3 by the accuracy of the first seed on a fifth of the training digits, which are held back. Every method
with its default options: FedEM with three components, kNN-Per with ten neighbours, ...
Other than in the source: digits only, a tenth of the clients, a perceptron, no learning rate schedule, penalties not
tuned, several seeds."""
    parts = (PART,)
    small_data = "plain grey squares in the place of MNIST"
    sizes = {
        "small": Size(rounds=1, clients=20, batch_size=32, rates=(0.1,), stand_in=True),
        "default": Size(clients=200, batch_size=32),
    }
    claims = (
        *claims_of(PART, "fedem", RIVALS, THESIS, "FedEM"),
        *claims_of(PART, "knn_per", (*RIVALS, "fedem"), THESIS, "kNN-Per"),
    )

    def world(self, part: str, size: Size, data: Path | None, seed: int) -> tuple[Task, Population]:
        if size.stand_in:
            labels = torch.arange(400) % 10
            inputs = labels[:, None, None, None].expand(-1, 1, 28, 28) / 10.0
            written = Dataset("mnist", inputs, labels, 10, groups=torch.arange(400).numpy() % size.clients)
        else:
            whole = mnist.load(folder=data)
            written = Dataset("mnist", whole.inputs, whole.targets, 10, groups=whole.groups)
        people = Population.of(
            written, size.clients, "natural", validation_fraction=0.2, unseen_fraction=UNSEEN, seed=seed
        )
        return Task(lambda: mlp(784, [100], 10), seed=seed), people


STUDY = PersonalWriters()
