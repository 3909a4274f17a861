"""Samples from whatever holds them, as `Dataset.of` takes them: arrays, lists, torch's and Hugging Face's datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from turnout.core import trees
from turnout.core.errors import UserError, unknown
from turnout.core.trees import Tree
from turnout.data._padding import IGNORED, MASK, Found, inputs_of, mask_of, of_one_length, padded, stacked
from turnout.data.dataset import Dataset, as_tree, plain
from turnout.data.prepare import classes_of, groups_of, numbered


class Asked(NamedTuple):
    """Which parts of a source are what."""

    what: str  # in sentences
    targets: Any  # them, or the name of their column
    clients: Any  # of every sample, or the name of their column
    inputs: str | Sequence[str] | None  # names of columns
    padded_as: tuple[str, str] | None


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
    asked = Asked(f"dataset {name}", _array(targets), _array(clients), inputs, padded_as)
    parts = [_found(_array(source), asked)]
    if test is not None:
        parts = of_one_length(parts[0], _found(*_test(test, asked)))
    parts, classes = _classes(f"dataset {name}", parts)
    num_classes = num_classes or len(classes) or None
    labels = [part.targets for part in parts]
    if all(isinstance(each, Tensor) and each.ndim == 1 and not each.is_floating_point() for each in labels):
        num_classes = classes_of(name, [part.to(torch.int64) for part in labels], num_classes)
    elif num_classes is not None and all(leaf.is_floating_point() for leaf in trees.leaves(labels[0])):
        raise UserError(f"dataset {name}: num_classes={num_classes} but the targets are not whole numbers")
    found, held = parts if test is not None else (parts[0], Found(None, None, None))
    ids = {"groups": found.clients, "test_groups": held.clients}
    given = {key: values for key, values in ids.items() if values is not None}
    counts = trees.rows(found.inputs), None if test is None else trees.rows(held.inputs)
    groups, test_groups, names = groups_of(name, given, *counts)
    facts: dict[str, object] = {"clients": names} if names else {}
    facts |= {"classes": classes} if classes else {}
    tests = held.inputs, held.targets, groups, test_groups
    return Dataset(name, found.inputs, found.targets, num_classes, *tests, facts)


def _array(values: Any) -> Any:
    """What pandas holds as an array, which has no names of rows."""
    return np.asarray(values) if hasattr(values, "to_numpy") else values


def _classes(what: str, parts: list[Found]) -> tuple[list[Found], list[Any]]:
    """Number targets that are words, in their order over training and test samples; gives the names of classes."""
    words = [isinstance(part.targets, np.ndarray) for part in parts]
    if not any(words):
        if len({part.classes for part in parts if part.classes}) > 1:
            raise UserError(f"{what}: the classes of training and test samples have other names, or another order")
        return parts, next(([*part.classes] for part in parts if part.classes), [])
    if not all(words):
        raise UserError(f"{what}: targets are words in training or in test samples alone; give the same in both")
    ranks, names = numbered(np.concatenate([part.targets for part in parts]))
    cuts = np.split(ranks, [len(parts[0].targets)])
    return [part._replace(targets=torch.from_numpy(cut)) for part, cut in zip(parts, cuts, strict=False)], names


def _test(test: Any, asked: Asked) -> tuple[Any, Asked]:
    """Read what is given as test samples: where the targets are given apart, (inputs, targets) or, with the client of
    each, (inputs, targets, clients)."""
    apart = [name for name in ("targets", "clients") if not isinstance(getattr(asked, name), str | None)]
    if not apart:
        return _array(test), asked._replace(what=f"{asked.what}: test")
    if not isinstance(test, tuple) or len(test) not in (2, 3):
        raise UserError(f"{asked.what}: test is {type(test).__name__}; with targets apart give (inputs, targets)")
    if test[0] is None or (asked.targets is not None and test[1] is None):
        raise UserError(f"{asked.what}: test inputs and test targets go together, but only one is given")
    inputs, targets, clients = map(_array, (*test, None)[:3])
    return inputs, asked._replace(what=f"{asked.what}: test", targets=targets, clients=clients)


def _found(source: Any, asked: Asked) -> Found:
    if isinstance(source, IterableDataset):
        raise UserError(f"{asked.what}: an IterableDataset has no numbered samples; give list(it)")
    if hasattr(source, "column_names") and hasattr(source, "with_format"):
        return _chosen(_hugging_face(source, asked), asked)._replace(classes=_names_of_classes(source, asked))
    if isinstance(source, TorchDataset | list):
        items = [*_items(source)]
        if not items:
            raise UserError(f"{asked.what}: there are no samples")
        if isinstance(items[0], Mapping):
            return _chosen({key: [_entry(item, key, asked) for item in items] for key in items[0]}, asked)
        if asked.targets is None:
            return _pairs(items, asked)
        return _apart(inputs_of(f"{asked.what}: inputs", items, _names(asked)), asked)
    return _apart(Found(as_tree(f"{asked.what}: inputs", source), None, None), asked)


def _names(asked: Asked) -> tuple[str, str]:
    """Say what sequences and their mask are called."""
    return asked.padded_as or ("input_ids", MASK)


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
    found = inputs_of(f"{asked.what}: inputs", [x for x, _ in items], _names(asked))
    return found._replace(targets=_targets([y for _, y in items], asked), clients=_ids(asked))


def _targets(values: Any, asked: Asked) -> Any:
    """Give targets as tensors, or words as an array of them."""
    what = f"{asked.what}: targets"
    own = isinstance(values, np.ndarray) and values.ndim > 0
    listed = own or (isinstance(values, Sequence) and not isinstance(values, tuple))
    if listed and len(values) and isinstance(values[0], str):
        words = plain([*values])
        if words.dtype.kind != "U":
            raise UserError(f"{what} mix words with others; give words, or numbers, alone")
        return words
    return stacked(what, values, IGNORED) if listed else as_tree(what, values)


def _apart(found: Found, asked: Asked) -> Found:
    """Take samples whose targets are given apart."""
    if asked.targets is None or isinstance(asked.targets, str):
        raise UserError(f"{asked.what}: give targets, one a sample; names of columns are for dictionaries and tables")
    if asked.inputs is not None:
        raise UserError(f"{asked.what}: inputs={asked.inputs!r} names columns, and the samples have none")
    return found._replace(targets=_targets(asked.targets, asked), clients=_ids(asked))


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
    chosen = [name for name in names if wanted is None or name in (*wanted, *own)]
    return {name: _as_said(table[name][:], _features(source).get(name)) for name in chosen}


def _features(source: Any) -> Mapping[str, Any]:
    """Give what a Hugging Face dataset knows of its columns."""
    return getattr(source, "features", None) or {}


def _as_said(values: Any, feature: Any) -> Any:
    """Give arrays of bytes as these, which are read as int64."""
    if getattr(feature, "dtype", None) != "uint8" or not hasattr(feature, "shape"):
        return values
    arrays = [*map(np.asarray, values)]
    return [array.astype(np.uint8) for array in arrays] if all(each.dtype.kind in "iu" for each in arrays) else values


def _names_of_classes(source: Any, asked: Asked) -> tuple[str, ...]:
    """Give the names of the classes of targets, or of each place of sequences of them."""
    feature: Any = _features(source).get(asked.targets) if isinstance(asked.targets, str) else None
    while hasattr(feature, "feature"):
        feature = feature.feature
    return tuple(getattr(feature, "names", None) or ())


def _chosen(columns: dict[str, Any], asked: Asked) -> Found:
    """Choose among columns, `[n, ...]` values each, by their names; one input alone is a tensor, several are a
    dictionary."""
    what, left = asked.what, dict(columns)
    if asked.targets is None:
        raise UserError(f"{what}: which column is the target? Name it: targets={next(iter(columns))!r}, for example")
    clients = _column(left, asked.clients, asked) if isinstance(asked.clients, str) else asked.clients
    values = _column(left, asked.targets, asked) if isinstance(asked.targets, str) else asked.targets
    targets = _targets(values, asked)
    alone = isinstance(asked.inputs, str) or (asked.inputs is None and len(left) == 1)
    names = [asked.inputs] if isinstance(asked.inputs, str) else list(left) if asked.inputs is None else asked.inputs
    values = {name: _column(left, name, asked) for name in names}
    if alone:
        (name,) = values
        found = inputs_of(f"{what}: {name}", values[name], asked.padded_as or (name, MASK))
        return found._replace(targets=targets, clients=clients)
    inputs, lengths, sequences = dict[str, Tree](), None, list[str]()
    for name, column in values.items():
        inputs[name], own = padded(f"{what}: {name}", column, 0)
        if own is not None:
            lengths = own
            sequences.append(name)
    mask = _names(asked)[1] if lengths is not None and not any("mask" in name for name in inputs) else None
    if lengths is not None and mask is not None:
        inputs[mask] = mask_of(lengths)
    return Found(as_tree(f"{what}: inputs", inputs), targets, clients, tuple(sequences), mask)


def _column(columns: dict[str, Any], name: str, asked: Asked) -> Any:
    if name not in columns:
        raise unknown(f"{asked.what}: column", name, columns)
    return columns.pop(name)
