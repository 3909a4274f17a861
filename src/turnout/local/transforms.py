"""Modifiers of what is sent: an update is clipped, noised, compressed before it leaves its client.

They act in the order in which they stand, on the vector of differences `delta`, row by row and after training, which
they leave as it is.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnout.core import random
from turnout.core.allowed import Fraction, Positive, Range
from turnout.core.errors import UserError
from turnout.core.flat import clip_factors
from turnout.core.random import GOLDEN, mix
from turnout.local.modifiers import ControlVariates, Modifier, Proximal, Shapes, SharpnessAware

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


class Transform(Modifier):
    """Change rows by pure functions, in the place of those for one client."""

    keeps_fast_paths: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | list | tuple):
                raise UserError(f"{self.section}.{name}: {value} must be one number")

    def check(self, work: LocalSGD) -> None:
        if sum(type(other) is type(self) for other in work.transforms) > 1:
            raise UserError(f"local.modifiers: {type(self).__name__} stands there twice; each may act once")
        for name in ("payload_shapes", "start", "gradient", "step", "finish"):
            if getattr(type(self), name) is not getattr(Modifier, name):
                raise UserError(
                    f"local.modifiers: {type(self).__name__} is a transform, whose {name} nobody asks for; derive it "
                    "from Modifier"
                )

    def apply(self, rows: Rows, numbers: int) -> Rows:
        """Transform rows of which `numbers` entries each are not known to be zero."""
        raise NotImplementedError

    def encoded(self, before: Encoding, plain: Encoding) -> Encoding:
        """Tell how the result is written; `plain` is how the update is without any transform."""
        return before


@dataclass(frozen=True)
class Clip(Transform):
    """Bound the norm: `u <- u min(1, norm / |u|)`."""

    section: ClassVar[str] = "local.clip"

    norm: Positive  # largest norm of an update

    def apply(self, rows: Rows, numbers: int) -> Rows:
        return rows._replace(values=rows.values * clip_factors(rows.values, self.norm)[:, None])


@dataclass(frozen=True)
class Noise(Transform):
    """Add noise: `u <- u + N(0, std^2 I)`, of the operating system's entropy; directly after `Clip`, so that what two
    clients can differ by is known. With a `seed` anybody can take the noise off again: for experiments, not private."""

    section: ClassVar[str] = "local.noise"

    std: Positive  # standard deviation of the noise
    seed: int | None = None  # makes the noise reproducible: nothing is private; none: it is

    def check(self, work: LocalSGD) -> None:
        super().check(work)
        if noise_of(work.transforms) is None:
            raise UserError(
                "local.modifiers: noise must stand directly after clip, or nothing bounds what it must hide"
            )

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
    """Send the `share` of the entries that are the largest; what is left out is added to the client's next update.

    Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018; Karimireddy, Rebjock, Stich, Jaggi, "Error
    feedback fixes SignSGD and other gradient compression schemes", ICML 2019.
    """

    section: ClassVar[str] = "local.top_k"

    share: Fraction  # of the entries that is sent

    def state_shapes(self, task: Task) -> Shapes:
        return {"residual": (task.learnt,)}

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
    """Round every entry to one of 2^bits - 1 even levels from -max |u| to max |u|, the one below or above by a coin
    such that its expectation stays.

    Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD", NeurIPS 2017.
    """

    section: ClassVar[str] = "local.quantise"

    bits: Annotated[int, Range(2, 16)]  # of a value that is sent

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits != int(self.bits):
            raise UserError(f"local.quantise.bits: {self.bits} must be a whole number")

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


Transforms = Sequence[Transform]
_FORMER: dict[str, tuple[type[Transform], tuple[type, ...]]] = {
    "clip": (Clip, (float,)),
    "noise": (Noise, (float, int)),
    "quantise": (Quantise, (int,)),
    "top_k": (TopK, (float,)),
}


def former(chain: str) -> dict[str, Transform]:
    """Read what version 0.1 wrote as `clip:1.0,top_k:0.01`, by name in that order."""
    made: dict[str, Transform] = {}
    for part in filter(None, chain.split(",")):
        name, *arguments = part.strip().split(":")
        kind, types = _FORMER.get(name, (None, ()))
        try:
            values: list[Any] = [read(text) for read, text in zip(types, arguments, strict=False)]
            made[name] = kind(*values) if kind and len(arguments) <= len(types) else made[name]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"local.transform: {part!r} cannot be read; it is now local.modifiers") from error
    return made


def former_chain(transforms: Transforms) -> str:
    """Write transforms as version 0.1 did."""
    names = {kind: name for name, (kind, _) in _FORMER.items()}
    parts = []
    for transform in transforms:
        values = (getattr(transform, part.name) for part in fields(transform))
        parts.append(":".join([names[type(transform)], *(str(value) for value in values if value is not None)]))
    return ",".join(parts)


def numbers(chain: Transforms, plain: int, number_bytes: int) -> float:
    """Count what `plain` numbers of so many bytes each take once transformed, in such numbers."""
    before = now = Encoding(plain, 8 * number_bytes)
    for transform in chain:
        now = transform.encoded(now, before)
    return (now.entries * (now.bits + now.index_bits) + now.extra_bits) / (8 * number_bytes)


def apply(
    chain: Transforms, deltas: Tensor, keys: Tensor, residual: Tensor | None, sent: int
) -> tuple[Tensor, Tensor | None]:
    """Transform updates `[k, P]`, of which `sent` entries each are not known to be zero, and give the new residuals."""
    parts = []
    for start in range(0, len(deltas), together := max(1, _TOGETHER // deltas.shape[1])):
        some = slice(start, start + together)
        rows = Rows(deltas[some], keys[some], None if residual is None else residual[some])
        for transform in chain:
            rows = transform.apply(rows, sent)
        parts.append(rows)
    left = None if residual is None else torch.cat([rows.residual for rows in parts if rows.residual is not None])
    return torch.cat([rows.values for rows in parts]), left


def noise_of(chain: Transforms) -> tuple[Clip, Noise] | None:
    """Find the local noise, and the clip that stands before it."""
    return next(((a, b) for a, b in pairwise(chain) if isinstance(a, Clip) and isinstance(b, Noise)), None)


def listed(given: Any) -> tuple[Any, ...]:
    """`given` as a tuple; raise unless it is a list of something."""
    if isinstance(given, str | bytes | Mapping | type | Modifier) or not isinstance(given, Iterable):
        shown = given.__name__ if isinstance(given, type) else repr(given)[:60]
        raise UserError(f"local.modifiers: {shown} is not a list of modifiers; write for example [Proximal(0.1)]")
    return tuple(given)


def check_all(work: LocalSGD) -> None:
    """Raise where something else stands among the modifiers, or one does not go with the work."""
    for modifier in work.modifiers:
        if isinstance(modifier, type):
            name = modifier.__name__
            raise UserError(f"local.modifiers: {name} is a class and needs its options; write {name}(...)")
        if not isinstance(modifier, Modifier) or modifier.keeps_fast_paths != isinstance(modifier, Transform):
            raise UserError(
                f"local.modifiers: {modifier!r} is neither a Modifier nor a Transform; write for example Clip(1.0)"
            )
        modifier.check(work)


def gone(chain: str) -> UserError:
    """Say how transforms are written since version 0.1."""
    made = former(str(chain))
    values = {f"{name}.{option}": value for name, each in made.items() for option, value in vars(each).items()}
    options = "".join(f" local.{name}={value}" for name, value in values.items() if value is not None)
    return UserError(
        f"local.transform: it is now local.modifiers; write local.modifiers={','.join(made)}{options}, "
        f"in Python modifiers={list(made.values())}"
    )


def check(work: LocalSGD, task: Task) -> None:
    """Raise where there is no update to transform."""
    if not work.sends(task):
        raise UserError("local.modifiers: clients of this algorithm send nothing that could be transformed")
    if work.restates:
        raise UserError(
            "local.modifiers: clients of this algorithm say again and again where their own models are; transforms are "
            "for what a client changed of the model received"
        )


MODIFIERS: dict[str, type[Modifier]] = {
    "proximal": Proximal,
    "control_variates": ControlVariates,
    "sharpness_aware": SharpnessAware,
    "clip": Clip,
    "noise": Noise,
    "top_k": TopK,
    "quantise": Quantise,
}
