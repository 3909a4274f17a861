"""Samples as trees: a tensor, or tensors in tuples, lists, dictionaries, named tuples and dataclasses.

All leaves of a tree of samples have as many rows; row i of every leaf belongs to sample i. What a model returns may be
such a tree, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from turnout.core.errors import UserError

LOOKED_AT = 1 << 16  # rows

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


def take(tree: Tree, index: Tensor) -> Tree:
    """Gather rows, `[*index.shape, ...]` of every tensor."""
    return map_leaves(lambda leaf: leaf.index_select(0, index.flatten()).view(*index.shape, *leaf.shape[1:]), tree)


def split(tree: Tree, size: int) -> list[Tree]:
    """Cut a tree into trees of so many samples; the last may have fewer."""
    return [at(tree, slice(start, start + size)) for start in range(0, rows(tree), size)]


def join(trees: list[Tree]) -> Tree:
    """Put the samples of trees one after another."""
    return map_leaves(lambda *parts: torch.cat(parts), *trees)


def row_bytes(tree: Tree) -> int:
    """Count the bytes of one sample."""
    return sum(leaf[:1].numel() * leaf.element_size() for leaf in leaves(tree))


def shapes(tree: Tree) -> Tree:
    """Give the shape of one sample: of a tree, the same tree of shapes."""
    return map_leaves(lambda leaf: tuple(leaf.shape[1:]), tree)


def check_rows(what: str, tree: Tree) -> Tree:
    """Raise unless there is a tensor, and all have as many rows; gives the tree."""
    counts = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves(known(tree))}
    if not counts or len(counts) > 1 or -1 in counts:
        raise UserError(f"{what}: a tree of tensors needs a row a sample in each, not shapes {shapes_whole(tree)}")
    return tree


def shapes_whole(tree: Tree) -> Tree:
    """Give the shapes of all tensors of a tree, rows included."""
    return map_leaves(lambda leaf: tuple(leaf.shape), tree)


def finite(tree: Tree) -> bool:
    """Say whether all numbers of a tree are finite, looking at a part at a time."""
    parts = (part for leaf in leaves(tree) if leaf.is_floating_point() for part in torch.split(leaf, LOOKED_AT))
    return all(math.isfinite(float(part.sum())) or bool(torch.isfinite(part).all()) for part in parts)  # mostly no copy
