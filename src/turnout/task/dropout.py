"""Dropout that can be replayed: layers of a model are replaced by ones whose masks follow from a key."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from turnout.core.random import GOLDEN, mix


class KeyedDropout(_DropoutNd):
    """Dropout whose mask is a function of a key and the position in the batch, so that a client draws the same mask
    whoever trains beside it. The key arrives as a buffer through `functional_call`.

    It stands for the layer it replaces: an instance of the same class, with the same `p` and `inplace`.
    """

    key: Tensor
    channels = True  # drop whole channels, as nn.Dropout2d does

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p, inplace)
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * self.kept(x.shape, self.key) / self.share

    @property
    def share(self) -> float:
        """What is kept on average, by which the rest is divided; 1 where nothing is."""
        return 1 - self.p or 1.0

    def kept(self, shape: Sequence[int], key: Tensor) -> Tensor:
        """`[*key.shape, *shape]` which numbers of a batch are kept; channels that go as a whole have sides of 1."""
        shape = (*shape[:2], *(1 for _ in shape[2:])) if self.channels else tuple(shape)
        draws: Tensor = mix(key[..., None] + torch.arange(1, math.prod(shape) + 1, device=key.device) * GOLDEN)
        kept: Tensor = ((draws >> 40) & 0xFFFFFF) >= round(self.p * (1 << 24))
        return kept.view(*key.shape, *shape)


class _Dropout(KeyedDropout, nn.Dropout):
    channels = False


class _Dropout1d(KeyedDropout, nn.Dropout1d):
    pass


class _Dropout2d(KeyedDropout, nn.Dropout2d):
    pass


class _Dropout3d(KeyedDropout, nn.Dropout3d):
    pass


_KEYED: dict[type[nn.Module], type[KeyedDropout]] = {
    nn.Dropout: _Dropout,
    nn.Dropout1d: _Dropout1d,
    nn.Dropout2d: _Dropout2d,
    nn.Dropout3d: _Dropout3d,
}


def key_dropout(module: nn.Module) -> None:
    """Replace the dropout layers inside `module`, each place by a layer of its own. A subclass with a `forward` of its
    own is left as it is: what it draws is drawn as by any function (`turnout.task.draws`)."""
    for name, child in list(module._modules.items()):
        if child is None:
            continue
        keyed = next((to for kind, to in _KEYED.items() if type(child).forward is kind.forward), None)
        if keyed is not None and isinstance(child, _DropoutNd):
            setattr(module, name, keyed(child.p, child.inplace))
        else:
            key_dropout(child)
