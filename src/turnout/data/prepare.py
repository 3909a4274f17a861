"""From arrays to a `Dataset`: choices checked, test set held out, values scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.core.allowed import Range
from turnout.core.errors import UserError, check_room, unknown
from turnout.core.random import FloatArray, IntArray, key, normal, permutation
from turnout.data.dataset import Dataset, plain

Pixels = Literal["standard", "unit", "symmetric", "raw"]
Scaling = Literal["standard", "minmax", "none"]
Held = Annotated[float, Range(least=0, below=1)]  # share of samples that is held out


def room(dataset: str, numbers: float, **options: float | None) -> None:
    """Refuse options that together make more numbers than this machine's memory holds."""
    given = ", ".join(f"{option}={value}" for option, value in options.items())
    check_room(f"dataset {dataset}: {given}", numbers)


def numbered(words: ArrayLike) -> tuple[IntArray, list[Any]]:
    """Every word as its rank among the distinct ones, and those in order."""
    distinct, ranks = np.unique(np.asarray(words), return_inverse=True)
    return ranks.reshape(-1).astype(np.int64), distinct.tolist()


def hold_out(strata: IntArray, test_fraction: float, seed: int) -> tuple[IntArray, IntArray]:
    """Positions for training and for testing, both in the order of the data, the same share of every stratum."""
    order = permutation(key(seed, "hold out"), len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    _, starts, stratum, counts = np.unique(strata[order], return_index=True, return_inverse=True, return_counts=True)
    quota = np.minimum(np.rint(test_fraction * counts), counts - 1)
    chosen = np.arange(len(strata)) - starts[stratum] < quota[stratum]
    return np.sort(order[~chosen]), np.sort(order[chosen])


def lognormal_sizes(seed: int, clients: int, largest: int | None) -> IntArray:
    """Samples a client: 50 + floor(lognormal(4, 2)), at most `largest`."""
    sizes = 50 + np.exp(4 + 2 * normal(key(seed, "sizes", np.arange(clients)), 1)[:, 0]).astype(np.int64)
    return sizes if largest is None else np.minimum(sizes, largest)


def table(
    dataset: str,
    inputs: FloatArray,
    targets: NDArray[Any],
    num_classes: int | None,
    normalise: Scaling,
    test_fraction: float,
    seed: int,
    groups: IntArray | None = None,
    facts: Mapping[str, object] | None = None,
    *,
    strata: IntArray | None = None,
    indicators: int = 0,
    scale_targets: bool = True,
) -> Dataset:
    """A table with a test set held out and scaled by what the training rows show.

    The test set takes its share of every stratum: of every group, or else of every class, unless `strata` says another.
    The last `indicators` columns stay as they are. Regression targets are scaled like the inputs, and the facts
    `target_offset` and `target_scale` turn them back: original = offset + scale * value.
    """
    if not len(inputs):
        raise UserError(f"dataset {dataset}: no rows are left")
    if strata is None:
        classes = np.zeros(len(inputs), np.int64) if num_classes is None else targets
        strata = classes if groups is None else groups
    train, test = hold_out(strata, test_fraction, seed)
    offset, scale = scaling(inputs[train], normalise)
    if indicators:
        offset[-indicators:], scale[-indicators:] = 0, 1
    inputs = (inputs - offset) / scale
    facts = dict(facts or {})
    if num_classes is None and scale_targets:
        offset, scale = scaling(targets[train], normalise)
        targets = (targets - offset) / scale
        facts |= {"target_offset": offset, "target_scale": scale}
    labels = targets.astype(np.float32 if num_classes is None else np.int64)
    return parted(dataset, inputs.astype(np.float32), labels, num_classes, train, test, groups, facts)


def parted(
    dataset: str,
    inputs: NDArray[Any],
    targets: NDArray[Any],
    num_classes: int | None,
    train: NDArray[Any],
    test: NDArray[Any],
    groups: IntArray | None,
    facts: dict[str, Any],
) -> Dataset:
    """A dataset of the rows `train`, whose central test set is the rows `test`, if there are any."""
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
    held = len(x[test]) > 0
    test_x, test_y = (x[test], y[test]) if held else (None, None)
    owner, test_owner = (None, None) if groups is None else (groups[train], groups[test] if held else None)
    return Dataset(dataset, x[train], y[train], num_classes, test_x, test_y, owner, test_owner, facts)


def scaling(values: FloatArray, normalise: Scaling) -> tuple[FloatArray, FloatArray]:
    """Offset and scale of every column; a constant column is only shifted."""
    if normalise == "standard":
        offset, scale = values.mean(axis=0), values.std(axis=0)
    elif normalise == "minmax":
        offset, scale = values.min(axis=0), np.ptp(values, axis=0)
    else:
        offset, scale = np.zeros(values.shape[1:]), np.ones(values.shape[1:])
    return offset, np.where(scale > 0, scale, 1.0)


def images(
    dataset: str,
    train: tuple[NDArray[np.uint8], NDArray[Any]],
    test: tuple[NDArray[np.uint8], NDArray[Any]],
    num_classes: int,
    normalise: Pixels,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    groups: IntArray | None = None,
    facts: dict[str, object] | None = None,
) -> Dataset:
    """Labelled bytes, `[n, channels, height, width]` or `[n, height, width]`, as a dataset.

    Pixels are `standard` ((x / 255 - mean) / std), `unit` (0 to 1), `symmetric` (-1 to 1) or `raw` (0 to 255).
    """
    scales = {
        "standard": (255 * torch.tensor(mean), 255 * torch.tensor(std)),
        "unit": (torch.tensor([0.0]), torch.tensor([255.0])),
        "symmetric": (torch.tensor([127.5]), torch.tensor([127.5])),
        "raw": (torch.tensor([0.0]), torch.tensor([1.0])),
    }
    offset, scale = (part[:, None, None] for part in scales[normalise])
    tensors: list[Tensor] = []
    if train[0].shape[1:] != test[0].shape[1:]:
        shapes = f"{list(train[0].shape)} and {list(test[0].shape)}"
        raise UserError(f"dataset {dataset}: training and test images differ in shape: {shapes}")
    for pixels, labels in (train, test):
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels
        if pixels.ndim != 4 or pixels.shape[1] != len(mean) or pixels.dtype != np.uint8 or not len(pixels):
            found = f"{pixels.dtype} of shape {list(pixels.shape)}"
            raise UserError(f"dataset {dataset}: images should be bytes [n, {len(mean)}, height, width], not {found}")
        if labels.ndim != 1 or len(labels) != len(pixels):
            raise UserError(f"dataset {dataset}: {len(pixels)} images but labels of shape {list(labels.shape)}")
        if labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < num_classes:
            raise UserError(f"dataset {dataset}: labels should be whole numbers from 0 to {num_classes - 1}")
        tensors.append(torch.from_numpy(pixels.astype(np.float32)).sub_(offset).div_(scale))
        tensors.append(torch.from_numpy(labels.astype(np.int64)))
    return Dataset(dataset, tensors[0], tensors[1], num_classes, tensors[2], tensors[3], groups, facts=facts or {})


PARTS = ("inputs", "targets", "groups", "test_inputs", "test_targets", "test_groups")


def from_arrays(dataset: str, arrays: Mapping[str, ArrayLike], num_classes: int | None) -> Dataset:
    """A user's own arrays. Integer targets are classes, others are regressed on; integer inputs are tokens."""
    for name in arrays:
        if name not in PARTS:
            raise unknown(f"dataset {dataset}: array", str(name), PARTS)
    for name in ("inputs", "targets"):
        if name not in arrays:
            raise UserError(f"dataset {dataset}: there is no array {name}")
    if ("test_inputs" in arrays) != ("test_targets" in arrays):
        raise UserError(f"dataset {dataset}: test_inputs and test_targets go together, but only one is given")
    tensors = {name: _tensor(dataset, name, arrays[name]) for name in PARTS if name in arrays and "groups" not in name}
    inputs, targets = tensors["inputs"], tensors["targets"]
    if not len(inputs):
        raise UserError(f"dataset {dataset}: there are no samples")
    test_inputs, test_targets = tensors.get("test_inputs"), tensors.get("test_targets")
    if targets.dtype == torch.int64:
        num_classes = classes_of(dataset, [part for part in (targets, test_targets) if part is not None], num_classes)
    elif num_classes is not None:
        raise UserError(f"dataset {dataset}: num_classes={num_classes} but the targets are not integers")
    groups, test_groups, clients = groups_of(
        dataset, arrays, len(inputs), None if test_inputs is None else len(test_inputs)
    )
    facts: dict[str, object] = {"clients": clients} if clients else {}
    return Dataset(dataset, inputs, targets, num_classes, test_inputs, test_targets, groups, test_groups, facts)


def _array(dataset: str, name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return plain(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"dataset {dataset}: {name} is not an array with rows of one length") from error


def _tensor(dataset: str, name: str, values: ArrayLike) -> Tensor:
    array = _array(dataset, name, values)
    if array.dtype.kind not in "fiub" or not array.ndim:
        found = f"{array.dtype} of shape {list(array.shape)}"
        raise UserError(f"dataset {dataset}: {name} should be an array of numbers, not {found}")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    if "targets" in name:
        if array.dtype == np.float32 and array.ndim == 1:
            array = array[:, None]
        if array.ndim != (2 if array.dtype == np.float32 else 1):
            wanted = "[n] for classes or [n, outputs] for regression"
            raise UserError(f"dataset {dataset}: {name} should be {wanted}, not {list(array.shape)}")
    return torch.from_numpy(array)


def classes_of(dataset: str, targets: list[Tensor], given: int | None) -> int:
    """Count classes, from 0, over all targets, or check those that are given."""
    edges = [int(edge) for part in targets if len(part) for edge in torch.aminmax(part)]
    lowest, highest = min(edges, default=0), max(edges, default=0)
    if lowest < 0 or (given is not None and highest >= given):
        allowed = f"0 to {given - 1}" if given else "0 upwards"
        raise UserError(f"dataset {dataset}: classes should be {allowed}, but they run from {lowest} to {highest}")
    return given or highest + 1


def groups_of(
    dataset: str, arrays: Mapping[str, ArrayLike], samples: int, tests: int | None
) -> tuple[IntArray | None, IntArray | None, list[Any]]:
    """Any ids as 0..G-1, those of the test set likewise, and the ids."""
    if "groups" not in arrays:
        if "test_groups" in arrays:
            raise UserError(f"dataset {dataset}: test_groups is given but groups is not")
        return None, None, []
    parts = []
    for name, count in (("groups", samples), ("test_groups", tests)):
        part = _array(dataset, name, arrays.get(name, []))
        if name in arrays and part.shape != (count or 0,):
            raise UserError(f"dataset {dataset}: {name} should hold one id a sample, not shape {list(part.shape)}")
        if name in arrays and part.dtype.kind not in "iuU":
            found = "a mixture" if part.dtype == object else part.dtype
            raise UserError(f"dataset {dataset}: {name} should be integers or words, not {found}")
        parts.append(part)
    ids, clients = numbered(parts[0])
    if "test_groups" not in arrays:
        return ids, None, clients
    rank = {client: number for number, client in enumerate(clients)}
    strangers = set(parts[1].tolist()) - set(rank)
    if strangers:
        raise UserError(f"dataset {dataset}: test_groups has {min(strangers, key=str)!r}, which groups does not have")
    return ids, np.array([rank[client] for client in parts[1].tolist()], np.int64), clients
