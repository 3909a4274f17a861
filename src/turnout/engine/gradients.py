"""Gradients of a cohort's losses by each client's own parameters, in the three ways in which plain SGD takes them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.func import grad, vmap

from turnout.core.trees import Tree
from turnout.engine.together import Together
from turnout.local.sgd import Batch, Named
from turnout.task.task import Task


def objective(task: Task, named: Named, inputs: Tree, targets: Tree, weights: Tensor, key: Tensor) -> Tensor:
    """Compute one client's loss for parameters by name."""
    return (task.loss(task.call(named, inputs, key), targets) * weights).sum()


def mapped(task: Task, layers: Named, batch: Batch) -> Named:
    """Map the gradient over clients, `[C, ...]` by name: on a CPU, whose products have the better layout so."""
    found: Named = vmap(grad(partial(objective, task)))(layers, *_arguments(batch))
    return found


def summed(task: Task, layers: Named, batch: Batch) -> list[Tensor]:
    """Differentiate by one ordinary backward pass through the sum of all losses, in the order of the layers: clients
    share no parameters, so it holds the same gradients in fewer launches, which are what costs on CUDA."""
    leaves = {name: value.detach().requires_grad_() for name, value in layers.items()}
    with torch.enable_grad(), Together():
        total = vmap(partial(objective, task))(leaves, *_arguments(batch)).sum()
        return list(torch.autograd.grad(total, list(leaves.values()), materialize_grads=True))


def step_alone(task: Task, layers: Named, inputs: Tree, targets: Tree, weights: Tensor, key: Tensor) -> None:
    """Take one client's step by an ordinary pass, in place; `weights` hold the learning rate."""
    for own, counted, drawn in task.models(layers, weights, key):
        leaves = {name: layer.detach().requires_grad_() for name, layer in own.items()}
        with torch.enable_grad():
            loss = objective(task, leaves, inputs, targets, counted, drawn)
            moves = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        torch._foreach_sub_(list(own.values()), list(moves))


def _arguments(batch: Batch) -> tuple[Tree, Tree, Tensor, Tensor]:
    return batch.inputs, batch.targets, batch.weights, batch.key
