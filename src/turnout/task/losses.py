"""Losses and metrics by name: one value a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from turnout.core.trees import Tree

SampleFunction = Callable[[Any, Tree], Tensor]  # (outputs [B, ...], targets [B, ...]) -> [B]


def _per_sample(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def _nll(outputs: Tensor, targets: Tensor) -> Tensor:
    # F.nll_loss is decomposed in Python under vmap; this is one gather
    return _per_sample(-outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1))


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _nll(F.log_softmax(outputs, -1), targets)


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return _per_sample((outputs - targets.view_as(outputs)).square())


def _hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return _per_sample(F.relu(1 - outputs * targets.view_as(outputs)))


def _squared_hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return _per_sample(F.relu(1 - outputs * targets.view_as(outputs)).square())


def _class_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _per_sample((outputs.argmax(-1) == targets).to(torch.float32))


def _sign_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _per_sample((outputs * targets.view_as(outputs) > 0).to(torch.float32))


LOSSES: dict[str, tuple[SampleFunction, dict[str, SampleFunction]]] = {
    "cross_entropy": (_cross_entropy, {"accuracy": _class_accuracy}),
    "nll": (_nll, {"accuracy": _class_accuracy}),
    "mse": (_mse, {}),
    "hinge": (_hinge, {"accuracy": _sign_accuracy}),
    "squared_hinge": (_squared_hinge, {"accuracy": _sign_accuracy}),
}
