"""How samples are shown to a model: prepared always, augmented in training, on the device, batch by batch.

`prepare(inputs) -> inputs` and `augment(inputs, key) -> inputs` are names, functions, or several one after another.
What functions of torch draw inside `augment` is drawn by the key of the client's step (`draws.py`), the same whoever is
trained beside; part number i has the key `mix(key ^ -i)`, sample j of a batch the j-th draw.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turnout.core import trees
from turnout.core.allowed import Count, Positive, Range, Share
from turnout.core.errors import UserError, reason, unknown
from turnout.core.random import mix
from turnout.core.spelling import Spelt
from turnout.core.trees import Tree
from turnout.task.draws import KeyedDraws

Parts = tuple[Callable[..., Tree], ...]
Given = str | Callable[..., Tree] | Sequence[Any] | None


class Shown(Spelt):
    """A way to show samples, by name: what it makes of the tensors that it is for, others as they are."""

    wants: ClassVar[str] = "images [B, C, H, W] or [B, H, W]"  # of what it is for
    moves: ClassVar[bool] = False  # whether pixels go elsewhere

    def takes(self, x: Tensor) -> bool:
        """Say whether it is for such a tensor."""
        return x.ndim in (3, 4)

    def __call__(self, x: Tensor, by: Any) -> Tensor:
        """Make of a tensor what the model is given: in a precision, or by a key."""
        raise NotImplementedError

    def of(self, inputs: Tree, by: Any) -> Tree:
        """Put what is made of them in the place of the tensors that it is for."""
        if not any(self.takes(leaf) for leaf in trees.leaves(inputs)):
            raise UserError(f"{self.section} is for {self.wants}, and samples are {described(inputs)}")
        return trees.map_leaves(lambda leaf: self(leaf, by) if self.takes(leaf) else leaf, inputs)


class Pixels(Shown):
    """Make numbers from 0 to 1 of images of uint8: x / 255."""

    section: ClassVar[str] = "task.prepare: pixels"
    wants: ClassVar[str] = "samples of uint8"

    def takes(self, x: Tensor) -> bool:
        return x.dtype == torch.uint8

    def __call__(self, x: Tensor, by: torch.dtype) -> Tensor:
        return x.to(by) / 255


@dataclass(frozen=True)
class Normalise(Shown):
    """Subtract a mean and divide by a standard deviation, one number or one a channel, the second dimension."""

    section: ClassVar[str] = "task.normalise"
    wants: ClassVar[str] = "samples of floating-point numbers (before it, prepare=pixels makes these of uint8)"

    mean: tuple[float, ...]  # what is subtracted: a number, or one a channel
    std: Annotated[tuple[float, ...], Range(above=0)]  # what is divided by: a number, or one a channel

    def takes(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def __call__(self, x: Tensor, by: torch.dtype) -> Tensor:
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, x.shape[1] if x.ndim > 1 else 1):
                raise UserError(f"task.normalise.{name}: {len(getattr(self, name))} numbers for {described(x)}")
        mean, std = (_by_channel(numbers, x) for numbers in (self.mean, self.std))
        normal: Tensor = (x - mean) / std
        return normal


def _by_channel(numbers: tuple[float, ...], x: Tensor) -> Any:
    if len(numbers) == 1:
        return numbers[0]
    parts = [torch.full((1,), number, dtype=x.dtype, device=x.device) for number in numbers]  # no copy to the device
    return torch.cat(parts).view(-1, *(1,) * (x.ndim - 2))


def _whole(draws: KeyedDraws, count: int, high: int) -> Tensor:
    """Draw `[count]` whole numbers below `high`."""
    return (draws.uniform((count,), torch.float64) * high).long()


def _for_each(values: Tensor, x: Tensor) -> Tensor:
    """Line `[B]` up with the samples of `x`."""
    return values.view(-1, *(1,) * (x.ndim - 1))


@dataclass(frozen=True)
class Crop(Shown):
    """Move an image by up to `padding` pixels each way; what comes in is 0."""

    section: ClassVar[str] = "task.crop"
    moves: ClassVar[bool] = True

    padding: Count = 4  # pixels

    def __call__(self, x: Tensor, by: Tensor) -> Tensor:
        draws = KeyedDraws(by)
        wide = F.pad(x, (self.padding,) * 4)
        for side in (-2, -1):
            first = _for_each(_whole(draws, len(x), 2 * self.padding + 1), x)
            along = torch.arange(x.shape[side], device=x.device).view(-1, *(1,) * (-1 - side))
            shape = list(wide.shape)
            shape[side] = x.shape[side]
            wide = wide.gather(x.ndim + side, (first + along).expand(shape))
        return wide


@dataclass(frozen=True)
class Flip(Shown):
    """Mirror an image, left to right."""

    section: ClassVar[str] = "task.flip"
    moves: ClassVar[bool] = True

    chance: Share = 0.5  # of a sample

    def __call__(self, x: Tensor, by: Tensor) -> Tensor:
        draws = KeyedDraws(by)
        coins = draws.uniform((len(x),), torch.float64) < self.chance
        return torch.where(_for_each(coins, x), x.flip(-1), x)


@dataclass(frozen=True)
class Noise(Shown):
    """Add normal noise."""

    section: ClassVar[str] = "task.noise"
    wants: ClassVar[str] = "samples of floating-point numbers (prepare=pixels makes these of uint8)"

    sigma: Positive = 0.1  # standard deviation

    def takes(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def __call__(self, x: Tensor, by: Tensor) -> Tensor:
        draws = KeyedDraws(by)
        return x + self.sigma * draws.normal(x.shape, x.dtype)


@dataclass(frozen=True)
class Cutout(Shown):
    """Set a square with its centre anywhere in an image to 0 (DeVries and Taylor, 2017)."""

    section: ClassVar[str] = "task.cutout"

    side: Count = 8  # pixels

    def __call__(self, x: Tensor, by: Tensor) -> Tensor:
        draws = KeyedDraws(by)
        inside = torch.ones((), dtype=torch.bool, device=x.device)
        for side in (-2, -1):
            first = _for_each(_whole(draws, len(x), x.shape[side]), x) - self.side // 2
            along = torch.arange(x.shape[side], device=x.device).view(-1, *(1,) * (-1 - side))
            inside = inside & (along >= first) & (along < first + self.side)
        return torch.where(inside, 0, x)


PREPARE: dict[str, type[Shown]] = {"pixels": Pixels, "normalise": Normalise}
AUGMENT: dict[str, type[Shown]] = {"crop": Crop, "flip": Flip, "noise": Noise, "cutout": Cutout}


def parts(option: str, given: Any, known: Mapping[str, type[Any]]) -> Parts:
    """List the parts of an option: a name, `one,after,another`, a function, or a list of such."""
    listed: Sequence[Any] = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    found: list[Callable[..., Tree]] = []
    for part in listed:
        names = [name.strip() for name in part.split(",") if name.strip()] if isinstance(part, str) else []
        for name in names:
            if name not in known:
                raise unknown(f"task.{option}", name, known)
            try:
                found.append(known[name]())
            except TypeError as error:  # it has options that must be given
                raise UserError(
                    f"task.{option}: {name} has options that it needs; give {known[name].__name__}(...)"
                ) from error
        if not isinstance(part, str) and not callable(part):
            raise UserError(f"task.{option}: {part!r} is neither a name nor a function; allowed: {', '.join(known)}")
        found += [] if isinstance(part, str) else [part]
    return tuple(found)


def prepared(how: Parts, inputs: Tree, dtype: torch.dtype) -> Tree:
    """Prepare samples; floating-point numbers are then of that kind."""
    for part in how:
        if isinstance(part, Shown):
            inputs = part.of(inputs, dtype)
        else:
            inputs = _by_own("prepare", part, inputs)
    return trees.map_leaves(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, inputs)


def augmented(how: Parts, inputs: Tree, key: Tensor) -> Tree:
    """Augment samples by a key (int64 scalar)."""
    for number, part in enumerate(how, 1):
        own = mix(key ^ -number)
        if isinstance(part, Shown):  # every tensor of a sample in the same way
            inputs = part.of(inputs, own)
            continue
        with KeyedDraws(own):
            inputs = _by_own("augment", part, inputs, *((own,) if _takes_key(part) else ()))
    return inputs


def _by_own(option: str, part: Callable[..., Tree], inputs: Tree, *key: Tensor) -> Tree:
    """Let a function of the user's own have its way."""
    try:
        return part(inputs, *key)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"task.{option}: it cannot process samples {described(inputs)}: {reason(error)}") from error


