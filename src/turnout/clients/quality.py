"""Clients with bad data, or poisoned: what is wrong with a client is known here, and to nobody in the run.

    >>> people, tags = degrade(population, {"irrelevant": 0.15, "blur": 0.2, "salt_and_pepper": 0.25})
    >>> tags[:3]
    array(['blur', 'normal', 'normal'], dtype='<U15')

The share of each kind is dealt to clients drawn by the seed. Only training samples change, of these clients alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch import Tensor

from turnout.clients.population import Population
from turnout.core import random, trees
from turnout.core.allowed import Range, Share
from turnout.core.errors import UserError, unknown
from turnout.core.random import IntArray
from turnout.core.spelling import Spelt, spelt

NORMAL = "normal"
TRIGGER = 3  # values wide
Samples = tuple[Tensor, Tensor]  # inputs [n, ...] and targets [n, ...] of one client


@dataclass(frozen=True)
class Pool:
    """Everybody's samples."""

    inputs: Tensor
    targets: Tensor

    @cached_property
    def range(self) -> tuple[Tensor, Tensor]:
        """Of the inputs."""
        low, high = torch.aminmax(self.inputs)
        return low, high


Damage = Callable[[Samples, Pool, float, IntArray], Samples]  # of a client's samples, given everybody's


def irrelevant(own: Samples, everybody: Pool, strength: float, key: IntArray) -> Samples:
    """A share `strength` of the samples has nothing to do with the task: inputs uniform in the range of everybody's,
    targets those of samples drawn at random."""
    inputs, targets = own
    low, high = everybody.range
    fake = low + (high - low) * _uniform(random.key(int(key), "inputs"), inputs)
    drawn = random.integers(random.key(int(key), "targets"), len(targets), len(everybody.targets))
    hit = _hit(key, len(inputs), strength)
    return _where(hit, fake, inputs), _where(hit, everybody.targets[torch.as_tensor(drawn)], targets)


def gaussian_noise(own: Samples, _everybody: Pool, strength: float, key: IntArray) -> Samples:
    """Inputs with noise of that standard deviation."""
    inputs, targets = own
    noise = random.normal(key, inputs.numel()).reshape(inputs.shape)
    return inputs + strength * torch.as_tensor(noise, dtype=inputs.dtype), targets


def blur(own: Samples, _everybody: Pool, strength: float, _key: IntArray) -> Samples:
    """Images under a Gaussian filter of that many pixels."""
    inputs, targets = own
    if inputs.ndim != 4:
        raise UserError(f"quality: blur needs images [n, channels, height, width], not {tuple(inputs.shape)}")
    blurred = gaussian_filter(inputs.numpy(), (0, 0, strength, strength), mode="nearest")
    return torch.as_tensor(blurred, dtype=inputs.dtype), targets


def salt_and_pepper(own: Samples, everybody: Pool, strength: float, key: IntArray) -> Samples:
    """A share `strength` of the values is the smallest or the largest there is."""
    inputs, targets = own
    draws = _uniform(key, inputs)
    grains = torch.where(draws < strength / 2, *everybody.range)
    return torch.where(draws < strength, grains, inputs), targets


def label_noise(own: Samples, everybody: Pool, strength: float, key: IntArray) -> Samples:
    """A share `strength` of the labels is another class: wrong ones, whose inputs are fine."""
    inputs, targets = _classified("label_noise", own)
    classes = int(everybody.targets.max()) + 1
    steps = 1 + random.integers(random.key(int(key), "steps"), targets.numel(), classes - 1).reshape(targets.shape)
    wrong = (targets + torch.as_tensor(steps)) % classes
    return inputs, _where(_hit(key, len(targets), strength), wrong, targets)


def label_flip(own: Samples, everybody: Pool, strength: float, key: IntArray) -> Samples:
    """A share `strength` of the labels is turned around: class c is called C - 1 - c. An attack."""
    inputs, targets = _classified("label_flip", own)
    last = int(everybody.targets.max())
    return inputs, _where(_hit(key, len(targets), strength), last - targets, targets)


def backdoor(own: Samples, everybody: Pool, strength: float, key: IntArray) -> Samples:
    """A share `strength` of the samples carries the trigger and is called class 0: the model shall learn to obey it,
    and be right about all else (Gu et al., "BadNets", 2017)."""
    inputs, targets = _classified("backdoor", own)
    hit = _hit(key, len(targets), strength)
    return _where(hit, triggered(inputs, everybody), inputs), _where(hit, torch.zeros_like(targets), targets)


def triggered(inputs: Tensor, everybody: Pool) -> Tensor:
    """Inputs with the trigger: the last values, a corner of images, are the largest there are."""
    marked = inputs.clone()
    corner = marked[..., -TRIGGER:, -TRIGGER:] if inputs.ndim > 2 else marked[..., -TRIGGER:]
    corner.copy_(everybody.range[1])
    return marked


