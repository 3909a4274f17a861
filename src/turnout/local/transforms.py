"""What becomes of an update before it leaves its client: clipped, noised, compressed.

Transforms are asked for by name in the order in which they act, joined by commas, each with its argument after a colon:
`clip:1.0,top_k:0.01,quantise:8`. All act on the vector of differences `delta`, row by row.

- `clip:C`: `u <- u min(1, C / |u|)`.
- `noise:S`: `u <- u + N(0, S^2 I)`, of the operating system's entropy; directly after `clip`, so that what two clients
  can differ by is known. `noise:S:SEED` has noise that anybody can take off again: for experiments, not private.
- `top_k:F`: the share F of the entries, the largest; what is left out is added to the client's next update. Stich,
  Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018; Karimireddy, Rebjock, Stich, Jaggi, "Error feedback
  fixes SignSGD and other gradient compression schemes", ICML 2019.
- `quantise:B`: every entry one of 2^B - 1 even levels from -max |u| to max |u|, the one below or above by a coin such
  that its expectation stays. Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD", NeurIPS 2017.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from turnout.core import random
from turnout.core.errors import UserError, unknown
from turnout.core.flat import clip_factors
from turnout.core.random import GOLDEN, mix

if TYPE_CHECKING:
    from turnout.local.sgd import LocalSGD
    from turnout.task.task import Task

_TOGETHER = 1 << 22  # numbers looked at in one go
_INDEX_BITS = _SCALE_BITS = 32


class Encoding(NamedTuple):
    """How a vector is written."""

    entries: int
    bits: int  # of each value
    index_bits: int = 0  # of each entry's place
    extra_bits: int = 0


class Rows(NamedTuple):
    """Updates `[k, P]`, the randomness of each, and what their clients left out before."""

    values: Tensor
    keys: Tensor  # [k] int64
    residual: Tensor | None


class Transform:
    """Pure functions of rows."""

    def apply(self, rows: Rows, numbers: int) -> Rows:
        """`numbers` entries of a row are not known to be zero."""
        raise NotImplementedError

    def encoded(self, before: Encoding, plain: Encoding) -> Encoding:
        """How the result is written; `plain` is how the update is without any transform."""
        return before


@dataclass(frozen=True)
class Clip(Transform):
    norm: float

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf:
            raise UserError(f"local.transform: clip:{self.norm:g}; the norm must be above 0 and finite")

    def apply(self, rows: Rows, numbers: int) -> Rows:
        return rows._replace(values=rows.values * clip_factors(rows.values, self.norm)[:, None])


@dataclass(frozen=True)
class Noise(Transform):
    std: float
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.std < math.inf:
            raise UserError(f"local.transform: noise:{self.std:g}; the standard deviation must be above 0 and finite")

    def apply(self, rows: Rows, numbers: int) -> Rows:
        k, size = rows.values.shape
        if self.seed is None:
            noise = random.secret_normal(k * size).reshape(k, size)
        else:
            noise = random.normal(random.key(self.seed, "local noise", rows.keys.cpu().numpy()), size)
        return rows._replace(values=rows.values + self.std * torch.from_numpy(noise).to(rows.values))

    def encoded(self, before: Encoding, plain: Encoding) -> Encoding:
        return plain


@dataclass(frozen=True)
class TopK(Transform):
    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(f"local.transform: top_k:{self.share:g}; the share must be above 0 and at most 1")

    def count(self, numbers: int) -> int:
        return max(1, math.ceil(self.share * numbers))

    def apply(self, rows: Rows, numbers: int) -> Rows:
        assert rows.residual is not None
        wanted = rows.values + rows.residual
        places = wanted.abs().topk(min(self.count(numbers), wanted.shape[1])).indices
        sent = torch.zeros_like(wanted).scatter(1, places, wanted.gather(1, places))
        return rows._replace(values=sent, residual=(wanted - sent).nan_to_num(0.0, 0.0, 0.0))  # NaN is not kept

    def encoded(self, before: Encoding, plain: Encoding) -> Encoding:
        return before._replace(entries=self.count(before.entries), index_bits=_INDEX_BITS)


@dataclass(frozen=True)
class Quantise(Transform):
    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise UserError(f"local.transform: quantise:{self.bits}; the bits must be from 2 to 16")

    def apply(self, rows: Rows, numbers: int) -> Rows:
        values = rows.values
        levels = (1 << (self.bits - 1)) - 1  # on either side of 0, which stays 0
        step = values.abs().amax(1, keepdim=True) / levels
        places = torch.arange(1, values.shape[1] + 1, device=values.device)
        draws = mix(mix(rows.keys ^ zlib.crc32(b"quantise"))[:, None] + places * GOLDEN)
        coin = (((draws >> 11) & ((1 << 53) - 1)) * 2.0**-53).to(values)
        level = torch.where(step > 0, values / step, 0.0)
        below = level.floor()
        return rows._replace(values=(below + (coin < level - below)) * step)

    def encoded(self, before: Encoding, plain: Encoding) -> Encoding:
        return before._replace(bits=self.bits, extra_bits=before.extra_bits + _SCALE_BITS)


TRANSFORMS: dict[str, tuple[type[Transform], tuple[type, ...]]] = {
    "clip": (Clip, (float,)),
    "noise": (Noise, (float, int)),
    "quantise": (Quantise, (int,)),
    "top_k": (TopK, (float,)),
}


@cache
def parse(chain: str) -> tuple[Transform, ...]:
    """The transforms of a chain, in order."""
    made: list[Transform] = []
    for part in filter(None, chain.split(",")):
        name, *arguments = part.strip().split(":")
        if name not in TRANSFORMS:
            raise unknown("local.transform", name, TRANSFORMS)
        kind, types = TRANSFORMS[name]
        try:
            values: list[Any] = [read(text) for read, text in zip(types, arguments, strict=False)]
            transform = kind(*values) if len(arguments) <= len(types) else None
        except (TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            transform = None
        if transform is None:
            raise UserError(f"local.transform: {part!r} cannot be read; write for example clip:1.0,top_k:0.01")
        if any(type(other) is kind for other in made):
            raise UserError(f"local.transform: {name} stands there twice; each may act once")
        if isinstance(transform, Noise) and not (made and isinstance(made[-1], Clip)):
            raise UserError(
                "local.transform: noise must stand directly after clip, or nothing bounds what it must hide"
            )
        made.append(transform)
    return tuple(made)


def state_shapes(chain: str, task: Task) -> dict[str, tuple[int, ...]]:
    """What the client keeps between its jobs: with `top_k`, what it has left out."""
    return {"residual": (task.size,)} if "top_k" in chain else {}


def numbers(chain: str, plain: int, number_bytes: int) -> float:
    """What `plain` numbers of so many bytes each take once transformed, in such numbers."""
    before = now = Encoding(plain, 8 * number_bytes)
    for transform in parse(chain):
        now = transform.encoded(now, before)
    return (now.entries * (now.bits + now.index_bits) + now.extra_bits) / (8 * number_bytes)


def apply(chain: str, deltas: Tensor, keys: Tensor, residual: Tensor | None, sent: int) -> tuple[Tensor, Tensor | None]:
    """Updates `[k, P]`, of which `sent` entries each are not known to be zero: as they leave, and the new residuals."""
    parts = []
    for start in range(0, len(deltas), together := max(1, _TOGETHER // deltas.shape[1])):
        some = slice(start, start + together)
        rows = Rows(deltas[some], keys[some], None if residual is None else residual[some])
        for transform in parse(chain):
            rows = transform.apply(rows, sent)
        parts.append(rows)
    left = None if residual is None else torch.cat([rows.residual for rows in parts if rows.residual is not None])
    return torch.cat([rows.values for rows in parts]), left


def noise_of(chain: str) -> tuple[Clip, Noise] | None:
    """The local noise, and the clip that stands before it."""
    made = parse(chain)
    return next(((a, b) for a, b in pairwise(made) if isinstance(a, Clip) and isinstance(b, Noise)), None)


def check(work: LocalSGD, task: Task) -> None:
    """Raise where there is no update to transform."""
    if not work.sends(task):
        raise UserError("local.transform: clients of this algorithm send nothing that could be transformed")
    if work.restates:
        raise UserError(
            "local.transform: clients of this algorithm say again and again where their own models are; transforms are "
            "for what a client changed of the model received"
        )
