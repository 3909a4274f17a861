"""Steps of plain SGD through a chain of common layers, for a whole cohort, with the backward pass written out.

The loss is scaled by each client's learning rate before it is differentiated, so that the layers' backward pass takes
the steps (`layers.py`). The contract suite proves a step equal to the one by automatic differentiation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad

from turnout.engine.convolutions import Patches
from turnout.engine.layers import (
    Conv2d,
    Dropout,
    Factored,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Shape,
    channels_last,
    pair,
)
from turnout.local.sgd import Named
from turnout.task.dropout import KeyedDropout
from turnout.task.losses import CrossEntropy, SampleFunction
from turnout.task.models import Reshape
from turnout.task.task import Task

_CROSS_ENTROPY = CrossEntropy()  # without options


class NoChainError(ValueError):
    """A model is no chain of layers known here; the message says why."""


def _links(module: nn.Module, prefix: str, dropout: Sequence[nn.Module], form: str) -> Iterator[Layer]:
    """Yield the links a module is made of; `NoChainError` for a layer that is not known here. `dropout` are all such
    layers of the model, in order."""
    if module._forward_hooks or module._forward_pre_hooks:
        raise NoChainError(f"{prefix[:-1] or 'the model'} has hooks, which chain does not call")
    if type(module).forward is nn.Sequential.forward:
        for name, child in module._modules.items():  # one that comes twice is there twice
            assert child is not None
            yield from _links(child, f"{prefix}{name}.", dropout, form)
    elif type(module) is nn.Linear:
        yield Linear(prefix, module.bias is not None)
    elif type(module) is nn.ReLU:
        yield ReLU()
    elif type(module) is Reshape:
        yield Shape(*module.shape)
    elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        yield Shape(-1)
    elif isinstance(module, KeyedDropout):
        if module.p:
            yield Dropout(1 + [layer is module for layer in dropout].index(True), module)
    elif (
        type(module) is nn.Conv2d
        and module.groups == 1
        and pair(module.dilation) == (1, 1)
        and not isinstance(module.padding, str)
        and module.padding_mode == "zeros"
    ):
        yield Conv2d(prefix, module, form)
    elif (
        type(module) is nn.MaxPool2d
        and pair(module.kernel_size) == pair(module.stride)
        and pair(module.padding) == (0, 0)
        and pair(module.dilation) == (1, 1)
        and not module.ceil_mode
        and not module.return_indices
    ):
        yield MaxPool2d(pair(module.kernel_size))
    elif type(module) is not nn.Identity:
        raise NoChainError(f"chain does not know {type(module).__name__}{prefix and f' ({prefix[:-1]})'}")


def _pooled_first(links: Sequence[Layer]) -> list[Layer]:
    """Move pooling before rectifying, which gives the same with a quarter of the work: where the largest is not
    positive, nothing goes back in either order."""
    links = list(links)
    for i, (one, two) in enumerate(itertools.pairwise(links)):
        if isinstance(one, ReLU) and isinstance(two, MaxPool2d):
            links[i], links[i + 1] = two, one
    return links


class Aim(NamedTuple):
    """What outputs are compared with, `[C, ..., B]` of each sample."""

    targets: Tensor
    weights: Tensor  # what it counts, times the learning rate
    missed: Tensor | None  # [C, ..., B, outputs] -1 at the class of each, where the loss is the cross entropy of it

    def at(self, number: int) -> Aim:
        """Take the part of one of several steps; a single stored step serves them all."""
        stored = number if self.targets.shape[1] > 1 else 0
        missed = None if self.missed is None else self.missed[:, stored]
        return Aim(self.targets[:, stored], self.weights[:, stored], missed)


class Chain:
    """A model that is a chain of layers known here, and its loss."""

    def __init__(self, links: Sequence[Layer], loss: SampleFunction, outputs: int) -> None:
        self.links, self.loss, self.outputs = links, loss, outputs
        self._plain_entropy = loss == _CROSS_ENTROPY
        self._first = next(i for i, link in enumerate(links) if link.parameters)

    @classmethod
    def of(cls, task: Task, form: str) -> Chain | None:
        """Make the chain of a task with a form of convolution; None for a model that is something else."""
        try:
            return cls.made(task, form)
        except NoChainError:
            return None

    @classmethod
    def made(cls, task: Task, form: str) -> Chain:
        """Make the chain of a task with a form of convolution; `NoChainError` for a model that is something else, and
        where samples are not each for itself: batches are joined."""
        if "loss" in task.coupled:
            raise NoChainError(task.alone)
        if task.preparing or task.augmenting:
            raise NoChainError("chain does not prepare or augment samples (task.prepare, task.augment)")
        for name, layer in task.module.named_modules():
            sides = 1 if isinstance(layer, nn.Linear) else 3 if isinstance(layer, (nn.Conv2d, nn.MaxPool2d)) else None
            if sides is not None and len(task.layer_shapes.get(name, ())) != sides:
                raise NoChainError(f"chain wants outputs of {name} with {sides} dimension{'s'[: sides - 1]} a sample")
        dropout = [layer for layer in task.module.modules() if isinstance(layer, KeyedDropout)]
        links = list(_links(task.module, "", dropout, form))
        trained = [link.prefix + name for link in links for name in link.parameters]
        outputs = task.layer_shapes.get("", ())  # more than one dimension: the loss would have them in our order
        if trained != task.layout.names:
            raise NoChainError("chain wants layers that share no parameters, all of them trained")
        if len(outputs) != 1:
            raise NoChainError("chain wants outputs of the model with 1 dimension a sample")
        return cls(_pooled_first(links), task.loss, outputs[0])

    @property
    def logistic(self) -> bool:
        """Say whether the model is one layer, trained by cross entropy."""
        *before, last = self.links
        single = isinstance(last, Linear) and all(isinstance(link, Shape) for link in before)
        return single and self._plain_entropy

    @property
    def words(self) -> str:
        """Name the kinds of layers, each once."""
        return ", ".join(dict.fromkeys(link.word for link in self.links if link.word))

    @property
    def convolves(self) -> bool:
        return any(isinstance(link, Conv2d) for link in self.links)

    def window_numbers(self, task: Task) -> int:
        """Count the numbers that all windows of a sample are, where convolutions are products of windows."""
        kernels = {link.prefix[:-1]: link for link in self.links if isinstance(link, Conv2d)}
        return sum(
            math.prod(task.layer_shapes[name][1:]) * math.prod(task.module.get_parameter(f"{name}.weight").shape[1:])
            for name, link in kernels.items()
            if isinstance(link.form, Patches)
        )

    def worth_factoring(self, layers: Named, samples: int) -> list[str]:
        """Name prefixes of wide layers that take less to carry along than to form for so many samples of a client."""
        shapes = (
            (link.prefix, layers[f"{link.prefix}weight"].shape) for link in self.links if isinstance(link, Linear)
        )
        return [prefix for prefix, (_, out, into) in shapes if out * into > samples * (out + into)]

    def look_ahead(self, factored: dict[str, Factored], inputs: Tensor) -> None:
        """Give the first layer all its inputs beforehand, where they are the samples themselves, `[C, S, B, ...]`."""
        *before, first = self.links[: self._first + 1]
        own = factored.get(first.prefix)
        if own is not None and all(isinstance(link, Shape) for link in before):
            x = channels_last(inputs.flatten(1, 2))
            for link in before:
                x, _ = link.forward({}, x, x)
            own.know(x)

    def aim(self, targets: Tensor, weights: Tensor, lr: float | Tensor) -> Aim:
        """Scale weights of samples by the learning rate, a number or `[C]`, for one step or several, `[C, ...]`."""
        rate = lr.view(-1, *(1,) * (weights.ndim - 1)) if isinstance(lr, Tensor) else lr
        missed = None
        if self._plain_entropy and targets.shape == weights.shape:
            classes = targets[..., None].long()  # as it is, but for classes that are False and True
            missed = weights.new_zeros(*targets.shape, self.outputs).scatter_(-1, classes, -1)
        return Aim(targets, weights * rate, missed)

    def step(self, layers: Named, factored: dict[str, Factored], inputs: Tensor, aim: Aim, key: Tensor) -> None:
        """Take one step of the cohort, in place."""
        x, saved = channels_last(inputs), []
        owns = [
            (factored.get(link.prefix) if link.parameters else None)
            or {name: layers[link.prefix + name] for name in link.parameters}
            for link in self.links
        ]
        for link, own in zip(self.links, owns, strict=True):
            x, kept = link.forward(own, x, key)
            saved.append(kept)
        dy = self._ask(x, aim).to(x.dtype)
        for i in reversed(range(self._first, len(self.links))):
            dy = self.links[i].backward(owns[i], saved[i], dy, i > self._first)

    def _ask(self, outputs: Tensor, aim: Aim) -> Tensor:
        """Differentiate the weighted sum of losses by the outputs, `[C, B, ...]`."""
        outputs = outputs.float() if outputs.dtype == torch.bfloat16 else outputs
        targets, weights, missed = aim
        if missed is not None:
            # on a CPU the other way round: the library is slow along a short end
            chances = (
                torch.softmax(outputs, -1)
                if outputs.is_cuda
                else torch.softmax(outputs.movedim(-1, 0), 0).movedim(0, -1)
            )
            return chances.add_(missed).mul_(weights[..., None])

        def total(outputs: Tensor) -> Tensor:
            return (self.loss(outputs.flatten(0, 1), targets.flatten(0, 1)) * weights.flatten()).sum()

        asked: Tensor = grad(total)(outputs)
        return asked
