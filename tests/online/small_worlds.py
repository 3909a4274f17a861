"""What the tests of online learning share: exact expectations in one dimension, small learners, small models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turnout import Task
from turnout.core.random import dirichlet, key, normal
from turnout_studies.online.components import Classifiers, Gaussians
from turnout_studies.online.em import mixture_log_prob
from turnout_studies.online.samples import Samples

GAUSSIANS = Gaussians()


def numbers(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def drawn(purpose: str, *shape: int) -> Tensor:
    """Standard normal."""
    return torch.from_numpy(normal(key(3, purpose), int(np.prod(shape)))).view(shape)


def weights(purpose: str, clients: int, sources: int, alpha: float = 1.0) -> Tensor:
    return torch.from_numpy(dirichlet(key(3, purpose, np.arange(clients)), sources, alpha))


def grid(means: Tensor, mixture: Tensor) -> Samples:
    """Points of a fine grid on the line, which count as much as the mixtures `[C, m]` of N(mean, 1) give them."""
    step = 0.01
    line = torch.arange(float(means.min()) - 9, float(means.max()) + 9, step, dtype=torch.float64)
    points = Samples.full(line.expand(len(mixture), -1)[..., None])
    density = mixture_log_prob(GAUSSIANS.log_prob(means, points), mixture).exp()
    return points._replace(counted=step * density)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def task() -> Task:
    return Task(mlp, seed=3).to(dtype=torch.float64)


def classifiers(lr: float = 0.1) -> Classifiers:
    return Classifiers(task(), lr)


def labelled(clients: int, size: int) -> Samples:
    inputs = drawn("inputs", clients, size, 5)
    return Samples.full(inputs, (inputs[..., :3] + 0.1).argmax(-1))


def ragged(samples: Samples, counts: list[int]) -> dict[int, Any]:
    """The first so many samples of each client, as they arrive; labels where the inputs have five dimensions."""
    return {
        client: (samples.inputs[client, :count], samples.targets[client, :count])
        if samples.inputs.shape[-1] == 5
        else samples.inputs[client, :count]
        for client, count in enumerate(counts)
    }