def _takes_key(part: Callable[..., Tree]) -> bool:
    """Say whether a function takes a key beside the inputs."""
    try:
        known = inspect.signature(part.forward if isinstance(part, nn.Module) else part).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in known if each.kind in kinds and each.default is inspect.Parameter.empty]
    return len(needed) > 1


def described(inputs: Tree) -> str:
    """Describe samples in a sentence."""
    kinds = sorted({str(leaf.dtype).removeprefix("torch.") for leaf in trees.leaves(inputs)})
    return f"{trees.shapes_whole(inputs)} of {', '.join(kinds)}"


def check_aligned(how: Sequence[Callable[..., Tree]], inputs: Tree, targets: Tree) -> None:
    """Raise where pixels of inputs would move and targets, which stay, are an image likewise."""
    sides = {tuple(leaf.shape[-2:]) for leaf in trees.leaves(inputs) if leaf.ndim in (3, 4)}
    images = any(leaf.ndim > 2 and tuple(leaf.shape[-2:]) in sides for leaf in trees.leaves(targets))
    for part in how:
        if images and isinstance(part, Shown) and part.moves:
            raise UserError(f"{part.section}: it moves the pixels of inputs, and the targets are images that stay")


def hint(how: Parts, inputs: Tree) -> str:
    """Say what may be missing where a model cannot process samples."""
    bytes_of = [] if how else [leaf for leaf in trees.leaves(inputs) if leaf.dtype == torch.uint8]
    if any(leaf.ndim > 2 for leaf in bytes_of):
        return " (samples are uint8; task.prepare=pixels makes numbers from 0 to 1 of them)"
    tokens = "tokens are stored in more bits, as int32; of pixels task.prepare=pixels makes numbers from 0 to 1"
    return f" (samples are uint8 and stay so: {tokens})" if bytes_of else ""
