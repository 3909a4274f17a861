"""Shuffles of many clients at once, each by its own key."""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.core.random import GOLDEN, mix


def shuffles(keys: Tensor, counts: Tensor, width: int) -> Tensor:
    """`[..., width]`: in each row a permutation of range(count), then padding; counts broadcast to keys `[...]`."""
    column = torch.arange(width, device=keys.device)
    draws = mix(keys[..., None] + (column + 1) * GOLDEN)
    draws = torch.where(column < counts[..., None], draws, torch.iinfo(torch.int64).max)
    return draws.argsort(dim=-1, stable=True)
