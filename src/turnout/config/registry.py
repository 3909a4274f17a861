"""Names: an algorithm or a sampler is called what its file is called, or what a distribution registers it as."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

from turnout.algorithms._algorithm import Algorithm
from turnout.core.errors import UserError, unknown
from turnout.core.imports import dotted, load_registered, registered
from turnout.sampling._sampler import Sampler

_PACKAGES: dict[str, tuple[str, type]] = {
    "algorithm": ("turnout.algorithms", Algorithm),
    "sampler": ("turnout.sampling", Sampler),
}
GROUPS = {"algorithm": "turnout.algorithms", "sampler": "turnout.samplers"}  # of entry points


def names(kind: str) -> list[str]:
    """All names of a kind: `algorithm` or `sampler`."""
    return sorted({*_own(kind), *registered(GROUPS[kind])})


def _own(kind: str) -> list[str]:
    package = importlib.import_module(_PACKAGES[kind][0])
    return [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]


def find(kind: str, name: str) -> type[Any]:
    """Find the class that a file of that name defines or a distribution registers, or a user's own `module:Class`."""
    package, base = _PACKAGES[kind]
    if ":" in name or name in registered(GROUPS[kind]):
        option = f"{kind}.name"
        found = dotted(option, name) if ":" in name else load_registered(option, GROUPS[kind], name, _own(kind))
        if not (inspect.isclass(found) and issubclass(found, base)):
            raise UserError(f"{option}: {name} is not a subclass of turnout.{base.__name__}")
        return found
    if name not in names(kind):
        other = next((other for other in _PACKAGES if name in names(other)), None)
        if other is not None:
            raise UserError(f"{kind}.name: {name} is not one, it is a {other}; write {other}.name={name}")
        raise unknown(f"{kind}.name", name, names(kind))
    module = importlib.import_module(f"{package}.{name}")
    own = (value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__)
    return next(value for value in own if issubclass(value, base))
