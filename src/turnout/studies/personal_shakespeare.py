"""Personal models for those who speak differently: the next character of Shakespeare's roles.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021;
Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; Marfoq's thesis,
tables 3.2, 3.3, 3.5 and 3.6 (Shakespeare).
"""

from __future__ import annotations

from pathlib import Path

import torch

from turnout.datasets import shakespeare
from turnout.datasets.dataset import Dataset
from turnout.models import char_lstm
from turnout.population.population import Population
from turnout.studies.personal_runs import UNSEEN, PersonalStudy, Size, claims_of
from turnout.task import Task

PART = "roles"
THESIS = "Marfoq, thesis, sections 3.5.4 and 3.6.3"
RIVALS = ("local", "fedavg", "fedprox", "fedavg_plus", "ditto", "apfl")


class PersonalShakespeare(PersonalStudy):
    name = "personal_shakespeare"
    title = "FedEM, kNN-Per and their rivals on the roles of Shakespeare"
    source = "Marfoq et al., NeurIPS 2021 and ICML 2022; thesis tables 3.2, 3.3, 3.5, 3.6"
    setting = """\
The first 60 roles with two speeches or more, 12 of which never train; 80 characters before every twentieth, the last
fifth of a role's text for testing. 8-d embedding, one LSTM of 64 units; 30 rounds of one epoch, batch 128, full
participation. Learning rates of 0.1, 0.3, 1, 3 by the accuracy of the first seed on a fifth of the training samples,
which are held back (their contexts overlap those trained on). Every method with its default options.
Other than in the source: 60 roles instead of 778, a quarter of the network, 30 rounds, losses not weighted by the
frequency of characters, fewer rivals, penalties not tuned, several seeds. Meant for a CUDA device."""
    parts = (PART,)
    sizes = {
        "small": Size(
            rounds=1, clients=10, batch_size=32, rates=(1.0,), methods=(*RIVALS, "fedem", "knn_per"), stand_in=True
        ),
        "default": Size(
            rounds=30, clients=60, batch_size=128, rates=(0.1, 0.3, 1.0, 3.0), methods=(*RIVALS, "fedem", "knn_per")
        ),
    }
    claims = (
        *claims_of(PART, "fedem", RIVALS, THESIS, "FedEM"),
        *claims_of(PART, "knn_per", (*RIVALS, "fedem"), THESIS, "kNN-Per"),
    )

    def world(self, part: str, size: Size, data: Path | None, seed: int) -> tuple[Task, Population]:
        if size.stand_in:
            tokens = torch.arange(200 * 5).reshape(200, 5) % 100
            groups = torch.arange(200).numpy() % size.clients
            spoken = Dataset("shakespeare", tokens, tokens[:, -1], 100, groups=groups)
        else:
            spoken = shakespeare.load(folder=data, clients=size.clients, stride=20)
        people = Population.of(
            spoken,
            size.clients,
            "natural",
            test="split" if size.stand_in else "matched",
            validation_fraction=0.2,
            unseen_fraction=UNSEEN,
            seed=seed,
        )
        return Task(lambda: char_lstm(hidden=4 if size.stand_in else 64, layers=1), seed=seed), people


STUDY = PersonalShakespeare()
