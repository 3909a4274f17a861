"""Datasets by name: a dataset's name is its file here, and that file's `load(...)` takes its options.

>>> data = load("digits", test_fraction=0.1)
>>> data.num_classes
10
"""

from __future__ import annotations

import inspect
import pkgutil
import types
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from numbers import Integral, Real
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from turnout.core.errors import UserError, renamed, unknown
from turnout.core.imports import distributions, load_registered, registered
from turnout.data.dataset import Dataset

__all__ = ["Dataset", "load", "loader", "names"]

GROUP = "turnout.datasets"  # of entry points
_HELPERS = {"dataset", "partition", "prepare", "preprocess", "readers", "schema", "sources", "sums"}


def names() -> list[str]:
    """Every dataset that `load` knows: ours, and those that installed distributions register."""
    return sorted({*_own(), *registered(GROUP)})


def _own() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return [name for name in found if name not in _HELPERS and not name.startswith("_")]


def loader(name: str) -> Callable[..., Dataset]:
    """The function behind a name; its signature lists the options. Only now is its module imported."""
    if name not in names():
        raise unknown("dataset", name, names())
    if name in registered(GROUP):
        found = load_registered("data.name", GROUP, name, _own())
        if not callable(found):
            raise UserError(f"data.name: {name} of {distributions(GROUP, name)} is not a function")
        return cast(Callable[..., Dataset], found)
    return cast(Callable[..., Dataset], import_module(f"{__name__}.{name}").load)


def load(name: str, **options: Any) -> Dataset:
    """The dataset `name`, after checking that its loader takes these options and values of these types."""
    function = loader(name)
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    for option, value in options.items():
        if option not in parameters:
            raise unknown(f"dataset {name}: option", option, parameters)
        if not _fits(value, hints[option]):
            wanted = inspect.formatannotation(hints[option])
            raise UserError(f"dataset {name}: option {option}={value!r} should be of type {wanted}")
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise UserError(f"dataset {name}: option {missing[0]} is needed and has no default")
    given = {key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()}
    with renamed({"load.": f"dataset {name}: option "}):
        return function(**given)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value suits a hint as loaders write them; which words of a Literal exist, they say themselves."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in inner)
    if origin is Literal:
        return isinstance(value, str)
    if origin is Sequence:
        return isinstance(value, list | tuple | np.ndarray) and all(_fits(part, inner[0]) for part in value)
    if origin is Mapping:
        return isinstance(value, Mapping)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return isinstance(value, hint)
