"""Personal models for those who speak differently: the next character of Shakespeare's roles.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021;
Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; Marfoq's thesis,
tables 3.2, 3.3, 3.5 and 3.6 (Shakespeare).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from turnout.clients.population import Population
from turnout.data import shakespeare
from turnout.data.dataset import Dataset
from turnout.task.task import Task
from turnout_studies.personal_runs import RIVALS, UNSEEN, PersonalStudy, Size, claims_of

PART = "roles"
CONTEXT = 20  # characters
THESIS = "Marfoq, thesis, sections 3.5.4 and 3.6.3"


def next_character(hidden: int = 64) -> nn.Module:
    """`[batch, 20]` tokens to `[batch, 100]` logits: embedded, side by side, through one hidden layer."""
    return nn.Sequential(
        nn.Embedding(100, 8), nn.Flatten(), nn.Linear(8 * CONTEXT, hidden), nn.ReLU(), nn.Linear(hidden, 100)
    )


class PersonalShakespeare(PersonalStudy):
    name = "personal_shakespeare"
    title = "FedEM, kNN-Per and their rivals on the roles of Shakespeare"
    source = "Marfoq et al., NeurIPS 2021 and ICML 2022; thesis tables 3.2, 3.3, 3.5, 3.6"
    setting = """\
The first 60 roles with twenty speeches or more, 12 of which never train; the 20 characters before every twentieth, the
last fifth of a role's text for testing. 8-d embedding, a hidden layer of 64; 40 rounds of one epoch, batch 128, full
participation. Learning rates of 0.1, 0.3, 1, 3 by the accuracy of the first seed on a fifth of the training samples,
which are held back. Every method with its default options.
Other than in the source: 60 roles instead of 778, 20 characters and a perceptron instead of 80 and two LSTMs, 40
rounds, losses not weighted by the frequency of characters, penalties not tuned, several seeds."""
    parts = (PART,)
    small_data = "counted letters in the place of Shakespeare"
    sizes = {
        "small": Size(rounds=1, clients=10, batch_size=32, rates=(1.0,), stand_in=True),
        "default": Size(rounds=40, clients=60, rates=(0.1, 0.3, 1.0, 3.0)),
    }
    claims = (
        *claims_of(PART, "fedem", RIVALS, THESIS, "FedEM"),
        *claims_of(PART, "knn_per", (*RIVALS, "fedem"), THESIS, "kNN-Per"),
    )

    def world(self, part: str, size: Size, data: Path | None, seed: int) -> tuple[Task, Population]:
        if size.stand_in:
            tokens = torch.arange(200 * CONTEXT).reshape(200, CONTEXT) % 100
            groups = torch.arange(200).numpy() % size.clients
            spoken = Dataset("shakespeare", tokens, tokens[:, -1], 100, groups=groups)
        else:
            spoken = shakespeare.load(folder=data, clients=size.clients, min_speeches=20, stride=20)
            assert spoken.test_inputs is not None
            last = slice(-CONTEXT, None)
            spoken = replace(spoken, inputs=spoken.inputs[:, last], test_inputs=spoken.test_inputs[:, last])
        people = Population.of(
            spoken,
            size.clients,
            "natural",
            test="split" if size.stand_in else "matched",
            validation_fraction=0.2,
            unseen_fraction=UNSEEN,
            seed=seed,
        )
        return Task(lambda: next_character(4 if size.stand_in else 64), seed=seed), people


STUDY = PersonalShakespeare()
