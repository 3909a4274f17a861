"""The slow plain reference: one client after another, a real module, `torch.optim.SGD`, batches worked out by hand."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turnout.core.random import bits, mix
from turnout.task.dropout import KeyedDropout
from turnout.task.task import Task

__all__ = ["batches", "mix", "train"]


def batches(key: int, n: int, batch_size: int, steps: int) -> Iterator[np.ndarray]:
    """Mini-batches of a client, pass after pass, until there are `steps` of them."""
    done = number = 0
    while done < steps:
        with np.errstate(over="ignore"):
            order = np.argsort(bits(mix(np.asarray([key + number], np.int64))[0], n), kind="stable")
        for start in range(0, n, batch_size):
            if done < steps:
                yield order[start : start + batch_size]
            done += 1
        number += 1


def train(
    task: Task,
    module: nn.Module,
    start: Tensor,
    inputs: Tensor,
    targets: Tensor,
    steps: int,
    key: int,
    lr: float,
    batch_size: int,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    mu: float = 0.0,
    correction: Tensor | None = None,
) -> Tensor:
    """Difference to `start` after `steps` steps on this client's samples."""
    module = copy.deepcopy(module).train()
    nn.utils.vector_to_parameters(start.clone(), module.parameters())
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    dropouts = [layer for layer in module.modules() if isinstance(layer, KeyedDropout)]
    parameters: list[Any] = list(module.parameters())  # whose gradients are never None here
    for number, rows in enumerate(batches(key, len(inputs), batch_size, steps)):
        step_key = mix(torch.tensor(key) ^ (number + 1))
        for place, layer in enumerate(dropouts, 1):
            layer.key = mix(step_key ^ place)
        optimiser.zero_grad()
        loss = task.loss(module(inputs[rows]), targets[rows]).mean()
        loss.backward()
        if clip_norm is not None:
            norm = torch.cat([parameter.grad.flatten() for parameter in parameters]).norm()
            for parameter in parameters:
                parameter.grad *= min(1.0, clip_norm / float(norm))
        offset = 0
        for parameter in parameters:
            part = slice(offset, offset + parameter.numel())
            pull = mu * (parameter.detach() - start[part].view_as(parameter))
            parameter.grad += pull
            if correction is not None:
                parameter.grad += correction[part].view_as(parameter)
            offset += parameter.numel()
        optimiser.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach() - start
