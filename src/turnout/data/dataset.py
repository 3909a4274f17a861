"""What every loader returns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from turnout.core import trees
from turnout.core.errors import UserError
from turnout.core.spelling import Spelt, spelt
from turnout.core.trees import Tree


def as_tree(what: str, values: Any) -> Tree:
    """Samples as a tree of tensors with a row a sample each: tensors as they are, arrays in tuples, dictionaries and
    dataclasses as tensors, and a list of numbers as one."""
    if isinstance(values, (Tensor, np.ndarray)) or _numbers(values):
        return trees.check_rows(what, as_tensor(what, values))
    if not trees.known(values) or (not isinstance(values, (tuple, list, Mapping)) and not is_dataclass(values)):
        raise UserError(f"{what} are {type(values).__name__}; give a tensor, an array or a tree of them")
    whole = pytree.tree_map(
        partial(as_tensor, what), values, is_leaf=lambda part: isinstance(part, list) and _numbers(part)
    )
    return trees.check_rows(what, whole)


def _numbers(values: Any) -> bool:
    """Say whether a list holds numbers, or lists of them, and not a tensor a part."""
    if not isinstance(values, list):
        return not isinstance(values, (tuple, Mapping)) and not is_dataclass(values)
    first = values[0] if values else 0
    return isinstance(first, (bool, int, float, np.number)) or (isinstance(first, list) and _numbers(first))


def plain(values: Any) -> NDArray[Any]:
    """Words and numbers as NumPy holds them, where pandas holds objects; what mixes both, or is neither, as objects."""
    array = np.asarray(values)
    if array.dtype.kind == "U" and isinstance(values, (list, tuple)) and array.ndim == 1:
        array = np.array(values, object)
    if array.dtype.kind not in "OT" or not array.size:
        return array
    if all(isinstance(value, str) for value in array.flat):
        return array.astype(str)
    numbers = all(isinstance(value, (bool, int, float, np.number, np.bool_)) for value in array.flat)
    return np.array(array.tolist()) if numbers else array


def as_tensor(what: str, values: Any) -> Tensor:
    """A tensor as it is; NumPy's numbers, or a list of them, as float32 or int64. Bytes (two dimensions and more) stay
    bytes, and what is mapped from a file stays there, in the numbers it has; its labels alone are read."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_nested:
            raise UserError(f"{what} are a sparse or nested tensor; give a dense one, such as its to_dense()")
        return values
    try:
        array = plain(values)
    except ValueError as error:
        raise UserError(f"{what} are a list with rows of different lengths") from error
    if array.dtype.kind not in "fiub":
        raise UserError(f"{what} are {type(values).__name__} of {array.dtype}; give a tensor or an array of numbers")
    whole, stay = array.dtype.kind != "f", array.dtype == np.uint8 and array.ndim > 1
    if not mapped(values) or (whole and array.ndim < 2):
        return torch.tensor(array.copy() if stay else array.astype(np.int64 if whole else np.float32))
    if not array.dtype.isnative or array.dtype.itemsize > 8:
        raise UserError(f"{what} are mapped from a file of {array.dtype}, which torch cannot read; convert the file")
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        trees.check_copied(f"{what}: what is mapped and turned round, or one field of many,", array.nbytes)
        array = array.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not writable: nobody writes to samples
        return torch.from_numpy(array)


def mapped(values: Any) -> bool:
    """Say whether an array lies in a file: `np.memmap`, or a part of one."""
    while isinstance(values, np.ndarray):
        if isinstance(values, np.memmap):
            return True
        values = values.base
    return False