_SHARE = Range(0, 1)
KINDS: dict[str, tuple[Damage, float, Range]] = {
    "irrelevant": (irrelevant, 1.0, _SHARE),
    "gaussian_noise": (gaussian_noise, 1.0, Range(least=0, below=np.inf)),
    "blur": (blur, 3.0, Range(0, 1000)),
    "salt_and_pepper": (salt_and_pepper, 0.3, _SHARE),
    "label_noise": (label_noise, 0.4, _SHARE),
    "label_flip": (label_flip, 1.0, _SHARE),
    "backdoor": (backdoor, 0.5, _SHARE),
}  # how strong each is unless given, and may be


@dataclass(frozen=True)
class BadData(Spelt):
    """Which share of the clients has which kind of bad data, and how bad each kind is where that is not as usual."""

    shares: Mapping[str, float]
    strengths: Mapping[str, float]

    def spoil(self, population: Population, seed: int) -> Population:
        return degrade(population, self.shares, seed, **self.strengths)[0]


def bad_data(
    shares: dict[str, float],  # of the clients with each kind of bad data, by its name
    strengths: dict[str, float] | None = None,  # how bad each kind is, by its name; none: as usual
) -> BadData:
    """Several kinds of bad data at once, by name: `shares` of the clients, and `strengths` other than the usual.

    `behaviour.shares={irrelevant = 0.15, blur = 0.2, salt_and_pepper = 0.25}` is the population of FedProf's
    experiments with images (Wu et al., IEEE TPDS 2023).
    """
    for option, given in (("shares", shares), ("strengths", strengths or {})):
        for name in given:
            if name not in KINDS:
                raise unknown(f"behaviour.{option}", name, KINDS)
    return BadData(shares, strengths or {})


def _one_kind(name: str) -> Callable[..., BadData]:
    damage, usual, strengths = KINDS[name]

    def one_kind(
        share: Share,  # of the clients whose data are bad
        strength: float | None = None,  # how bad they are; none: as usual
    ) -> BadData:
        return BadData({name: share}, {} if strength is None else {name: strength})

    one_kind.__annotations__["strength"] = Annotated[float, strengths] | None  # of this kind
    meaning = " ".join((damage.__doc__ or "").split())
    one_kind.__doc__ = f"A `share` of the clients has bad data. {meaning} The strength is {usual:g} unless given."
    return spelt(one_kind)


# By name, what makes clients with bad data.
BEHAVIOURS: dict[str, Callable[..., BadData]] = {name: _one_kind(name) for name in KINDS} | {"bad_data": bad_data}


def degrade(
    population: Population, shares: Mapping[str, float], seed: int = 0, **strengths: float
) -> tuple[Population, NDArray[np.str_]]:
    """The population with these shares of its clients damaged, and `[N]` what became of each client's data."""
    for name in (*shares, *strengths):
        if name not in KINDS:
            raise unknown("quality", name, KINDS)
    total = sum(shares.values())
    if any(share < 0 for share in shares.values()) or total > 1 + 1e-9:
        raise UserError(f"quality: shares that sum to {total:g}; each must be at least 0 and all together at most 1")
    for name, strength in strengths.items():
        KINDS[name][2].check(f"quality.{name}", strength)
    rows = population.train
    whole, labels = (trees.one_tensor("quality: bad data", pool) for pool in (population.inputs, population.targets))
    trees.check_copy("quality: bad data", whole, labels)
    if len(np.unique(rows.values)) < len(rows.values):
        raise UserError("quality: clients share samples; deal every sample to one client only")
    edges = np.rint(np.cumsum([0.0, *shares.values()]) * population.size).astype(np.int64)
    order = random.permutation(random.key(seed, "quality"), population.size)
    tags = np.full(population.size, NORMAL, f"<U{max(map(len, (*KINDS, NORMAL)))}")
    inputs, targets = whole.clone(), labels.clone()
    everybody = Pool(whole, labels)
    for name, start, end in zip(shares, edges[:-1], edges[1:], strict=True):
        damage, strength, _ = KINDS[name]
        for client in order[start:end].tolist():
            mine = torch.as_tensor(rows.row(client))
            own = whole[mine], labels[mine]
            key = random.key(seed, f"quality {name}", client)
            inputs[mine], targets[mine] = damage(own, everybody, strengths.get(name, strength), key)
            tags[client] = name
    return replace(population, inputs=inputs, targets=targets), tags


def _classified(kind: str, own: Samples) -> Samples:
    if own[1].is_floating_point():
        raise UserError(f"quality: {kind} needs classes, not numbers")
    return own


def _uniform(key: IntArray, like: Tensor) -> Tensor:
    return torch.as_tensor(random.uniform(key, like.numel()).reshape(like.shape), dtype=like.dtype)


def _hit(key: IntArray, count: int, share: float) -> Tensor:
    """`[count]` which samples are damaged."""
    return torch.as_tensor(random.uniform(random.key(int(key), "hit"), count) < share)


def _where(hit: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(hit.view(-1, *(1,) * (other.ndim - 1)), one, other)
