"""The steps of plain local SGD, for a whole cohort, without the copies the general form needs.

Same mathematics as `LocalSGD.step`, layer by layer and in place: gradients are added to the parameters where they lie,
and no flat gradient is ever put together. The contract suite proves it equal to the general form and to a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import grad, vmap

from turnout.local.sgd import LocalSGD, Named
from turnout.task import Task


def applies(work: LocalSGD) -> bool:
    """Whether a step of this work is nothing but `params - lr * gradient of the batch loss`."""
    own = type(work)
    ordinary = all(getattr(own, name) is getattr(LocalSGD, name) for name in ("start", "step", "gradient", "objective"))
    return ordinary and not work.momentum and not work.weight_decay and work.clip_norm is None


def run(
    task: Task, received: Tensor, lr: float | Tensor, batches: Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]
) -> Tensor:
    """Parameters `[C, P]` after all steps. A batch is (inputs, targets, weights, keys) of the first so many clients."""
    layers = {name: value.clone() for name, value in task.layout.unflatten(received).items()}

    def objective(named: Named, inputs: Tensor, targets: Tensor, weights: Tensor, key: Tensor) -> Tensor:
        return (task.loss(task.call(named, inputs, key), targets) * weights).sum()

    gradients = vmap(grad(objective))
    for inputs, targets, weights, keys in batches:
        active = {name: value[: len(inputs)] for name, value in layers.items()}
        for name, gradient in gradients(active, inputs, targets, weights, keys).items():
            if isinstance(lr, Tensor):
                active[name].sub_(gradient * lr[: len(inputs)].view(-1, *(1,) * (gradient.ndim - 1)))
            else:
                active[name].add_(gradient, alpha=-lr)
    return torch.cat([layers[name].flatten(1) for name in task.layout.names], dim=1)
