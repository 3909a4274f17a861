"""Worlds for online learners: the sources stay, the weights with which clients mix them move.

Marfoq's thesis (2023), sections 4.4.1 and 4.4.5. Every draw is a function of seed, client and step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turnout.core import random
from turnout.core.allowed import POSITIVE
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.data.dataset import Dataset
from turnout_studies.online.components import Gaussians
from turnout_studies.online.samples import Samples


@dataclass(frozen=True)
class Proportions:
    """True weights pi*: drawn from Dirichlet(`alpha`) every `period` steps, on a straight line in between. A period of
    1 is a fresh draw for every client and step; infinity, one draw for ever."""

    alpha: float = 0.1
    period: float = 1

    def __post_init__(self) -> None:
        POSITIVE.check("online.alpha", self.alpha)
        if not self.period >= 1:
            raise UserError(f"online.period: {self.period} must be at least 1; inf never changes")

    def at(self, step: int, clients: int, sources: int, seed: int) -> FloatArray:
        """`[C, m]`"""
        knot, share = (
            (0, 0.0) if math.isinf(self.period) else (int(step // self.period), step % self.period / self.period)
        )

        def drawn(number: int) -> FloatArray:
            keys = random.key(seed, "online proportions", np.arange(clients), number)
            return random.dirichlet(keys, sources, self.alpha)

        return (1 - share) * drawn(knot) + share * drawn(knot + 1) if share else drawn(knot)


def gaussian_centres(sources: int, dims: int, scale: float, seed: int) -> Tensor:
    """`[m, d]` from N(0, scale I)."""
    draws = random.normal(random.key(seed, "online centres", np.arange(sources)), dims)
    return torch.from_numpy(math.sqrt(scale) * draws)


def near(centres: Tensor, share: float, seed: int) -> Tensor:
    """Each centre moved in a direction of its own by `share` of the way to the nearest other."""
    apart = torch.cdist(centres, centres).fill_diagonal_(math.inf).min(1).values
    drawn = torch.from_numpy(random.normal(random.key(seed, "online start", np.arange(len(centres))), centres.shape[1]))
    return centres + share * apart[:, None] * torch.nn.functional.normalize(drawn, dim=1)


@dataclass(frozen=True)
class GaussianStream:
    """Clients that receive `size` samples a step from mixtures of N(mu_j, I)."""

    centres: Tensor  # [m, d]
    clients: int
    size: int
    proportions: Proportions = Proportions()
    seed: int = 0

    def mixture(self, step: int) -> Tensor:
        """`[C, m]` pi*."""
        return torch.from_numpy(self.proportions.at(step, self.clients, len(self.centres), self.seed))

    def samples(self, step: int) -> Samples:
        keys = random.key(self.seed, "online samples", np.arange(self.clients), step)
        return Gaussians().sample(self.centres, self.mixture(step), keys, self.size)

    def points(self, step: int, each: int) -> Samples:
        """`[C, m * each]` points to take expectations over: `each` of every source, which count pi*[j] / each."""
        sources, dims = self.centres.shape
        keys = random.key(self.seed, "online points", np.arange(self.clients), step)
        noise = torch.from_numpy(random.normal(keys, sources * each * dims)).view(self.clients, -1, dims)
        counted = (self.mixture(step) / each).repeat_interleave(each, 1)
        return Samples.full(noise + self.centres.repeat_interleave(each, 0))._replace(counted=counted)


def classes_in_order(classes: int, sources: int) -> list[list[int]]:
    """Classes in groups as equal as can be, larger ones first: ten into four are 3, 3, 2 and 2."""
    return [group.tolist() for group in np.array_split(np.arange(classes), sources)]


@dataclass
class LabelledStream:
    """Clients that receive `size` training and `test_size` test samples a step. A source is a group of classes; how
    many come from it is multinomial with the client's weights. No sample comes twice, so that there is a `horizon`: the
    number of steps until a source runs out."""

    data: Dataset
    groups: Sequence[Sequence[int]]
    clients: int
    size: int
    test_size: int = 1
    proportions: Proportions = Proportions()
    seed: int = 0
    horizon: int = field(init=False)

    def __post_init__(self) -> None:
        if self.data.test_inputs is None or self.data.test_targets is None:
            raise UserError(f"dataset {self.data.name}: it has no test samples, and clients are judged by them")
        parts = {
            "train": (self.data.inputs, self.data.targets, self.size),
            "test": (self.data.test_inputs, self.data.test_targets, self.test_size),
        }
        steps = range(min(len(labels) // (self.clients * size) for _, labels, size in parts.values()))
        self._mixtures = np.stack([self._mixture(step) for step in steps])  # [T, C, m]
        dealt = {part: self._deal(part, labels.numpy(), size) for part, (_, labels, size) in parts.items()}
        self.horizon = min(len(places) for places in dealt.values())
        self._parts = {part: (parts[part][0], parts[part][1], dealt[part]) for part in parts}

    def _mixture(self, step: int) -> FloatArray:
        return self.proportions.at(step, self.clients, len(self.groups), self.seed)

    def mixture(self, step: int) -> Tensor:
        """`[C, m]` pi*."""
        return torch.from_numpy(self._mixtures[step])

    def samples(self, step: int) -> Samples:
        """What the clients learn from."""
        return self._take("train", step)

    def tests(self, step: int) -> Samples:
        """What they are judged by."""
        return self._take("test", step)

    def everything(self, steps: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of all training samples of so many steps."""
        inputs, targets, places = self._parts["train"]
        chosen = torch.from_numpy(places[:steps].ravel())
        return inputs[chosen], targets[chosen]

    def _take(self, part: str, step: int) -> Samples:
        inputs, targets, places = self._parts[part]
        chosen = torch.from_numpy(places[step])
        return Samples.full(inputs[chosen], targets[chosen])

    def _deal(self, part: str, labels: IntArray, size: int) -> IntArray:
        """`[T, C, size]` places in the data, up to the step at which a source runs out."""
        steps = np.arange(len(self._mixtures))
        keys = random.key(self.seed, f"online {part}", np.arange(self.clients)[None], steps[:, None])
        luck, edges = random.uniform(keys, size), self._mixtures.cumsum(-1)
        sources = (luck[..., None] >= edges[:, :, None, :-1]).sum(-1).ravel()  # [T * C * size]
        places, first = np.empty(len(sources), np.int64), len(sources)
        for source, group in enumerate(self.groups):
            pool = np.flatnonzero(np.isin(labels, group))
            pool = pool[random.permutation(random.key(self.seed, f"online {part} order", source), len(pool))]
            wanted = np.flatnonzero(sources == source)
            if len(wanted) > len(pool):
                first = min(first, wanted[len(pool)])
            places[wanted[: len(pool)]] = pool[: len(wanted)]
        whole = first // (self.clients * size)
        return places[: whole * self.clients * size].reshape(whole, self.clients, size)
