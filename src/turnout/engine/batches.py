"""Jobs of a cohort, and which samples each sees at each step: ragged clients in rectangular arrays, exactly.

A row of padding repeats a real sample with weight zero, so it changes nothing but the arithmetic spent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.ragged import Ragged
from turnout.core.random import mix
from turnout.core.shuffles import shuffles
from turnout.engine.background import Late
from turnout.local.sgd import LocalSGD, Named

Vectors = Tensor | Sequence[Tensor]  # [k, P], or k of them that lie apart


@dataclass(frozen=True)
class Jobs:
    """What the engine needs to know of k jobs that share one local work. Job i starts from `models[received[i]]`."""

    work: LocalSGD
    keys: NDArray[np.int64]  # [k] the randomness of each job
    models: Vectors  # [V, P] the distinct ones received
    received: NDArray[np.int64]  # [k] which of them
    samples: Ragged  # k rows: indices into the pool
    options: dict[str, NDArray[np.float64]]  # [k] numbers of the work that differ between clients
    state: Named  # [k, ...]
    ahead: bool = False  # whether some of them are not waited for yet
    clients: NDArray[np.int64] | None = None  # [k] whose they are, to say so in a sentence; None: the only one's

    @property
    def lr(self) -> float | NDArray[np.float64]:
        """Give the learning rate of all, or of each, `[k]`."""
        return self.options.get("lr", self.work.lr)

    def take(self, rows: NDArray[np.int64]) -> Jobs:
        """Take some of the jobs, with the models that these received."""
        used, received = np.unique(self.received[rows], return_inverse=True)
        return replace(
            self,
            keys=self.keys[rows],
            models=[self.models[version] for version in used],
            received=received,
            samples=self.samples.rows(rows),
            clients=None if self.clients is None else self.clients[rows],
            options={name: values[rows] for name, values in self.options.items()},
            state={name: values[torch.as_tensor(rows, device=values.device)] for name, values in self.state.items()},
        )


@dataclass(frozen=True)
class Trained:
    """Results by name, row for row as the jobs were given, unless an order is named."""

    payload: Named  # [k, ...]
    state: Named  # [k, ...]
    local: Named  # {"params": [k, P']} what the clients end up with, if asked for
    late: Late | None = None  # rows of the payload that are still being computed
    order: NDArray[np.int64] | None = None  # the job of each row
    apart: Sequence[Tensor] = ()  # each job's update, where they do not lie together in the payload


class Size(NamedTuple):
    """How much there is to do in a cohort."""

    steps: NDArray[np.int64]  # [C]
    even: bool = False  # whether all have as many samples, and take as many steps
    limit: int = sys.maxsize  # clients that there is memory for at once


class Extent(NamedTuple):
    """The room that mini-batches of a cohort take: the most samples of a client, steps and passes."""

    samples: int
    steps: int
    passes: int

    @classmethod
    def of(cls, work: LocalSGD, samples: NDArray[np.int64], steps: NDArray[np.int64]) -> Extent:
        passes = -(-steps // work.steps_a_pass(np.maximum(samples, 1)))
        return cls(max(1, int(samples.max())), int(steps.max()), int(passes.max()))

    def batch(self, work: LocalSGD) -> int:
        """Count the samples of a mini-batch, padding included."""
        return self.samples if work.batching == "full" else min(work.batch_size, self.samples)


def packed(jobs: Jobs, steps: NDArray[np.int64], width: int) -> Tensor:
    """Pack jobs as `[C, 3 + width]`, one thing to send to a device: key, number of samples, number of steps, rows of
    the pool."""
    out = np.empty((len(steps), 3 + width), np.int64)
    out[:, 0], out[:, 1], out[:, 2] = jobs.keys, jobs.samples.counts, steps
    out[:, 3:] = jobs.samples.padded(width)
    return torch.from_numpy(out)


def unpacked(jobs: Tensor, index: Tensor, width: int) -> Tensor:
    """Pack jobs likewise, `[C, 3 + width]`, from keys, numbers of samples, numbers of steps and beginnings `[4, C]` in
    an index that is on the device."""
    counts, begin = jobs[1][:, None], jobs[3][:, None]
    column = torch.arange(width, device=jobs.device)
    places = (begin + torch.where(column < counts, column, 0)).clamp(max=len(index) - 1)
    return torch.cat([jobs[:3].T, index[places].to(jobs.dtype)], 1)


class Drawn(NamedTuple):
    """What `packed` jobs of C clients see. A single stored step serves them all."""

    indices: Tensor  # [C, n] rows of the pool
    counts: Tensor  # [C]
    keys: Tensor  # [C, S] of each step, if they are wanted
    positions: Tensor  # [C, S or 1, B] which of the client's samples
    sizes: Tensor  # [C, S or 1] real samples in the batch, the rest of B is padding

    def weights(self, dtype: torch.dtype) -> Tensor:
        """Weigh samples, `[C, S or 1, B]`: one over the batch's size, 0 for padding."""
        real = torch.arange(self.positions.shape[2], device=self.positions.device) < self.sizes[..., None]
        return real.to(dtype) / self.sizes[..., None]

    def rows(self) -> Tensor:
        """Look up rows of the pool, `[C, S or 1, B]`."""
        return self.indices.gather(1, self.positions.flatten(1)).view(self.positions.shape)

    def stored(self, number: int) -> int:
        """Find where step `number` is stored."""
        return number if self.positions.shape[1] > 1 else 0


