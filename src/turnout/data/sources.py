"""Samples from whatever holds them, as `Dataset.of` takes them: arrays, lists, torch's and Hugging Face's datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from turnout.core import trees
from turnout.core.errors import UserError, unknown
from turnout.core.trees import Tree
from turnout.data.dataset import Dataset, as_tensor, as_tree
from turnout.data.prepare import classes_of, groups_of

IGNORED = -100  # what a target of a place beyond a sequence's end is
MASK = "attention_mask"


class Asked(NamedTuple):
    """Which parts of a source are what."""

    what: str  # in sentences
    targets: Any  # them, or the name of their column
    clients: Any  # of every sample, or the name of their column
    inputs: str | Sequence[str] | None  # names of columns
    padded_as: tuple[str, str] | None


class Found(NamedTuple):
    """Samples of a source."""

    inputs: Tree
    targets: Tree
    clients: Any


def made(
    source: Any,
    targets: Any,
    clients: Any,
    inputs: str | Sequence[str] | None,
    num_classes: int | None,
    test: Any,
    padded_as: tuple[str, str] | None,
    name: str,
) -> Dataset:
    """Make a dataset of a source and, if it is given, of a source of test samples."""
    asked = Asked(f"dataset {name}", targets, clients, inputs, padded_as)
    found, held = _found(source, asked), None
    if test is not None:
        held = _found(*_test(test, asked))
    labels = [part.targets for part in (found, held) if part is not None]
    plain = [part for part in labels if isinstance(part, Tensor) and part.ndim == 1 and not part.is_floating_point()]
    if len(plain) == len(labels):
        num_classes = classes_of(name, [part.to(torch.int64) for part in plain], num_classes)
    elif num_classes is not None and all(leaf.is_floating_point() for leaf in trees.leaves(found.targets)):
        raise UserError(f"dataset {name}: num_classes={num_classes} but the targets are not whole numbers")
    ids = {"groups": found.clients, "test_groups": None if held is None else held.clients}
    given = {key: values for key, values in ids.items() if values is not None}
    counts = trees.rows(found.inputs), None if held is None else trees.rows(held.inputs)
    groups, test_groups, names = groups_of(name, given, *counts)
    tests = (None, None) if held is None else (held.inputs, held.targets)
    facts: dict[str, object] = {"clients": names} if names else {}
    return Dataset(name, found.inputs, found.targets, num_classes, tests[0], tests[1], groups, test_groups, facts)


def _test(test: Any, asked: Asked) -> tuple[Any, Asked]:
    """Read what is given as test samples: where the targets are given apart, (inputs, targets) or, with the client of
    each, (inputs, targets, clients)."""
    apart = [name for name in ("targets", "clients") if not isinstance(getattr(asked, name), str | None)]
    if not apart:
        return test, asked._replace(what=f"{asked.what}: test")
    if not isinstance(test, tuple) or len(test) not in (2, 3):
        raise UserError(f"{asked.what}: test is {type(test).__name__}; with targets apart give (inputs, targets)")
    if test[0] is None or (asked.targets is not None and test[1] is None):
        raise UserError(f"{asked.what}: test inputs and test targets go together, but only one is given")
    return test[0], asked._replace(
        what=f"{asked.what}: test", targets=test[1], clients=test[2] if len(test) == 3 else None
    )


def _found(source: Any, asked: Asked) -> Found:
    if isinstance(source, IterableDataset):
        raise UserError(f"{asked.what}: an IterableDataset has no numbered samples; give list(it)")
    if hasattr(source, "column_names") and hasattr(source, "with_format"):
        return _chosen(_hugging_face(source, asked), asked)
    if isinstance(source, TorchDataset | list):
        items = [*_items(source)]
        if not items:
            raise UserError(f"{asked.what}: there are no samples")
        if isinstance(items[0], Mapping):
            return _chosen({key: [_entry(item, key, asked) for item in items] for key in items[0]}, asked)
        if asked.targets is None:
            return _pairs(items, asked)
        return _apart(_stacked(f"{asked.what}: inputs", items, 0, asked.padded_as or ("input_ids", MASK)), asked)
    return _apart(as_tree(f"{asked.what}: inputs", source), asked)


def _items(source: Any) -> Iterator[Any]:
    """Go through a dataset by number: what has a length need not end by itself."""
    return (source[number] for number in range(len(source)))


def _entry(item: Any, key: Any, asked: Asked) -> Any:
    if not isinstance(item, Mapping) or key not in item:
        raise UserError(f"{asked.what}: samples have different parts; one has no {key!r}")
    return item[key]


def _pairs(items: list[Any], asked: Asked) -> Found:
    """Stack pairs (x, y)."""
    if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise UserError(f"{asked.what}: samples should be pairs (x, y) or dictionaries, or give `targets` apart")
    inputs = _stacked(f"{asked.what}: inputs", [x for x, _ in items], 0, asked.padded_as or ("input_ids", MASK))
    return Found(inputs, _stacked(f"{asked.what}: targets", [y for _, y in items], IGNORED), _ids(asked))


def _apart(inputs: Tree, asked: Asked) -> Found:
    """Take samples whose targets are given apart."""
    if asked.targets is None or isinstance(asked.targets, str):
        raise UserError(f"{asked.what}: give targets, one a sample; names of columns are for dictionaries and tables")
    if asked.inputs is not None:
        raise UserError(f"{asked.what}: inputs={asked.inputs!r} names columns, and the samples have none")
    what = f"{asked.what}: targets"
    listed = isinstance(asked.targets, list)
    targets = _stacked(what, asked.targets, IGNORED) if listed else as_tree(what, asked.targets)
    return Found(inputs, targets, _ids(asked))


def _ids(asked: Asked) -> Any:
    """Give the client of every sample, where they are no column."""
    if isinstance(asked.clients, str):
        raise UserError(f"{asked.what}: clients={asked.clients!r} names a column, and the samples have none")
    return asked.clients


def _hugging_face(source: Any, asked: Asked) -> dict[str, Any]:
    """Read the columns that are asked for."""
    names = source.column_names
    if not isinstance(names, list):
        raise UserError(
            f"{asked.what}: it has the parts {', '.join(names)}; give one of them: source[{next(iter(names))!r}]"
        )
    wanted = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    own = [name for name in (asked.targets, asked.clients) if isinstance(name, str)]
    table = source.with_format("numpy")
    for name in (*(wanted or ()), *own):
        if name not in names:
            raise unknown(f"{asked.what}: column", name, names)
    return {name: table[name][:] for name in names if wanted is None or name in (*wanted, *own)}


def _chosen(columns: dict[str, Any], asked: Asked) -> Found:
    """Choose among columns, `[n, ...]` values each, by their names; one input alone is a tensor, several are a
    dictionary."""
    what, left = asked.what, dict(columns)
    if asked.targets is None:
        raise UserError(f"{what}: which column is the target? Name it: targets={next(iter(columns))!r}, for example")
    clients = _column(left, asked.clients, asked) if isinstance(asked.clients, str) else asked.clients
    values = _column(left, asked.targets, asked) if isinstance(asked.targets, str) else asked.targets
    targets = _stacked(f"{what}: targets", values, IGNORED)
    alone = isinstance(asked.inputs, str) or (asked.inputs is None and len(left) == 1)
    names = [asked.inputs] if isinstance(asked.inputs, str) else list(left) if asked.inputs is None else asked.inputs
    values = {name: _column(left, name, asked) for name in names}
    if alone:
        (name,) = values
        return Found(_stacked(f"{what}: {name}", values[name], 0, asked.padded_as or (name, MASK)), targets, clients)
    inputs, lengths = dict[str, Tree](), None
    for name, column in values.items():
        inputs[name], own = _padded(f"{what}: {name}", column, 0)
        lengths = own if own is not None else lengths
    if lengths is not None and not any("mask" in name for name in inputs):
        inputs[asked.padded_as[1] if asked.padded_as else MASK] = _mask(lengths)
    return Found(as_tree(f"{what}: inputs", inputs), targets, clients)


def _column(columns: dict[str, Any], name: str, asked: Asked) -> Any:
    if name not in columns:
        raise unknown(f"{asked.what}: column", name, columns)
    return columns.pop(name)


def _stacked(what: str, samples: Any, fill: int, sequence: tuple[str, str] | None = None) -> Tree:
    """Stack samples, `[n, ...]` of every tensor. Those that differ in their length alone are padded with `fill`; a
    `sequence` becomes a dictionary of these names: the samples, and 1 where they are not padding."""
    first = samples[0] if len(samples) else None
    if isinstance(first, Mapping):
        return {key: _stacked(f"{what}, {key}", [sample[key] for sample in samples], fill) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(what, list(parts), fill) for parts in zip(*samples, strict=True))
    stacked, lengths = _padded(what, samples, fill)
    if lengths is None or sequence is None:
        return stacked
    return {sequence[0]: stacked, sequence[1]: _mask(lengths)}


def _mask(lengths: NDArray[np.int64]) -> Tensor:
    """`[n, longest]` 1 for what there is, 0 for padding."""
    return torch.as_tensor(np.arange(lengths.max()) < lengths[:, None]).to(torch.int64)


def _padded(what: str, samples: Any, fill: int) -> tuple[Tensor, NDArray[np.int64] | None]:
    """Stack samples, and give their lengths if these differ."""
    if isinstance(samples, Tensor) or (isinstance(samples, np.ndarray) and samples.dtype.kind in "fiub"):
        return as_tensor(what, samples), None
    parts = [_part(what, sample) for sample in samples]
    shapes = [tuple(part.shape) for part in parts]
    odd = next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is None:
        whole = torch.stack(parts) if isinstance(parts[0], Tensor) else np.stack(parts)
        return as_tensor(what, whole), None
    if any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        raise UserError(
            f"{what}: sample {odd} has shape {shapes[odd]}, sample 0 {shapes[0]}; resize or pad them to one shape "
            "where they are read (only sequences of different lengths are padded here)"
        )
    lengths = np.array([shape[0] for shape in shapes])
    tensors = [part if isinstance(part, Tensor) else as_tensor(what, part) for part in parts]
    if fill == IGNORED and tensors[0].is_floating_point():
        raise UserError(f"{what}: they differ in length and are no classes; pad them to one length yourself")
    out = tensors[0].new_full((len(tensors), int(lengths.max()), *shapes[0][1:]), fill)
    for row, part in zip(out, tensors, strict=True):
        row[: len(part)] = part
    return out, lengths


def _part(what: str, sample: Any) -> Any:
    """One sample as a tensor or an array of numbers."""
    if isinstance(sample, Tensor):
        return sample
    try:
        array = np.asarray(sample)
    except (ValueError, TypeError) as error:
        raise UserError(f"{what}: a sample is {type(sample).__name__} with rows of different lengths") from error
    if array.dtype.kind not in "fiub":
        kind = "words" if array.dtype.kind in "US" else type(sample).__name__
        raise UserError(f"{what}: samples hold {kind}; make numbers of them, or leave the column out with `inputs`")
    return array
