"""Files that are either there, whole, or not there."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


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


def remove_durably(paths: Iterable[Path]) -> None:
    """Remove files, those that are still there: none comes back after a crash."""
    folders = set()
    for path in paths:
        path.unlink(missing_ok=True)
        folders.add(path.parent)
    for folder in sorted(folders):
        if folder.exists():
            _sync(folder)


def sha256(path: Path) -> str:
    """The hash of a file, read in parts."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_json_text(document: Any) -> str:
    """Standard JSON: a number that is not finite is null."""
    return json.dumps(_finite(document), indent=1, allow_nan=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
