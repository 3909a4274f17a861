"""Personal models for clients who see other things: CIFAR-10, mixed classes or two classes each.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021;
Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; Marfoq's thesis,
tables 3.2, 3.3, 3.5 and 3.6 (CIFAR-10 and CIFAR-10 v2).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnout.clients.population import Population
from turnout.task.models import cnn_cifar, linear
from turnout.task.task import Task
from turnout_studies.images import cifar10_subset, small_digits
from turnout_studies.personal_runs import RIVALS, UNSEEN, PersonalStudy, Size, claims_of

THESIS = "Marfoq, thesis, sections 3.5.4 and 3.6.3"
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dirichlet": ("dirichlet", {"alpha": 0.4, "label_groups": 3, "min_samples": 10}),
    "pathological": ("shards", {"classes_per_client": 2}),
}


class PersonalCifar(PersonalStudy):
    name = "personal_cifar"
    title = "FedEM, kNN-Per and their rivals on CIFAR-10"
    source = "Marfoq et al., NeurIPS 2021 and ICML 2022; thesis tables 3.2, 3.3, 3.5, 3.6"
    setting = """\
A stratified subset of 10,000 images of CIFAR-10 over 60 clients, 12 of which never train; a fifth of a client's images
for testing. Dirichlet: the ten classes in three groups at random, each dealt by Dirichlet(0.4). Pathological: two
classes a client. Three-convolution network without dropout, 100 rounds of one epoch, batch 128, full participation.
Learning rates of 0.01, 0.03, 0.1, 0.3 by the accuracy of the first seed on a fifth of the training images,
which are held back. Every method with its default options.
Other than in the source: a fifth of the images, a small network instead of a MobileNet-v2 trained on ImageNet, 60
clients for both, 100 rounds, no learning rate schedule, penalties not tuned, several seeds. Meant for a CUDA device."""
    parts = tuple(PARTS)
    small_data = "bundled 8 x 8 digits and a linear model in the place of CIFAR-10 and a convolutional network"
    sizes = {
        "small": Size(rounds=1, clients=20, batch_size=32, rates=(0.1,), stand_in=True),
        "default": Size(clients=60, rates=(0.01, 0.03, 0.1, 0.3)),
    }
    claims = tuple(
        claim
        for part in PARTS
        for claim in (
            *claims_of(part, "fedem", RIVALS, THESIS, "FedEM"),
            *claims_of(part, "knn_per", (*RIVALS, "fedem"), THESIS, "kNN-Per"),
        )
    )

    def world(self, part: str, size: Size, data: Path | None, seed: int) -> tuple[Task, Population]:
        partition, options = PARTS[part]
        people = Population.of(
            small_digits() if size.stand_in else cifar10_subset(data),
            size.clients,
            partition,
            seed=seed,
            partition_options=options,
            validation_fraction=0.2,
            unseen_fraction=UNSEEN,
        )
        model = (lambda: linear(64, 10)) if size.stand_in else (lambda: cnn_cifar(dropout=0.0))
        return Task(model, seed=seed), people


STUDY = PersonalCifar()
