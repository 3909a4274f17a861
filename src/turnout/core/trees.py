"""Samples as trees: a tensor, or tensors in tuples, lists, dictionaries, named tuples and dataclasses.

All leaves of a tree of samples have as many rows; row i of every leaf belongs to sample i. What a model returns may be
such a tree, too.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from turnout.core.errors import UserError

LOOKED_AT = 1 << 24  # numbers

LONGEST = 160  # letters of a description

COMPARED = {torch.bool: torch.int8, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}

COPIED = 8  # pools of more than one such part of the memory are not copied

Tree = Any  # a tensor, or a tree of tensors


def known(tree: Tree) -> Tree:
    """Make the classes of a tree's dataclasses known, so that their fields are seen; gives the tree."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        if type(tree) not in pytree.SUPPORTED_NODES:
            pytree.register_dataclass(type(tree))
        parts: Any = (getattr(tree, part.name) for part in dataclasses.fields(tree))
    elif isinstance(tree, Mapping):
        parts = tree.values()
    else:
        parts = tree if isinstance(tree, (tuple, list)) else ()
    for part in parts:
        known(part)
    return tree


def leaves(tree: Tree) -> list[Tensor]:
    """List the tensors of a tree."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Make the same tree of what a function makes of each tensor, beside those of other trees of the same form."""
    if isinstance(tree, Tensor):
        return function(tree, *others)

    def each(leaf: Any, *beside: Any) -> Any:
        return function(leaf, *beside) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(each, tree, *others)


def rows(tree: Tree) -> int:
    """Count the samples of a tree."""
    return len(leaves(tree)[0])


def at(tree: Tree, place: Any) -> Tree:
    """Index every tensor of a tree."""
    return tree[place] if isinstance(tree, Tensor) else map_leaves(lambda leaf: leaf[place], tree)


def batch(inputs: Tree, targets: Tree, rows: Tensor | slice, like: Tensor) -> tuple[Tree, Tree]:
    """Gather rows `[*rows.shape, ...]` of pools that are stored in any numbers, wherever they are, as a model computes
    with them: on the device of `like`, floats in its precision and whole numbers as int64, but bytes among the inputs
    as bytes."""

    def numbers(leaf: Tensor, bytes_stay: bool) -> torch.dtype | None:
        if leaf.is_floating_point():
            return like.dtype
        stays = leaf.dtype == torch.bool or leaf.is_complex() or (bytes_stay and leaf.dtype == torch.uint8)
        return None if stays else torch.int64

    def gathered(leaf: Tensor, bytes_stay: bool) -> Tensor:
        if isinstance(rows, slice):
            found = leaf[rows]
        else:
            index = rows if rows.device == leaf.device else rows.to(leaf.device)
            found = leaf.index_select(0, index.flatten()).view(*rows.shape, *leaf.shape[1:])
        return found.to(like.device, numbers(leaf, bytes_stay))

    x = map_leaves(lambda leaf: gathered(leaf, True), inputs)
    return x, map_leaves(lambda leaf: gathered(leaf, False), targets)


def split(tree: Tree, size: int) -> list[Tree]:
    """Cut a tree into trees of so many samples; the last may have fewer."""
    return [at(tree, slice(start, start + size)) for start in range(0, rows(tree), size)]


def join(trees: list[Tree]) -> Tree:
    """Put the samples of trees one after another."""
    return map_leaves(lambda *parts: torch.cat(parts), *trees)


def row_bytes(tree: Tree, dtype: torch.dtype) -> int:
    """Count the bytes of one sample in a `batch` whose floats are so wide; a model makes floats of bytes, too."""
    wide = (leaf.is_floating_point() or leaf.dtype == torch.uint8 for leaf in leaves(tree))
    sizes = (dtype.itemsize if own else leaf.element_size() for own, leaf in zip(wide, leaves(tree), strict=True))
    return sum(leaf[:1].numel() * size for leaf, size in zip(leaves(tree), sizes, strict=True))


