"""Steps of plain SGD through a chain of common layers, for a whole cohort, with the backward pass written out.

Values are `[C, B, ...]`, images `[C, B, height, width, channels]`; parameters have a leading dimension of clients too.
The loss is scaled by each client's learning rate before it is differentiated, so that every product of the backward
pass is a step, and is added to the parameters where they lie: no gradient is ever kept. The contract suite proves a
step equal to the one by automatic differentiation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional as F

from turnout.core.random import mix
from turnout.engine.convolutions import FORMS, Patches
from turnout.local.sgd import Named
from turnout.task.dropout import KeyedDropout
from turnout.task.models import Reshape
from turnout.task.task import LOSSES, SampleFunction, Task

Saved = Any  # what a layer remembers from its forward pass


class NoChainError(ValueError):
    """A model is no chain of layers known here; the message says why."""


class Layer:
    """One link. `own` are its parameters by their last name."""

    word = ""  # what people call it; "": it computes nothing
    prefix = ""  # of the names of its parameters
    parameters: tuple[str, ...] = ()

    def forward(self, own: Any, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        raise NotImplementedError

    def backward(self, own: Any, saved: Saved, dy: Tensor, wanted: bool) -> Tensor:
        """Take the step that `dy` asks for; returns the gradient of the input, or anything if that is not `wanted`."""
        raise NotImplementedError


class Linear(Layer):
    word = "linear"

    def __init__(self, prefix: str, bias: bool) -> None:
        self.prefix, self.parameters = prefix, ("weight", "bias") if bias else ("weight",)

    def forward(self, own: Named | Factored, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        if isinstance(own, Factored):
            return own.forward(x), x
        weight, bias = own["weight"].to(x.dtype).mT, own.get("bias")
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None].to(x.dtype), x, weight), x

    def backward(self, own: Named | Factored, x: Saved, dy: Tensor, wanted: bool) -> Tensor:
        if isinstance(own, Factored):
            return own.backward(dy, wanted)
        weight = own["weight"]
        dx = torch.bmm(dy, weight.to(dy.dtype)) if wanted else dy
        if weight.dtype == x.dtype:
            weight.baddbmm_(dy.mT, x, alpha=-1)
        else:
            weight.sub_(torch.bmm(dy.mT, x))
        if "bias" in own:
            own["bias"].sub_(dy.sum(1))
        return dx


class Factored:
    """A wide `Linear` layer in the course of a few steps, never formed: after steps with inputs H_j and gradients D_j
    of its outputs its weights are `W - sum_j D_j^T H_j`, so that `x W^T` is a product with the weights received, the
    same for all clients that received the same, and a small correction."""

    def __init__(self, weight: Tensor, bias: Tensor | None, inputs: Tensor, asked: Tensor) -> None:
        self.weight = weight  # [out, in] if all received the same, else [C, out, in]
        self.bias = bias  # [C, out]
        self.inputs, self.asked = inputs, asked  # H [C, T, in] and D [C, T, out], zero where nothing is yet
        self.at = 0  # how far they are filled
        self.known: Tensor | None = None  # [C, T, out] products of all inputs with the weights received

    def some(self, clients: slice) -> Factored:
        """Of some clients: views."""
        weight = self.weight if self.weight.ndim == 2 else self.weight[clients]
        bias = None if self.bias is None else self.bias[clients]
        some = Factored(weight, bias, self.inputs[clients], self.asked[clients])
        some.at = self.at
        some.known = None if self.known is None else self.known[clients]
        return some

    def know(self, x: Tensor) -> None:
        """All inputs `[C, T, in]` beforehand: one product instead of one a step."""
        self.inputs, self.known = x, self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) if self.weight.ndim == 2 else torch.bmm(x, self.weight.mT)

    def forward(self, x: Tensor) -> Tensor:
        step = slice(self.at, self.at + x.shape[1])
        if self.known is None:
            self.inputs[:, step] = x
            y = self._product(x)
        else:
            y = self.known[:, step]
        if self.bias is not None:
            y = y + self.bias[:, None].to(y.dtype)
        if self.at:
            before = torch.bmm(x, self.inputs[:, : self.at].mT)
            y.baddbmm_(before, self.asked[:, : self.at], alpha=-1)
        return y

    def backward(self, dy: Tensor, wanted: bool) -> Tensor:
        dx = dy
        if wanted:
            dx = dy @ self.weight
            if self.at:
                before = torch.bmm(dy, self.asked[:, : self.at].mT)
                dx.baddbmm_(before, self.inputs[:, : self.at], alpha=-1)
        self.asked[:, self.at : self.at + dy.shape[1]] = dy
        self.at += dy.shape[1]
        if self.bias is not None:
            self.bias.sub_(dy.sum(1))
        return dx

    def difference(self, out: Tensor) -> None:
        """`[C, out, in]` what the weights have moved by."""
        asked, inputs = (part[:, : self.at].to(out.dtype) for part in (self.asked, self.inputs))
        if out.is_cuda:
            torch.bmm(asked.mT.neg(), inputs, out=out)
        else:  # which is far slower where rows of `out` do not lie together
            torch.neg(torch.bmm(asked.mT, inputs), out=out)


class Conv2d(Layer):
    word = "convolution"

    def __init__(self, prefix: str, layer: nn.Conv2d, form: str) -> None:
        self.prefix, self.parameters = prefix, ("weight", "bias") if layer.bias is not None else ("weight",)
        self.form = FORMS[form](_pair(layer.stride), _pair(layer.padding))

    def forward(self, own: Named, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        return self.form.forward(x, own["weight"], own.get("bias"))

    def backward(self, own: Named, saved: Saved, dy: Tensor, wanted: bool) -> Tensor:
        if "bias" in own:
            own["bias"].sub_(dy.sum((1, 2, 3)))
        return self.form.step(saved, own["weight"], dy, wanted)


class ReLU(Layer):
    word = "relu"

    def forward(self, own: Any, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        y = torch.relu(x)
        return y, y

    def backward(self, own: Any, y: Saved, dy: Tensor, wanted: bool) -> Tensor:
        dx: Tensor = torch.ops.aten.threshold_backward(dy, y, 0)
        return dx


class MaxPool2d(Layer):
    word = "max pooling"

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def forward(self, own: Any, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        images = x.flatten(0, 1).permute(0, 3, 1, 2)
        y, places = F.max_pool2d(images, self.size, return_indices=True)
        return y.permute(0, 2, 3, 1).view(*x.shape[:2], *y.shape[2:], -1), (images, places)

    def backward(self, own: Any, saved: Saved, dy: Tensor, wanted: bool) -> Tensor:
        images, places = saved
        up = dy.flatten(0, 1).permute(0, 3, 1, 2)
        dx: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            up, images, self.size, self.size, (0, 0), (1, 1), False, places
        )
        return dx.permute(0, 2, 3, 1).view(*dy.shape[:2], *dx.shape[2:], -1)


class Shape(Layer):
    """Give every sample a shape: channels come first in the model's own, last in ours."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def forward(self, own: Any, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        return _channels_last(_channels_first(x).reshape(*x.shape[:2], *self.shape)), x.shape

    def backward(self, own: Any, shape: Saved, dy: Tensor, wanted: bool) -> Tensor:
        if len(shape) != 5:
            return _channels_first(dy).reshape(shape)
        count, size, height, width, channels = shape
        return _channels_last(_channels_first(dy).reshape(count, size, channels, height, width)).contiguous()


