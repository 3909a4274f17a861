"""Files that are either there, whole, or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_durably(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new file, sync it, and only then give it its name.

    A crash at any moment leaves the old file or the new one, never a part.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    _sync(partial)
    os.replace(partial, path)
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    write_durably(path, lambda partial: _write(partial, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
