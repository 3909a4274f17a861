"""Names of a package that are imported when they are first used: the stub beside it says from where.

A stub (`__init__.pyi`) holds nothing but `from module import name`. Type checkers and editors read it, and so does this
file: a public name is written down once, and `import turnout` costs nothing before something of it is used.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Places = dict[str, tuple[str, str]]


def lazily(module: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__all__`, `__getattr__` and `__dir__` of a module from the stub beside its file."""
    known = places(file)

    def get(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
        home, there = known[name]
        value = _part(home, there) if home != module else import_module(f"{home}.{there}")
        setattr(sys.modules[module], name, value)  # the next look finds it at once
        return value

    return sorted(known), get, lambda: sorted(known | dict.fromkeys(vars(sys.modules[module])))


def places(file: str) -> Places:
    """Read a stub: each name, the module it is imported from and what it is called there."""
    tree = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _part(module: str, name: str) -> Any:
    """What `from module import name` gives."""
    found = import_module(module)
    return getattr(found, name) if hasattr(found, name) else import_module(f"{module}.{name}")