def draw(work: LocalSGD, jobs: Tensor, extent: Extent, keyed: bool = True) -> Drawn:
    """Draw what `packed` jobs on the device see; `keyed` says whether steps draw themselves."""
    keys, counts, steps, index = jobs[:, 0], jobs[:, 1], jobs[:, 2], jobs[:, 3:]
    step_keys = keys[:, None].expand(-1, extent.steps)
    if keyed:
        step_keys = mix(step_keys ^ torch.arange(1, extent.steps + 1, device=jobs.device))
    return Drawn(index, counts, step_keys, *positions(work, keys, counts, steps, extent))


def positions(work: LocalSGD, keys: Tensor, counts: Tensor, steps: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
    """Draw `Drawn.positions` and `Drawn.sizes` of C jobs from their keys `[C]`, the samples of each client `counts`
    `[C]` and its number of `steps` `[C]`. Nothing is asked back from the device. Shuffle r of a job has the key
    `mix(key + r)`, whoever is trained beside it."""
    width, longest, passes = extent
    if work.batching == "full":
        place = torch.arange(width, device=keys.device).expand(len(keys), 1, width)
        return torch.where(place < counts[:, None, None], place, 0), counts[:, None]
    batch = extent.batch(work)
    if work.batching in ("draws", "fixed"):
        rounds = torch.arange(1 if work.batching == "fixed" else longest, device=keys.device)
        drawn = shuffles(mix(keys[:, None] + rounds), counts[:, None], width)[..., :batch]
        sizes = counts.clamp(max=batch)[:, None].expand(-1, len(rounds))
        return torch.where(torch.arange(batch, device=keys.device) < sizes[..., None], drawn, drawn[..., :1]), sizes
    steps_a_pass = -(-counts // work.batch_size)  # [C]
    order = shuffles(mix(keys[:, None] + torch.arange(passes, device=keys.device)), counts[:, None], width)  # [C, E, n]
    number = torch.minimum(torch.arange(longest, device=keys.device), (steps - 1).clamp(min=0)[:, None])  # [C, S]
    which_pass, within = number // steps_a_pass[:, None], number % steps_a_pass[:, None]
    sizes = (counts[:, None] - within * work.batch_size).clamp(max=work.batch_size)
    column = torch.arange(batch, device=keys.device)
    offset = within[..., None] * work.batch_size + torch.where(column < sizes[..., None], column, 0)  # [C, S, B]
    flat = which_pass[..., None] * width + offset
    return order.flatten(1).gather(1, flat.flatten(1)).view(flat.shape), sizes
