"""What every loader returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.spelling import Spelt


def as_tensor(what: str, values: Any) -> Tensor:
    """A tensor as it is; NumPy's numbers, or a list of them, as float32 or int64."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise UserError(f"{what} are {type(values).__name__} of {array.dtype}; give a tensor or an array of numbers")
    return torch.tensor(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))


@dataclass(frozen=True)
class Dataset(Spelt):
    """Samples before they are dealt to clients: tensors, or NumPy arrays, which become tensors. `num_classes` None
    means regression."""

    name: str
    inputs: Tensor  # [n, ...] float32, or int64 tokens
    targets: Tensor  # [n] int64 classes, or [n, outputs] float32
    num_classes: int | None
    test_inputs: Tensor | None = None  # a central test set, if the source has one
    test_targets: Tensor | None = None
    groups: NDArray[np.int64] | None = None  # [n] the natural client of every sample, 0..G-1
    test_groups: NDArray[np.int64] | None = None  # the same for the central test set
    facts: dict[str, object] = field(default_factory=dict)  # what a generator knows: optimum, true components, ...

    def __post_init__(self) -> None:
        for name in ("inputs", "targets", "test_inputs", "test_targets"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_tensor(f"dataset {self.name}: {name}", values))
        for label, inputs, targets in (
            ("training", self.inputs, self.targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            if inputs is None or targets is None:
                continue
            if len(inputs) != len(targets):
                raise UserError(f"dataset {self.name}: {len(inputs)} {label} inputs but {len(targets)} targets")
            for part, tensor in (("inputs", inputs), ("targets", targets)):
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise UserError(
                        f"dataset {self.name}: {label} {part} contain NaN or infinity; clean the data first"
                    )

    def __len__(self) -> int:
        return len(self.inputs)