class Dropout(Layer):
    word = "dropout"

    def __init__(self, number: int, layer: KeyedDropout) -> None:
        self.number, self.layer = number, layer

    def forward(self, own: Any, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        kept = self.layer.kept(_channels_first(x).shape[1:], mix(key ^ self.number))
        scale = _channels_last(kept.to(x.dtype) / self.layer.share)
        return x * scale, scale

    def backward(self, own: Any, scale: Saved, dy: Tensor, wanted: bool) -> Tensor:
        dx: Tensor = dy * scale
        return dx


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3) if x.ndim == 5 else x


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 1, 3, 4, 2) if x.ndim == 5 else x


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


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
        and _pair(module.dilation) == (1, 1)
        and not isinstance(module.padding, str)
        and module.padding_mode == "zeros"
    ):
        yield Conv2d(prefix, module, form)
    elif (
        type(module) is nn.MaxPool2d
        and _pair(module.kernel_size) == _pair(module.stride)
        and _pair(module.padding) == (0, 0)
        and _pair(module.dilation) == (1, 1)
        and not module.ceil_mode
        and not module.return_indices
    ):
        yield MaxPool2d(_pair(module.kernel_size))
    elif type(module) is not nn.Identity:
        raise NoChainError(f"chain does not know {type(module).__name__}{prefix and f' ({prefix[:-1]})'}")


