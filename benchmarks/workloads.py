"""The workloads every benchmark measures: a model, and equal clients of standard normal data from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

import small_transformers
import zoo_models
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
    symbols: int = 0  # of which a sample is made, with the next one as the target of each; 0: it is made of numbers

    @property
    def samples(self) -> int:
        return self.clients * self.samples_per_client

    @property
    def index(self) -> Tensor:
        """`[clients, samples_per_client]` rows of `inputs` and `targets` that each client holds."""
        return torch.arange(self.samples).reshape(self.clients, -1)

    @cached_property
    def inputs(self) -> Tensor:
        draws = torch.Generator().manual_seed(self.seed)
        if self.symbols:
            return torch.randint(self.symbols, (self.samples, *self.shape), generator=draws)
        return torch.randn(self.samples, *self.shape, generator=draws)

    @cached_property
    def targets(self) -> Tensor:
        if self.symbols:
            return self.inputs.roll(-1, -1)
        return torch.randint(self.classes, (self.samples,), generator=torch.Generator().manual_seed(self.seed + 1))


class Language(nn.Module):
    """Scores of the next symbol, `[B, symbols, T]`, by a transformer or a recurrent network."""

    def __init__(self, inner: nn.Module, symbols: int, width: int, out: int, length: int = 0) -> None:
        super().__init__()
        self.embed, self.inner, self.out = nn.Embedding(symbols, width), inner, nn.Linear(out, symbols)
        self.places = nn.Parameter(torch.randn(length, width) / 50) if length else None

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.embed(symbols)
        x = self.inner(x if self.places is None else x + self.places)
        scores: Tensor = self.out(x[0] if isinstance(x, tuple) else x)
        return scores.movedim(-1, 1)


class Patched(nn.Module):
    """Images 3x32x32 in 64 patches to ten logits, by a transformer."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(48, width), nn.Parameter(torch.randn(64, width) / 50)
        self.inner, self.out = small_transformers.transformer(6, False, width, 6), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.reshape(-1, 3, 8, 4, 8, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 64, 48)
        scores: Tensor = self.out(self.inner(self.patches(patches) + self.places).mean(1))
        return scores


def lenet() -> nn.Module:
    """LeNet-5 for images 3x32x32, 62,006 parameters."""
    convolutions = (nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    wide = (nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(*convolutions, nn.Flatten(), *wide)


def group_normed() -> nn.Module:
    """ResNet-18 for CIFAR, 11.2 million parameters."""
    return zoo_models.ResNet18(partial(nn.GroupNorm, 32))


def gpt() -> nn.Module:
    """0.8 million parameters, 80 symbols at a time."""
    return Language(small_transformers.transformer(4, True, 128, 4), 65, 128, 128, length=80)


def lora() -> nn.Module:
    """The shape of GPT-2 small, frozen, with adapters of rank 8 beside the products of its attention."""
    model = Language(small_transformers.transformer(12, True, 768, 12), 50257, 768, 768, length=128)
    model.out = nn.Linear(768, 50257, bias=False)
    model.out.weight = model.embed.weight
    model.requires_grad_(False)
    for layer in [part for part in model.modules() if isinstance(part, small_transformers.Attention)]:
        layer.into = small_transformers.Adapted(layer.into, 8)  # type: ignore[assignment]
    return model


def lstm() -> nn.Module:
    """0.8 million parameters, as torch has it."""
    return Language(nn.LSTM(8, 256, 2, batch_first=True), 90, 8, 256)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", cnn_large, (3, 32, 32), samples_per_client=50, cohort=50),
        Workload("W2", partial(linear, 784, 10), (784,), samples_per_client=60, cohort=100),
        Workload("W3", cnn_mnist, (1, 28, 28), samples_per_client=60, cohort=50),
        Workload("W3-mlp", partial(mlp, 784, [200, 200], 10), (784,), samples_per_client=60, cohort=50),
        Workload("ResNet-18", group_normed, (3, 32, 32), samples_per_client=50, cohort=10, clients=100),
        Workload("GPT", gpt, (80,), samples_per_client=50, cohort=10, clients=100, symbols=65),
        Workload("ViT", Patched, (3, 32, 32), samples_per_client=50, cohort=10, clients=100),
        Workload("LoRA", lora, (128,), samples_per_client=20, cohort=10, clients=100, batch=5, symbols=50257),
        Workload("LSTM", lstm, (80,), samples_per_client=40, cohort=10, clients=100, symbols=90),
        Workload("LeNet", lenet, (3, 32, 32), samples_per_client=500, cohort=10, clients=20, batch=50, epochs=5),
        Workload("W4", partial(cnn_cifar, dropout=0.0), (3, 32, 32), samples_per_client=50, cohort=50),
    )
}
