"""Turnout: federated learning with whoever shows up."""

import sys
from pathlib import Path
from typing import Any

from turnout.core.lazy import lazily, places
from turnout.core.version import VERSION

__version__ = VERSION

__all__, _get, __dir__ = lazily(__name__, __file__)
_NAMESPACES = ("algorithms", "samplers", "clients", "datasets", "local", "peers", "record", "trust")


def __getattr__(name: str) -> Any:
    """Import a public name; say where one of version 0.1 is now."""
    if name not in __all__ and not name.startswith("_"):
        for space in _NAMESPACES:
            path = Path(__file__).parent / space
            if name in places(str(path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi"))):
                imported = sys._getframe(1).f_code.co_name == "_handle_fromlist"  # by `from turnout import name`
                error = ImportError if imported else AttributeError  # of which that statement would not show the text
                raise error(f"turnout.{name} is turnout.{space}.{name} since 0.2")
    return _get(name)
