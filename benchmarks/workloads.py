"""The workloads every benchmark measures: a model, and equal clients of standard normal data from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from turnout.task.models import cnn_cifar, cnn_large, cnn_mnist, linear, mlp


@dataclass(frozen=True)
class Workload:
    """One round = `cohort` of the `clients`, each `epochs` passes over its samples in mini-batches of `batch`."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one sample
    samples_per_client: int
    cohort: int
    clients: int = 1000
    batch: int = 10
    epochs: int = 1
    classes: int = 10
    lr: float = 0.01
    seed: int = 0

    @property
    def samples(self) -> int:
        return self.clients * self.samples_per_client

    @property
    def index(self) -> Tensor:
        """`[clients, samples_per_client]` rows of `inputs` and `targets` that each client holds."""
        return torch.arange(self.samples).reshape(self.clients, -1)

    @cached_property
    def inputs(self) -> Tensor:
        return torch.randn(self.samples, *self.shape, generator=torch.Generator().manual_seed(self.seed))

    @cached_property
    def targets(self) -> Tensor:
        return torch.randint(self.classes, (self.samples,), generator=torch.Generator().manual_seed(self.seed + 1))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", cnn_large, (3, 32, 32), samples_per_client=50, cohort=50),
        Workload("W2", partial(linear, 784, 10), (784,), samples_per_client=60, cohort=100),
        Workload("W3", cnn_mnist, (1, 28, 28), samples_per_client=60, cohort=50),
        Workload("W3-mlp", partial(mlp, 784, [200, 200], 10), (784,), samples_per_client=60, cohort=50),
        Workload("W4", partial(cnn_cifar, dropout=0.0), (3, 32, 32), samples_per_client=50, cohort=50),
    )
}
