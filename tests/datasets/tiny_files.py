"""Writers of tiny files in the documented layouts, for the tests beside this file."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Refused = Callable[..., AbstractContextManager[None]]


def write(path: Path, content: bytes | str) -> Path:
    """Make the folders, gzip what is called .gz."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def pixels(count: int, *shape: int) -> NDArray[np.uint8]:
    """Bytes that are all different enough to notice a transposition."""
    size = count * int(np.prod(shape))
    return (np.arange(size) * 7919 % 251).astype(np.uint8).reshape(count, *shape)


def save_npz(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def sheet(path: Path, images: NDArray[np.uint8], width: int) -> None:
    """`[n, 3, 32, 32]` as a lossless WebP of tiles, `width` a row."""
    rows = images.transpose(0, 2, 3, 1).reshape(-1, width, 32, 32, 3).swapaxes(1, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    import_module("PIL.Image").fromarray(rows.reshape(-1, 32 * width, 3)).save(path, lossless=True)
