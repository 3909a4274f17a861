"""What every loader returns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
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
        return as_tensor(what, values)
    if not trees.known(values) or (not isinstance(values, (tuple, list, Mapping)) and not is_dataclass(values)):
        raise UserError(f"{what} are {type(values).__name__}; give a tensor, an array or a tree of them")
    return trees.check_rows(what, pytree.tree_map(lambda leaf: as_tensor(what, leaf), values))


def _numbers(values: Any) -> bool:
    """Say whether a list holds numbers, or lists of them, and not a tensor a part."""
    if not isinstance(values, list):
        return not isinstance(values, (tuple, Mapping)) and not is_dataclass(values)
    first = values[0] if values else 0
    return isinstance(first, (bool, int, float, np.number)) or (isinstance(first, list) and _numbers(first))


def as_tensor(what: str, values: Any) -> Tensor:
    """A tensor as it is; NumPy's numbers, or a list of them, as float32 or int64. Bytes of images (three dimensions and
    more) stay bytes, and what is mapped from a file stays there, in the numbers it has; its labels alone are read."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise UserError(f"{what} are {type(values).__name__} of {array.dtype}; give a tensor or an array of numbers")
    whole, pixels = array.dtype.kind != "f", array.dtype == np.uint8 and array.ndim > 2
    if not mapped(values) or (whole and array.ndim < 2):
        return torch.tensor(array if pixels else array.astype(np.int64 if whole else np.float32))
    if not array.dtype.isnative or array.dtype.itemsize > 8:
        raise UserError(f"{what} are mapped from a file of {array.dtype}, which torch cannot read; convert the file")
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


@dataclass(frozen=True)
class Dataset(Spelt):
    """Samples before they are dealt to clients: tensors or NumPy arrays, which become tensors, or a tree of them (a
    tuple, dictionary or dataclass with a row a sample in each). `num_classes` None means regression."""

    name: str
    inputs: Tree  # [n, ...] float32, or int64 tokens
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
            for part, tensor in (("inputs", inputs), ("targets", targets)):
                if not trees.finite(tensor):
                    raise UserError(
                        f"dataset {self.name}: {label} {part} contain NaN or infinity; clean the data first"
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
        one a sample, are classes. Sequences of different lengths are padded: the inputs become a dictionary of
        `input_ids` and `attention_mask` (`padded_as` gives other names), places beyond the end of a target are -100.
        `test` is a source of the same kind; with targets apart (inputs, targets) or (inputs, targets, clients).
        """
        from turnout.data.sources import made

        return made(source, targets, clients, inputs, num_classes, test, padded_as, name)

    def __len__(self) -> int:
        return trees.rows(self.inputs)
