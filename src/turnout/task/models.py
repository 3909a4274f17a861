"""The models of the papers as plain `torch.nn.Module`s, each made by one function.

Nothing here is special: any module that maps a batch to outputs will do. These take images or flat vectors, return
logits (or a regression's values), and work under `torch.func.functional_call` with `vmap(grad(...))`.

    >>> model = mlp(784, [50], 10)
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from turnout.core.allowed import Count, Range, Share
from turnout.core.errors import UserError, check_room
from turnout.core.spelling import spelt

Shares = Annotated[tuple[float, float], Range(0, 1)]


class Reshape(nn.Module):
    """Give every sample of a batch `shape`; flat or single-channel variants are accepted, transposed images are not."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        given = tuple(x.shape[1:])
        transposed = len(given) > 1 and len(self.shape) > 1 and _squeezed(given) != _squeezed(self.shape)
        if math.prod(given) != math.prod(self.shape) or transposed:
            raise UserError(f"model: takes samples of shape {self.shape} or flat, got {given}; change data or model")
        return x.reshape(x.shape[0], *self.shape)

    def extra_repr(self) -> str:
        return str(self.shape)


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


@spelt
def linear(
    inputs: Count,  # numbers of a sample
    outputs: Count,  # classes, or numbers predicted
    bias: bool = True,  # whether there is one
    zero_init: bool = False,  # whether it starts at the origin
) -> nn.Module:
    """`W x + b`: linear or logistic regression, or (one output, hinge loss) a linear SVM, whose `w x - b` is b = -bias.

    `zero_init` starts at the origin, as SAFA's regression and SVM do.
    """
    layer = nn.Linear(inputs, outputs, bias)
    if zero_init:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return nn.Sequential(Reshape(inputs), layer)


@spelt
def mlp(
    inputs: Count,  # numbers of a sample
    hidden: Annotated[Sequence[int], Range(least=1)],  # widths of the hidden layers
    outputs: Count,  # classes, or numbers predicted
) -> nn.Module:
    """Fully connected ReLU network; `mlp(784, [50], 10)` is the one of clustered sampling on MNIST."""
    layers: list[nn.Module] = [Reshape(inputs)]
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


@spelt
def cnn_mnist(classes: Count = 10) -> nn.Module:  # of the labels
    """Two 5x5 convolutions and 500 hidden units on 1x28x28 (Wu et al., SAFA, IEEE ToC 2021): 431,080 parameters."""
    return nn.Sequential(
        Reshape(1, 28, 28),
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),  # 20 x 12 x 12
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),  # 50 x 4 x 4
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, classes)),
    )


@spelt
def cnn_cifar(
    classes: Count = 10,  # of the labels
    dropout: Share = 0.2,  # share dropped after each convolution
    hidden: Count = 64,  # units of the hidden layer
) -> nn.Module:
    """Three 3x3 convolutions on 3x32x32 (Fraboni et al., ICML 2021); no ReLU follows the third, as in their code.

    Their asynchronous experiments use `dropout=0`, and `hidden=256` for CIFAR-100.
    """
    return nn.Sequential(
        Reshape(3, 32, 32),
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout)),  # 32 x 15 x 15
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout)),  # 64 x 6 x 6
        *(nn.Conv2d(64, 64, 3), nn.Dropout(dropout)),  # 64 x 4 x 4
        *(nn.Flatten(), nn.Linear(1024, hidden), nn.ReLU(), nn.Linear(hidden, classes)),
    )


@spelt
def cnn_large(
    classes: Count = 10,  # of the labels
    dropout: Shares = (0.0, 0.0),  # shares dropped after the pooling and the hidden layer
) -> nn.Module:
    """The CIFAR-10 benchmark network of pfl-research (Granqvist et al., 2024): 1,626,442 parameters for ten classes.

    Published with `dropout=(0.25, 0.5)`, after the pooling and after the hidden layer.
    """
    return nn.Sequential(
        Reshape(3, 32, 32),
        *(nn.Conv2d(3, 32, 3), nn.ReLU()),  # 32 x 30 x 30
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout[0])),  # 64 x 14 x 14
        *(nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(dropout[1]), nn.Linear(128, classes)),
    )


