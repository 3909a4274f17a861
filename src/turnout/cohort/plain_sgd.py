"""The steps of plain local SGD, for a whole cohort, without the copies the general form needs.

Same mathematics as `LocalSGD.step`, layer by layer and in place: gradients are added to the parameters where they lie,
and no flat gradient is ever put together. The contract suite proves it equal to the general form and to a plain loop.
The components of a mixture take the same steps one after another, each by what the samples count for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.func import grad, vmap

from turnout.cohort.graphs import CapturedStep, Graphs
from turnout.local.sgd import Batch, LocalSGD, Named
from turnout.task import Task

PARTS = ("start", "counted", "step", "gradient", "objective", "descend", "finish")


def applies(task: Task, work: LocalSGD, own_options: Collection[str]) -> bool:
    """Whether this work is nothing but steps `params - lr * gradient of the batch loss` from the model received: it is
    `plain_for` such a task, and has every part from a class that says so."""
    makers = (next(kind for kind in type(work).__mro__ if name in vars(kind)) for name in PARTS)
    ordinary = work.plain_for is type(task) and all("plain_for" in vars(maker) for maker in makers)
    extras = {"momentum": work.momentum, "weight_decay": work.weight_decay, "clip_norm": work.clip_norm}
    return ordinary and not any(value or name in own_options for name, value in extras.items())


def _objective(task: Task, named: Named, inputs: Tensor, targets: Tensor, weights: Tensor, key: Tensor) -> Tensor:
    return (task.loss(task.call(named, inputs, key), targets) * weights).sum()


def _own_gradients(task: Task, layers: Named, batch: Batch) -> Iterable[Tensor]:
    """Every client's gradient of its own loss, layer by layer.

    On a CPU by `vmap(grad)`, whose products have the better layout. On CUDA, where launches are what costs, by one
    ordinary backward pass through the sum of all losses: clients share no parameters, so it holds the same gradients.
    """
    arguments = (batch.inputs, batch.targets, batch.weights, batch.key)
    if not batch.inputs.is_cuda:
        gradients: Named = vmap(grad(partial(_objective, task)))(layers, *arguments)
        return gradients.values()
    leaves = {name: value.detach().requires_grad_() for name, value in layers.items()}
    with torch.enable_grad():
        total = vmap(partial(_objective, task))(leaves, *arguments).sum()
        return torch.autograd.grad(total, list(leaves.values()))


def descend(task: Task, layers: Named, lr: float | Tensor, batch: Batch) -> None:
    """One step of the cohort, in place; `lr` is a number or `[C]`."""
    for own, weights, key in task.models(layers, batch.weights, batch.key):
        seen = batch._replace(weights=weights, key=key)
        for layer, gradient in zip(own.values(), _own_gradients(task, own, seen), strict=True):
            if isinstance(lr, Tensor):
                layer.addcmul_(gradient, lr.view(-1, *(1,) * (gradient.ndim - 1)), value=-1)
            else:
                layer.add_(gradient, alpha=-lr)


def run_cohort(
    task: Task, received: Tensor, lr: float | Tensor, batches: Iterator[Batch], graphs: Graphs | None = None
) -> Named:
    """Layers `[C, ...]` after all steps; a batch is that of the first so many clients, `lr` a number or `[C]`.

    With `graphs`, steps of the whole cohort are replayed from a captured one.
    """
    layers = task.layers(received)
    captured: CapturedStep | None = None
    if graphs is None:
        layers = {name: value.clone() for name, value in layers.items()}
    for batch in batches:
        clients = len(batch.inputs)
        if graphs is not None and clients == len(received):
            if captured is None:
                captured = graphs.step_for(layers, lr, batch)
                layers = captured.layers
            captured.replay(batch)
        else:
            active = {name: value[:clients] for name, value in layers.items()}
            descend(task, active, lr[:clients] if isinstance(lr, Tensor) else lr, batch)
    return layers


def difference(task: Task, layers: Named, received: Tensor) -> Tensor:
    """`[C, P]` what the layers have moved by."""
    moved = received.new_empty(received.shape)
    for name, part, start in zip(
        task.layout.names, *(torch.split(flat, task.layout.sizes, dim=1) for flat in (moved, received)), strict=True
    ):
        torch.sub(layers[name].flatten(1), start, out=part)
    return moved


def run_client(task: Task, received: Tensor, lr: float, batches: Iterator[Batch]) -> Tensor:
    """The same for one client, `[P]`."""
    layers = {name: value.clone() for name, value in task.layers(received).items()}
    for batch in batches:
        for own, weights, key in task.models(layers, batch.weights, batch.key):
            leaves = {name: layer.detach().requires_grad_() for name, layer in own.items()}
            with torch.enable_grad():
                loss = _objective(task, leaves, batch.inputs, batch.targets, weights, key)
                gradients = torch.autograd.grad(loss, list(leaves.values()))
            for layer, gradient in zip(own.values(), gradients, strict=True):
                layer.add_(gradient, alpha=-lr)
    return task.vector({name: layer[None] for name, layer in layers.items()})[0]
