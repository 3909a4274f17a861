"""Files that are either there, whole, or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def cannot_write(path: Path, error: OSError) -> UserError:
    """One sentence about a file or folder that the system refuses."""
    remedy = "; free some, then go on with what was interrupted" if error.errno in _NO_ROOM else ""
    why = os.strerror(error.errno) if error.errno else str(error)
    return UserError(f"{path}: cannot be written ({why}){remedy}")


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new file, sync it, and only then give it its name.

    A crash at any moment leaves the old file or the new one, never a part.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file durably."""
    write_durably(path, lambda partial: _save_tensors(partial, tensors, metadata))


def _save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # it has no errno, only words
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]), os.strerror(int(code[1]))) if code else OSError(str(error)) from error


def append_lines(path: Path, lines: Iterable[str], sync: bool = False) -> None:
    """Add lines to the end of a file."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            if sync:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A file that is missing or damaged is named in a sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RecursionError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise UserError(f"{path}: cannot be read ({' '.join(why.split())})") from error


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    with reading(path):
        return json.loads(path.read_text(encoding="utf-8"))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    with reading(path):
        return tomllib.loads(path.read_text(encoding="utf-8"))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    from safetensors.torch import load_file

    with reading(path):
        tensors: dict[str, Tensor] = load_file(path)
        return tensors


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
    write_durably(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