def whole_bytes(tree: Tree) -> int:
    """Count the bytes of a tree as it is stored."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def described(what: str, tree: Tree) -> tuple[Any, dict[str, Tensor]]:
    """Describe a tree in JSON, with a name in the place of each tensor, and give the tensors by these names."""
    if isinstance(tree, Tensor):
        return what, {what: tree}
    if type(tree) is dict and all(isinstance(name, str) for name in tree):
        names = list(tree)
    elif type(tree) in (tuple, list):
        names = list(range(len(tree)))
    else:
        raise UserError(
            f"{what}: {type(tree).__name__} cannot be written; allowed: tensors in tuples, lists and dictionaries with "
            "words as names; use a dictionary"
        )
    found = {name: described(f"{what}.{name}", tree[name]) for name in names}
    tensors = {name: tensor for _, own in found.values() for name, tensor in own.items()}
    parts = {name: part for name, (part, _) in found.items()}
    kind = type(tree).__name__
    return {kind: parts if kind == "dict" else list(parts.values())}, tensors


def rebuilt(description: Any, tensors: Mapping[str, Tensor]) -> Tree:
    """Put tensors into the tree that a description says; KeyError, TypeError or ValueError where it says none."""
    if isinstance(description, str):
        return tensors[description]
    ((kind, parts),) = description.items()
    if kind == "dict":
        return {name: rebuilt(part, tensors) for name, part in parts.items()}
    if kind not in ("tuple", "list"):
        raise ValueError(f"{kind} is no tree")
    found = [rebuilt(part, tensors) for part in parts]
    return tuple(found) if kind == "tuple" else found


def one_tensor(use: str, tree: Tree) -> Tensor:
    """Give samples or targets that are one tensor, or raise."""
    if not isinstance(tree, Tensor):
        raise UserError(f"{use} needs samples that are one tensor with one label each, and these are trees of tensors")
    return tree


def comparable(kind: torch.dtype) -> torch.dtype:
    """Give numbers that torch compares and promotes in the place of those that it only stores."""
    return COMPARED.get(kind, kind)


def edges_of_rows(leaf: Tensor) -> tuple[Tensor, Tensor]:
    """`[n]` the smallest and the largest number of each row, looking at a part at a time."""
    kind = comparable(leaf.dtype)
    found = [torch.aminmax(part.reshape(len(part), -1).to(kind), dim=1) for part in _parts(leaf)]
    return torch.cat([edges.min for edges in found]), torch.cat([edges.max for edges in found])


def _parts(leaf: Tensor) -> tuple[Tensor, ...]:
    """Cut a tensor into parts that may be looked at."""
    return torch.split(leaf, max(1, LOOKED_AT // leaf[:1].numel()))


def check_copy(use: str, *pools: Tree) -> None:
    """Raise where samples are too many to copy: those of a pool in a file should stay there."""
    check_copied(use, sum(map(whole_bytes, pools)))


def check_copied(use: str, size: int) -> None:
    """Raise where samples of so many bytes are too many to copy."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // COPIED
    if size > room:
        raise UserError(
            f"{use} copies all samples, {size >> 20} MiB; allowed: at most a {COPIED}th of this machine's memory, "
            f"{room >> 20} MiB"
        )


def shapes(tree: Tree) -> Tree:
    """Give the shape of one sample: of a tree, the same tree of shapes."""
    return map_leaves(lambda leaf: tuple(leaf.shape[1:]), tree)


def check_rows(what: str, tree: Tree) -> Tree:
    """Raise unless there is a tensor, and all have as many rows; gives the tree."""
    counts = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves(known(tree))}
    if not counts or len(counts) > 1 or -1 in counts:
        raise UserError(f"{what}: every tensor should have a row a sample, not shapes {brief(shapes_whole(tree))}")
    return tree


def brief(tree: Any) -> str:
    """Say the beginning of what may be long."""
    return shorten(str(tree), LONGEST, placeholder=" ...")


def shapes_whole(tree: Tree) -> Tree:
    """Give the shapes of all tensors of a tree, rows included."""
    return map_leaves(lambda leaf: tuple(leaf.shape), tree)


def finite(tree: Tree) -> bool:
    """Say whether all numbers of a tree are finite, looking at a part at a time."""
    parts = (part for leaf in leaves(tree) if leaf.is_floating_point() and leaf.numel() for part in _parts(leaf))
    return all(math.isfinite(float(part.sum())) or bool(torch.isfinite(part).all()) for part in parts)  # mostly no copy