def _form(tree: Tree, bytes_stay: bool) -> Any:
    """Describe a sample: what a model, which is given bytes of inputs as bytes, may tell from others."""
    if isinstance(tree, Tensor):
        stays = tree.dtype == torch.bool or tree.is_complex() or (bytes_stay and tree.dtype == torch.uint8)
        kind = "numbers" if tree.is_floating_point() else "whole numbers"
        return f"{list(tree.shape[1:])} of {str(tree.dtype).removeprefix('torch.') if stays else kind}"
    if isinstance(tree, (tuple, list)):
        parts = [_form(part, bytes_stay) for part in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    if is_dataclass(tree):
        tree = {part.name: getattr(tree, part.name) for part in fields(tree)}
    return {key: _form(part, bytes_stay) for key, part in tree.items()} if isinstance(tree, Mapping) else None


@dataclass(frozen=True)
class Dataset(Spelt):
    """Samples before they are dealt to clients: tensors or NumPy arrays, which become tensors, or a tree of them (a
    tuple, dictionary or dataclass with a row a sample in each). `num_classes` None means regression."""

    name: str
    inputs: Tree  # [n, ...] float32, int64 tokens, or bytes
    targets: Tree  # [n] int64 classes, or [n, outputs] float32
    num_classes: int | None
    test_inputs: Tree | None = None  # a central test set, if the source has one
    test_targets: Tree | None = None
    groups: NDArray[np.int64] | None = None  # [n] the natural client of every sample, 0..G-1
    test_groups: NDArray[np.int64] | None = None  # the same for the central test set
    facts: dict[str, object] = field(default_factory=dict)  # what a generator knows: optimum, true components, ...

    def __post_init__(self) -> None:
        for name in ("inputs", "targets", "test_inputs", "test_targets"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_tree(f"dataset {self.name}: {name}", values))
        for label, inputs, targets in (
            ("training", self.inputs, self.targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            if inputs is None or targets is None:
                continue
            if (count := trees.rows(inputs)) != (given := trees.rows(targets)):
                raise UserError(f"dataset {self.name}: {count} {label} inputs but {given} targets")
            if not count:
                raise UserError(f"dataset {self.name}: there are no {'test ' * (label == 'test')}samples")
            for part, tensor in (("inputs", inputs), ("targets", targets)):
                if not trees.finite(tensor):
                    raise UserError(
                        f"dataset {self.name}: {label} {part} contain NaN or infinity; clean the data first"
                    )
            self._check_classes(label, targets)
        for name, own, test in (
            ("inputs", self.inputs, self.test_inputs),
            ("targets", self.targets, self.test_targets),
        ):
            one, other = (None if tree is None else _form(tree, name == "inputs") for tree in (own, test))
            if other is not None and one != other:
                both = f"{trees.brief(one)} and {trees.brief(other)}"
                raise UserError(f"dataset {self.name}: {name} and test_{name} do not match: a sample is {both}")

    def _check_classes(self, label: str, targets: Tree) -> None:
        """Raise where there are more classes than are said to be."""
        if self.num_classes is None or not isinstance(targets, Tensor) or targets.ndim != 1:
            return
        if targets.is_floating_point() or targets.is_complex():
            return
        highest = int(targets.to(trees.comparable(targets.dtype)).max())
        if highest >= self.num_classes:
            raise UserError(
                f"dataset {self.name}: {label} targets have the class {highest}; allowed: 0 to {self.num_classes - 1}, "
                f"as num_classes={self.num_classes}"
            )

    @classmethod
    @spelt
    def of(
        cls,
        source: Any,
        targets: Any = None,
        *,
        clients: Any = None,
        inputs: str | Sequence[str] | None = None,
        num_classes: int | None = None,
        test: Any = None,
        padded_as: tuple[str, str] | None = None,
        name: str = "own",
    ) -> Dataset:
        """Make a dataset of what there is: arrays or tensors or a tree of them with a row a sample, a list of samples,
        a torch `Dataset` with a length, or a Hugging Face `Dataset`.

        `targets` are given apart, or named: the column of a table or the entry of dictionaries. Samples that are pairs
        (x, y) have theirs. `clients` say whose each sample is, in any numbers or words, likewise. `inputs` names the
        columns that the model gets, one as a tensor, a list of them as a dictionary; none: all others. Whole targets,
        one a sample, are classes, and so are words, in their order. Sequences of different lengths are padded: the
        inputs become a dictionary of `input_ids` and `attention_mask` (`padded_as` gives other names), places beyond
        the end of a target are -100. `test` is a source of the same kind, with samples of the same shape; with targets
        apart (inputs, targets) or (inputs, targets, clients).
        """
        from turnout.data.sources import made

        return made(source, targets, clients, inputs, num_classes, test, padded_as, name)

    def __len__(self) -> int:
        return trees.rows(self.inputs)
