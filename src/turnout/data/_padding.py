"""Samples one by one, stacked: those that differ in their length alone are padded, those of a test set likewise."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from turnout.core import trees
from turnout.core.errors import UserError
from turnout.core.trees import Tree
from turnout.data.dataset import as_tensor, plain

IGNORED = -100  # what a target of a place beyond a sequence's end is
MASK = "attention_mask"


class Found(NamedTuple):
    """Samples of a source."""

    inputs: Tree
    targets: Any  # tensors, or `[n]` an array of words
    clients: Any
    padded: tuple[str, ...] = ()  # names of the inputs that are padded
    mask: str | None = None  # name of what says where they are, where that was made here
    classes: tuple[str, ...] = ()  # their names, where the source has them


def stacked(what: str, samples: Any, fill: int) -> Tree:
    """Stack samples, `[n, ...]` of every tensor; those that differ in their length alone are padded with `fill`."""
    first = samples[0] if len(samples) else None
    if isinstance(first, Mapping):
        odd = next((one for one in samples if not isinstance(one, Mapping) or one.keys() != first.keys()), first)
        if odd is not first:
            other = [*odd] if isinstance(odd, Mapping) else type(odd).__name__
            raise UserError(f"{what}: samples should have the same parts, but one has {[*first]}, another {other}")
        return {key: stacked(f"{what}, {key}", [sample[key] for sample in samples], fill) for key in first}
    if isinstance(first, tuple) and not _sequences(what, samples):
        return tuple(stacked(what, list(parts), fill) for parts in zip(*samples, strict=True))
    return padded(what, samples, fill)[0]


def _sequences(what: str, samples: Any) -> bool:
    """Say whether tuples are sequences and not trees: numbers, not as many in each."""
    counts = {len(sample) if isinstance(sample, tuple | list) else 0 for sample in samples}
    if len(counts) == 1:
        return False
    if 0 not in counts and all(isinstance(part, Real) for sample in samples for part in sample):
        return True
    raise UserError(f"{what}: samples should have the same parts, but tuples have {min(counts)} to {max(counts)} parts")


def inputs_of(what: str, samples: Any, names: tuple[str, str]) -> Found:
    """Stack inputs; sequences of different lengths become a dictionary of these names: the samples, and 1 where they
    are not padding."""
    if len(samples) and isinstance(samples[0], Mapping | tuple):
        whole = stacked(what, samples, 0)
        if not isinstance(whole, Tensor):
            return Found(whole, None, None)
    found, lengths = padded(what, samples, 0)
    if lengths is None:
        return Found(found, None, None)
    return Found({names[0]: found, names[1]: mask_of(lengths)}, None, None, names[:1], names[1])


def mask_of(lengths: NDArray[np.int64]) -> Tensor:
    """`[n, longest]` 1 for what there is, 0 for padding."""
    return torch.as_tensor(np.arange(lengths.max()) < lengths[:, None]).to(torch.int64)


def padded(what: str, samples: Any, fill: int) -> tuple[Tensor, NDArray[np.int64] | None]:
    """Stack samples in numbers that hold all of them, and give their lengths if these differ."""
    if isinstance(samples, Tensor) or (isinstance(samples, np.ndarray) and samples.dtype.kind in "fiub"):
        return as_tensor(what, samples), None
    parts = [_part(what, sample) for sample in samples]
    if not parts:
        raise UserError(f"{what}: there are no samples")
    shapes = [tuple(part.shape) for part in parts]
    odd = next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is None and not any(isinstance(part, Tensor) for part in parts):
        return as_tensor(what, np.stack(parts)), None
    tensors = [_numbers(what, part) for part in parts]
    kinds = {tensor.dtype for tensor in tensors if tensor.numel()} or {tensors[0].dtype}  # of [] nobody knows
    kind = kinds.pop() if len(kinds) == 1 else reduce(torch.promote_types, map(trees.comparable, kinds))
    if odd is None:
        return torch.stack([tensor.to(kind) for tensor in tensors]), None
    flat = all(len(shape) == 1 for shape in shapes)
    vectors = kind != torch.uint8 and all(len(shape) == 2 and shape[1] == shapes[0][1] for shape in shapes)
    if not flat and not vectors:
        raise UserError(
            f"{what}: sample {odd} has shape {shapes[odd]}, sample 0 {shapes[0]}; resize or pad them to one shape "
            "where they are read (only sequences of different lengths are padded here)"
        )
    if fill == IGNORED and kind.is_floating_point:
        raise UserError(f"{what}: they differ in length and are no classes; pad them to one length yourself")
    lengths = np.array([shape[0] for shape in shapes])
    kind = torch.int64 if fill == IGNORED else kind
    out = torch.full((len(tensors), int(lengths.max()), *shapes[0][1:]), fill, dtype=kind)
    for row, tensor in zip(out, tensors, strict=True):
        row[: len(tensor)] = tensor
    return out, lengths


def _part(what: str, sample: Any) -> Any:
    """One sample as a tensor or an array of numbers."""
    if isinstance(sample, Tensor):
        return as_tensor(what, sample)
    try:
        array = plain(sample)
    except (ValueError, TypeError) as error:
        raise UserError(f"{what}: a sample is {type(sample).__name__} with rows of different lengths") from error
    if array.dtype.kind not in "fiub":
        kind = "words" if array.dtype.kind == "U" else type(sample).__name__
        raise UserError(f"{what}: samples hold {kind}; make numbers of them, or leave the column out with `inputs`")
    return array


def _numbers(what: str, part: Any) -> Tensor:
    """One sample as a tensor; bytes stay bytes, also those of a sequence."""
    return torch.tensor(part) if isinstance(part, np.ndarray) and part.dtype == np.uint8 else as_tensor(what, part)


def of_one_length(found: Found, held: Found) -> list[Found]:
    """Pad training and test samples to the longest of both, where either of them is padded."""
    names, mask = tuple(dict.fromkeys((*found.padded, *held.padded))), found.mask or held.mask
    if not names:
        return [found, held]
    parts = [part._replace(inputs=_masked(part.inputs, names[0], mask)) for part in (found, held)]
    columns = (*names, mask) if mask else names
    if all(isinstance(part.inputs, dict) and {*columns} <= part.inputs.keys() for part in parts):
        for name in columns:
            for part, tensor in zip(parts, _extended([part.inputs[name] for part in parts], 0), strict=True):
                part.inputs[name] = tensor
    targets = [part.targets for part in parts]
    if all(isinstance(each, Tensor) and not each.is_floating_point() for each in targets):
        targets = _extended(targets, IGNORED)
    return [part._replace(targets=own) for part, own in zip(parts, targets, strict=True)]


def _masked(inputs: Tree, name: str, mask: str | None) -> Tree:
    """Samples of one length as a dictionary that says that nothing is padding, as those beside them."""
    if mask is None or not isinstance(inputs, Tensor | dict) or (isinstance(inputs, dict) and name not in inputs):
        return inputs
    inputs = {name: inputs} if isinstance(inputs, Tensor) else inputs
    return inputs if mask in inputs else {**inputs, mask: torch.ones(inputs[name].shape[:2], dtype=torch.int64)}


def _extended(tensors: list[Tensor], fill: int) -> list[Tensor]:
    """Sequences, `[n, length, ...]` in each, of the length of the longest; others as they are."""
    if any(tensor.ndim < 2 for tensor in tensors):
        return tensors
    longest = max(tensor.shape[1] for tensor in tensors)
    return [F.pad(each, (*(0, 0) * (each.ndim - 2), 0, longest - each.shape[1]), value=fill) for each in tensors]
