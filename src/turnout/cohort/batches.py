"""Which samples each client sees at each step: ragged clients in rectangular arrays, exactly.

A row of padding repeats a real sample with weight zero, so it changes nothing but the arithmetic spent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.local.sgd import LocalSGD
from turnout.random import GOLDEN, mix


@dataclass(frozen=True)
class BatchPlan:
    """Mini-batches of C clients. A plan with a single stored step serves it at every step."""

    positions: Tensor  # [C, S, B] which of the client's samples
    sizes: Tensor  # [C, S] real samples in the batch, the rest of B is padding

    def weights(self, dtype: torch.dtype) -> Tensor:
        """`[C, S, B]`: one over the batch's size for a sample, 0 for padding."""
        real = torch.arange(self.positions.shape[2], device=self.positions.device) < self.sizes[..., None]
        return real.to(dtype) / self.sizes[..., None]

    def rows(self, index: Tensor) -> Tensor:
        """`[C, S, B]` rows of the pool, from each client's padded index `[C, n]`."""
        return index.gather(1, self.positions.flatten(1)).view(self.positions.shape)

    def stored(self, number: int) -> int:
        """Where step `number` is."""
        return number if self.positions.shape[1] > 1 else 0


def shuffles(keys: Tensor, counts: Tensor, width: int) -> Tensor:
    """`[..., width]`: in each row a permutation of range(count), then padding; counts broadcast to keys `[...]`."""
    column = torch.arange(width, device=keys.device)
    draws = mix(keys[..., None] + (column + 1) * GOLDEN)
    draws = torch.where(column < counts[..., None], draws, torch.iinfo(torch.int64).max)
    return draws.argsort(dim=-1, stable=True)


def plan(work: LocalSGD, keys: Tensor, samples: NDArray[np.int64], how_many: NDArray[np.int64]) -> BatchPlan:
    """`keys` [C] one a job, `samples` [C] of each client, `how_many` [C] steps each will do; sizes are known here, so
    that nothing is asked back from the device.

    Number `r` of a job's shuffles has the key `mix(key + r)`: it depends on nobody else.
    """
    width, longest = int(samples.max()), int(how_many.max())
    counts, steps = (torch.as_tensor(array, device=keys.device) for array in (samples, how_many))
    if work.batching == "full":
        positions = torch.arange(width, device=keys.device).expand(len(keys), 1, width)
        return BatchPlan(torch.where(positions < counts[:, None, None], positions, 0), counts[:, None])
    batch = min(work.batch_size, width)
    if work.batching in ("draws", "fixed"):
        rounds = torch.arange(1 if work.batching == "fixed" else longest, device=keys.device)
        drawn = shuffles(mix(keys[:, None] + rounds), counts[:, None], width)[..., :batch]
        sizes = counts.clamp(max=batch)[:, None].expand(-1, len(rounds))
        return BatchPlan(
            torch.where(torch.arange(batch, device=keys.device) < sizes[..., None], drawn, drawn[..., :1]), sizes
        )
    steps_a_pass = -(-counts // work.batch_size)  # [C]
    passes = int((-(-how_many // -(-samples // work.batch_size))).max())
    order = shuffles(mix(keys[:, None] + torch.arange(passes, device=keys.device)), counts[:, None], width)  # [C, E, n]
    number = torch.minimum(torch.arange(longest, device=keys.device), (steps - 1).clamp(min=0)[:, None])  # [C, S]
    which_pass, within = number // steps_a_pass[:, None], number % steps_a_pass[:, None]
    sizes = (counts[:, None] - within * work.batch_size).clamp(max=work.batch_size)
    column = torch.arange(batch, device=keys.device)
    offset = within[..., None] * work.batch_size + torch.where(column < sizes[..., None], column, 0)  # [C, S, B]
    flat = which_pass[..., None] * width + offset
    return BatchPlan(order.flatten(1).gather(1, flat.flatten(1)).view(flat.shape), sizes)
