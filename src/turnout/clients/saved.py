"""A population as a folder: a .npy file for each column, memory-mapped when it is large, and the rest as JSON.

    >>> people.save("clients")
    >>> people = Population.open("clients")

Nothing is pickled: a part is a number, a word, an array, or one of the classes of `turnout.clients` with its parts, by
its short name: files may move.
"""

from __future__ import annotations

import json
import math
import pkgutil
import re
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.files import write_durably, write_text
from turnout.core.ragged import Ragged

FORMAT = 2  # of the folder; 1 had the modules of version 0.1 before the names of classes
_RENAMED = {"behaviour.Gaussian": "GaussianNoise"}  # since version 0.1
_FACTS = "population.json"
_LARGE = 1 << 20  # bytes of a file that is mapped and not read


def write(population: Any, folder: Path) -> None:
    """The columns first: a folder without its JSON is no population."""
    if (folder / _FACTS).exists():
        raise UserError(f"population: {folder} holds one already; choose another folder")
    columns: dict[str, NDArray[Any]] = {}
    facts = _described("population", population, columns)
    for name, values in columns.items():
        write_durably(folder / f"{name}.npy", partial(_save, values=values))
    write_text(folder / _FACTS, json.dumps({"format": FORMAT, **facts}, indent=1, allow_nan=False) + "\n")


def read(folder: Path) -> Any:
    """What `write` has written; arrays of at least a MiB stay in their files until they are looked at."""
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        written = facts.pop("format", 1) if isinstance(facts, dict) else 1
        if written > FORMAT:
            raise UserError(f"population: {folder} has format {written}, this Turnout reads up to {FORMAT}; update it")
        return _made(facts, folder)
    except UserError:
        raise
    except Exception as error:  # which one depends on which byte is wrong
        raise UserError(f"population: {folder} is not what Population.save writes ({error}); save it again") from error


def _described(place: str, value: Any, columns: dict[str, NDArray[Any]]) -> Any:
    """A part as JSON. Arrays go to the columns, under the name of their place."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [_described(f"{place}.{number}", part, columns) for number, part in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        columns[place] = value
        return {"array": place}
    if isinstance(value, Tensor) and value.dtype is not torch.bfloat16:
        columns[place] = value.detach().cpu().numpy()
        return {"tensor": place}
    if type(value) is dict and all(isinstance(name, str) and re.fullmatch(r"\w+", name) for name in value):
        return {"dict": {name: _described(f"{place}.{name}", part, columns) for name, part in value.items()}}
    kind = type(value).__name__
    if _classes().get(kind) is type(value):
        own = {part.name: getattr(value, part.name) for part in fields(value) if part.init and part.name != "dealt"}
        parts = {name: _described(f"{place}.{name}", part, columns) for name, part in own.items()}
        return {"class": kind, "parts": parts}
    raise UserError(
        f"{place}: {kind} cannot be saved; only numbers, words, arrays and the classes of turnout.clients can"
    )


def _made(described: Any, folder: Path) -> Any:
    """The inverse of `_described`."""
    if isinstance(described, list):
        return [_made(part, folder) for part in described]
    if not isinstance(described, dict):
        return described
    if "class" in described:
        kind, parts = _class(described["class"]), described["parts"]
        if surplus := parts.keys() - {part.name for part in fields(kind)}:
            raise TypeError(f"{kind.__name__} has no part {min(surplus)}")
        return kind(**{name: _made(part, folder) for name, part in parts.items()})
    ((kind, value),) = described.items()
    if kind == "tuple":
        return tuple(_made(part, folder) for part in value)
    if kind == "dict":
        return {name: _made(part, folder) for name, part in value.items()}
    if kind == "float":
        return float(value)
    column = _load(folder, value)
    return torch.from_numpy(column) if kind == "tensor" else column


@cache
def _classes() -> dict[str, type[Any]]:
    """The classes that a population is made of, by name."""
    package = import_module("turnout.clients")
    modules = [import_module(f"turnout.clients.{module.name}") for module in pkgutil.iter_modules(package.__path__)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    own = (kind for kind in found if is_dataclass(kind) and kind.__module__.startswith("turnout.clients."))
    return {kind.__name__: kind for kind in (*own, Ragged)}


def _class(name: str) -> type[Any]:
    short = _RENAMED.get(name, name.rpartition(".")[2])
    if short not in _classes():
        raise TypeError(f"{short} is no class of turnout.clients")
    return _classes()[short]


def _load(folder: Path, name: str) -> NDArray[Any]:
    if not re.fullmatch(r"[\w.]+", name):
        raise ValueError(f"{name!r} is no name of a column")
    path = folder / f"{name}.npy"
    mapped = path.stat().st_size >= _LARGE
    return np.asarray(np.load(path, mmap_mode="c" if mapped else None))  # what is written to it stays in memory


def _save(path: Path, values: NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, values, allow_pickle=False)