class LSTM(nn.Module):
    """`torch.nn.LSTM(..., batch_first=True)` written out step by step, which `vmap` can batch and the fused one cannot.

    Same parameter names, order, initialisation and gate order (input, forget, cell, output); no initial state. The
    layer `states` gives what torch's gives beside its output: `[batch, 2 * layers * hidden]`, hidden and cell by layer.
    """

    NAMES = "weight_ih", "weight_hh", "bias_ih", "bias_hh"

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.hidden, self.layers, self.states = hidden, layers, nn.Identity()
        bound = hidden**-0.5
        for layer in range(layers):
            width = inputs if layer == 0 else hidden
            shapes = (4 * hidden, width), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)
            for name, shape in zip(self.NAMES, shapes, strict=True):
                values = torch.empty(shape).uniform_(-bound, bound)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, time, inputs]` to the last layer's states `[batch, time, hidden]`."""
        final = []
        for layer in range(self.layers):
            w_ih, w_hh, b_ih, b_hh = (getattr(self, f"{name}_l{layer}") for name in self.NAMES)
            h = c = x.new_zeros(x.shape[0], self.hidden)
            states = []
            for driven in F.linear(x, w_ih, b_ih + b_hh).unbind(1):  # the input's share of all steps in one product
                i, f, g, o = (driven + h @ w_hh.T).chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                states.append(h)
            x = torch.stack(states, dim=1)
            final += [h, c]
        self.states(torch.cat(final, dim=1))
        return x


class CharLSTM(nn.Module):
    """Embedding, LSTM and a linear read-out of the last step."""

    def __init__(self, symbols: int, embed: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, embed)
        self.lstm = LSTM(embed, hidden, layers)
        self.out = nn.Linear(hidden, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.lstm(self.embed(tokens))[:, -1])
        return logits


@spelt
def char_lstm(
    symbols: Count = 100,  # of the alphabet
    embed: Count = 8,  # numbers that a symbol becomes
    hidden: Count = 100,  # units of a layer
    layers: Count = 2,  # of the LSTM
) -> nn.Module:
    """Next character of Shakespeare (LEAF): `[batch, 80]` int64 tokens to `[batch, symbols]` logits."""
    check_room(f"model: {layers} layers of {hidden}", layers * hidden * (hidden + 1) * 4)
    return CharLSTM(symbols, embed, hidden, layers)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn_mnist": cnn_mnist,
    "cnn_cifar": cnn_cifar,
    "cnn_large": cnn_large,
    "char_lstm": char_lstm,
}


def batchnorm_to_groupnorm(module: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of `module` with every batch normalisation replaced by a group normalisation with the same affine weights.

    The number of groups is the largest divisor of the channels that is at most `groups` (32 in Wu and He, ECCV 2018)
    and leaves eight values a group of a flat layer (BatchNorm1d) and two channels, of at least two pixels each, of
    images: of fewer values only the signs of their differences would be left to learn from. Running statistics go.
    """
    if groups < 1:
        raise UserError(f"groups: must be at least 1, got {groups}")
    norms = (child for child in module.modules() if isinstance(child, _BatchNorm))
    replaced = {id(norm): _group_norm(norm, groups) for norm in norms}
    return copy.deepcopy(module, replaced)  # a memo with these entries: shared layers stay shared


def _group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    least = 2 if isinstance(norm, (nn.BatchNorm2d, nn.BatchNorm3d)) else 8  # channels a group
    largest = max(1, min(groups, channels // least))
    count = next(n for n in range(largest, 0, -1) if channels % n == 0)
    new = nn.GroupNorm(count, channels, norm.eps, norm.affine).train(norm.training)
    for name, parameter in norm.named_parameters():
        new.register_parameter(name, copy.deepcopy(parameter))
    return new