def _pooled_first(links: Sequence[Layer]) -> list[Layer]:
    """Pooling before rectifying gives the same with a quarter of the work: where the largest is not positive, nothing
    goes back in either order."""
    links = list(links)
    for i, (one, two) in enumerate(itertools.pairwise(links)):
        if isinstance(one, ReLU) and isinstance(two, MaxPool2d):
            links[i], links[i + 1] = two, one
    return links


class Aim(NamedTuple):
    """What outputs are compared with: `[C, ..., B]` of each sample."""

    targets: Tensor
    weights: Tensor  # what it counts, times the learning rate
    missed: Tensor | None  # [C, ..., B, outputs] -1 at the class of each, where the loss is the cross entropy of it

    def at(self, number: int) -> Aim:
        """Of one of several steps; a single one serves them all."""
        stored = number if self.targets.shape[1] > 1 else 0
        missed = None if self.missed is None else self.missed[:, stored]
        return Aim(self.targets[:, stored], self.weights[:, stored], missed)


class Chain:
    """A model that is a chain of layers known here, and its loss."""

    def __init__(self, links: Sequence[Layer], loss: SampleFunction, outputs: int) -> None:
        self.links, self.loss, self.outputs = links, loss, outputs
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
        """Whether it is one layer, trained by cross entropy."""
        *before, last = self.links
        single = isinstance(last, Linear) and all(isinstance(link, Shape) for link in before)
        return single and self.loss is LOSSES["cross_entropy"][0]

    @property
    def words(self) -> str:
        """Kinds of layers, each once, for people."""
        return ", ".join(dict.fromkeys(link.word for link in self.links if link.word))

    @property
    def convolves(self) -> bool:
        return any(isinstance(link, Conv2d) for link in self.links)

    def window_numbers(self, task: Task) -> int:
        """How many numbers the windows of a sample are, where convolutions are products of them."""
        kernels = {link.prefix[:-1]: link for link in self.links if isinstance(link, Conv2d)}
        return sum(
            math.prod(task.layer_shapes[name][1:]) * math.prod(task.module.get_parameter(f"{name}.weight").shape[1:])
            for name, link in kernels.items()
            if isinstance(link.form, Patches)
        )

    def worth_factoring(self, layers: Named, samples: int) -> list[str]:
        """Prefixes of wide layers that take less to carry along than to form, when so many samples will be seen."""
        shapes = (
            (link.prefix, layers[f"{link.prefix}weight"].shape) for link in self.links if isinstance(link, Linear)
        )
        return [prefix for prefix, (_, out, into) in shapes if out * into > samples * (out + into)]

    def look_ahead(self, factored: dict[str, Factored], inputs: Tensor) -> None:
        """Tell the first layer all that it will be given, where that is the samples themselves, `[C, S, B, ...]`."""
        *before, first = self.links[: self._first + 1]
        own = factored.get(first.prefix)
        if own is not None and all(isinstance(link, Shape) for link in before):
            x = _channels_last(inputs.flatten(1, 2))
            for link in before:
                x, _ = link.forward({}, x, x)
            own.know(x)

    def aim(self, targets: Tensor, weights: Tensor, lr: float | Tensor) -> Aim:
        """Of one step or several, `[C, ...]`; `lr` is a number or `[C]`."""
        rate = lr.view(-1, *(1,) * (weights.ndim - 1)) if isinstance(lr, Tensor) else lr
        missed = None
        if self.loss is LOSSES["cross_entropy"][0] and targets.shape == weights.shape:
            missed = weights.new_zeros(*targets.shape, self.outputs).scatter_(-1, targets[..., None], -1)
        return Aim(targets, weights * rate, missed)

    def step(self, layers: Named, factored: dict[str, Factored], inputs: Tensor, aim: Aim, key: Tensor) -> None:
        """One step of the cohort, in place."""
        x, saved = _channels_last(inputs), []
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
        """`[C, B, ...]` the gradient of the weighted sum of losses by the outputs."""
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
