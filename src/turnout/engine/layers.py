"""Layers of a cohort: forward, and a backward pass that takes the steps of plain SGD as it goes.

Values are `[C, B, ...]`, images `[C, B, height, width, channels]`; parameters have a leading dimension of clients too.
Gradients of outputs are scaled by each client's learning rate, so that every product of the backward pass is a step and
is added to the parameters where they lie: no gradient is ever kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnout.core.random import mix
from turnout.engine.convolutions import FORMS
from turnout.local.sgd import Named
from turnout.task.dropout import KeyedDropout

Saved = Any  # what a layer remembers from its forward pass


class Layer:
    """One link of a chain. `own` are its parameters by their last name."""

    word = ""  # what people call it; "": it computes nothing
    prefix = ""  # of the names of its parameters
    parameters: tuple[str, ...] = ()

    def forward(self, own: Any, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        raise NotImplementedError

    def backward(self, own: Any, saved: Saved, dy: Tensor, wanted: bool) -> Tensor:
        """Take the step that `dy` asks for; return the gradient of the input, or anything if that is not `wanted`."""
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
        """Take views of some clients."""
        weight = self.weight if self.weight.ndim == 2 else self.weight[clients]
        bias = None if self.bias is None else self.bias[clients]
        some = Factored(weight, bias, self.inputs[clients], self.asked[clients])
        some.at = self.at
        some.known = None if self.known is None else self.known[clients]
        return some

    def know(self, x: Tensor) -> None:
        """Take all inputs `[C, T, in]` beforehand: one product instead of one a step."""
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
        """Compute what the weights have moved by, `[C, out, in]`."""
        asked, inputs = (part[:, : self.at].to(out.dtype) for part in (self.asked, self.inputs))
        if out.is_cuda:
            torch.bmm(asked.mT.neg(), inputs, out=out)
        else:  # which is far slower where rows of `out` do not lie together
            torch.neg(torch.bmm(asked.mT, inputs), out=out)


class Conv2d(Layer):
    word = "convolution"

    def __init__(self, prefix: str, layer: nn.Conv2d, form: str) -> None:
        self.prefix, self.parameters = prefix, ("weight", "bias") if layer.bias is not None else ("weight",)
        self.form = FORMS[form](pair(layer.stride), pair(layer.padding))

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
        return channels_last(channels_first(x).reshape(*x.shape[:2], *self.shape)), x.shape

    def backward(self, own: Any, shape: Saved, dy: Tensor, wanted: bool) -> Tensor:
        if len(shape) != 5:
            return channels_first(dy).reshape(shape)
        count, size, height, width, channels = shape
        return channels_last(channels_first(dy).reshape(count, size, channels, height, width)).contiguous()


class Dropout(Layer):
    word = "dropout"

    def __init__(self, number: int, layer: KeyedDropout) -> None:
        self.number, self.layer = number, layer

    def forward(self, own: Any, x: Tensor, key: Tensor) -> tuple[Tensor, Saved]:
        kept = self.layer.kept(channels_first(x).shape[1:], mix(key ^ self.number))
        scale = channels_last(kept.to(x.dtype) / self.layer.share)
        return x * scale, scale

    def backward(self, own: Any, scale: Saved, dy: Tensor, wanted: bool) -> Tensor:
        dx: Tensor = dy * scale
        return dx


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3) if x.ndim == 5 else x


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 1, 3, 4, 2) if x.ndim == 5 else x


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
