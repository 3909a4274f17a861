"""The steps of plain local SGD, for a whole cohort, without the copies the general form needs.

Same mathematics as `LocalSGD.step`, layer by layer and in place: gradients are added to the parameters where they lie,
and no flat gradient is ever put together. The contract suite proves it equal to the general form and to a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from turnout.local.sgd import Batch, LocalSGD, Named
from turnout.task import Task


def applies(work: LocalSGD) -> bool:
    """Whether this work is nothing but steps `params - lr * gradient of the batch loss` from the model received."""
    parts = ("start", "step", "gradient", "objective", "descend", "finish")
    ordinary = all(getattr(type(work), name) is getattr(LocalSGD, name) for name in parts)
    return ordinary and not work.momentum and not work.weight_decay and work.clip_norm is None


def _objective(task: Task, named: Named, inputs: Tensor, targets: Tensor, weights: Tensor, key: Tensor) -> Tensor:
    return (task.loss(task.call(named, inputs, key), targets) * weights).sum()


def run_cohort(task: Task, received: Tensor, lr: float | Tensor, batches: Iterator[Batch]) -> Tensor:
    """Parameters `[C, P]` after all steps; a batch is that of the first so many clients, `lr` a number or `[C]`.

    Clients do not share parameters, so the gradient of the *sum* of their losses holds everybody's own gradient.
    """
    layers = {name: value.clone() for name, value in task.layout.unflatten(received).items()}
    losses = vmap(partial(_objective, task))
    for batch in batches:
        clients = len(batch.inputs)
        active = {name: value[:clients].requires_grad_() for name, value in layers.items()}
        with torch.enable_grad():
            total = losses(active, batch.inputs, batch.targets, batch.weights, batch.key).sum()
            gradients = torch.autograd.grad(total, list(active.values()))
        for layer, gradient in zip(active.values(), gradients, strict=True):
            if isinstance(lr, Tensor):
                layer.detach().sub_(gradient * lr[:clients].view(-1, *(1,) * (gradient.ndim - 1)))
            else:
                layer.detach().add_(gradient, alpha=-lr)
    return torch.cat([layers[name].flatten(1) for name in task.layout.names], dim=1)


def run_client(task: Task, received: Tensor, lr: float, batches: Iterator[Batch]) -> Tensor:
    """The same for one client, `[P]`."""
    layers = {name: value.clone().requires_grad_() for name, value in task.layout.unflatten(received).items()}
    for batch in batches:
        with torch.enable_grad():
            loss = _objective(task, layers, batch.inputs, batch.targets, batch.weights, batch.key)
            gradients = torch.autograd.grad(loss, list(layers.values()))
        for layer, gradient in zip(layers.values(), gradients, strict=True):
            layer.detach().add_(gradient, alpha=-lr)
    return task.layout.flatten(layers)
