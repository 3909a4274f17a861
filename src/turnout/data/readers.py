"""Finding and reading files. Whatever is wrong with one is a sentence that names dataset, file and fault.

Nothing here ever unpickles.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError, unknown

VARIABLE = "TURNOUT_DATA"
_BLOCK = 1 << 24  # bytes unpacked in one go
_BOMB = 1 << 28, 200  # bytes, and times the size of the file: what unpacks to more than both is not looked into
MISSING = {"", "?", "na", "n/a", "nan", "null", "none"}


@dataclass(frozen=True)
class Layout:
    """Files that belong together, all in one of these sub-folders; each may also be gzipped, with `.gz` added."""

    files: tuple[str, ...]
    folders: tuple[str, ...] = ("",)

    def __str__(self) -> str:
        places = [folder or "the folder itself" for folder in self.folders]
        return f"{', '.join(self.files)} in {' or '.join(places)}"

    def candidates(self, root: Path) -> list[list[Path]]:
        return [[_plain_or_gzipped(root / folder / file) for file in self.files] for folder in self.folders]


def _plain_or_gzipped(path: Path) -> Path:
    gzipped = path.with_name(path.name + ".gz")
    return gzipped if os.path.isfile(gzipped) and not os.path.isfile(path) else path


def path_of(given: str | os.PathLike[str]) -> Path:
    """A path as a user writes it, perhaps with ~."""
    return Path(os.path.expanduser(given))


def locate(
    dataset: str, folder: str | Path | None, *layouts: Layout, pickled: Layout | None = None
) -> tuple[Layout, list[Path]]:
    """The first complete layout below `folder`, else below the folder named by the environment, and its files.

    If only the `pickled` files are there, the sentence says why they are refused.
    """
    given = folder or os.environ.get(VARIABLE)
    remedy = (
        f"it accepts {', or '.join(map(str, layouts))} (each file plain or .gz), "
        f"below the folder given as folder=... or in the environment variable {VARIABLE}"
    )
    if not given:
        raise UserError(f"dataset {dataset}: no folder was given; {remedy}")
    root = path_of(given)
    if not os.path.isdir(root):
        raise UserError(f"dataset {dataset}: there is no folder {root}; {remedy}")
    fewest: list[Path] = []
    for layout in layouts:
        for paths in layout.candidates(root):
            absent = [path for path in paths if not os.path.isfile(path)]
            if not absent:
                return layout, paths
            if len(absent) < len(paths) and (not fewest or len(absent) < len(fewest)):
                fewest = absent
    fault = f"is incomplete, {fewest[0]} is missing" if fewest else "does not hold it"
    for (pickle,) in pickled.candidates(root) if pickled else []:
        if os.path.isfile(pickle):
            fault = f"holds {pickle}, a pickle, which is refused because it can run any code"
    raise UserError(f"dataset {dataset}: the folder {root} {fault}; {remedy}")


def require(dataset: str, module: str, package: str) -> Any:
    """Import what only this loader needs."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(f"dataset {dataset}: this needs the package {package}; pip install {package}") from error


def read_bytes(dataset: str, path: Path) -> bytes:
    """The content, gunzipped if the name ends in .gz."""
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        blocks, size = [], 0
        with gzip.open(path) as file:
            while block := file.read(_BLOCK):
                blocks.append(block)
                size += len(block)
                _refuse_bomb(dataset, path, size)
        return b"".join(blocks)
    except UserError:
        raise
    except (OSError, EOFError, ValueError, MemoryError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"dataset {dataset}: cannot read {path}: {reason}") from error


def _refuse_bomb(dataset: str, path: Path, size: int) -> None:
    """Refuse to unpack what is made to fill the memory."""
    large, times = _BOMB
    if size > max(large, times * path.stat().st_size):
        raise UserError(
            f"dataset {dataset}: {path} unpacks to more than {times} times its size; if that is right, unpack it first"
        )


def read_text(dataset: str, path: Path) -> str:
    try:
        return read_bytes(dataset, path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"dataset {dataset}: {path} is not UTF-8 text") from error


def read_numpy(dataset: str, path: Path, *required: str) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name, or the one of an .npy under the file's own name."""
    raw = io.BytesIO(read_bytes(dataset, path))
    try:
        if zipfile.is_zipfile(raw):
            _refuse_bomb(dataset, path, sum(member.file_size for member in zipfile.ZipFile(raw).infolist()))
        raw.seek(0)
        content = np.load(raw, allow_pickle=False)
        single = isinstance(content, np.ndarray)
        arrays = {path.stem: content} if single else {name: content[name] for name in content.files}
    except UserError:
        raise
    except Exception as error:  # which one depends on which byte is wrong
        refused = "damaged, or it holds pickled objects, which are refused"
        raise UserError(f"dataset {dataset}: {path} is not a file of plain NumPy arrays; it is {refused}") from error
    for name in required:
        if name not in arrays:
            raise UserError(f"dataset {dataset}: {path} has no array {name}; it holds {', '.join(sorted(arrays))}")
    return arrays


def read_idx(dataset: str, path: Path) -> NDArray[np.uint8]:
    """An array in the idx format of MNIST: 0 0 8, rank, big-endian sizes, bytes."""
    raw = read_bytes(dataset, path)
    start = 4 + 4 * raw[3] if len(raw) > 3 else 4
    if raw[:3] != b"\0\0\x08" or len(raw) < start:
        raise UserError(f"dataset {dataset}: {path} is not an idx file of unsigned bytes")
    shape = np.frombuffer(raw, ">u4", raw[3], 4).tolist()
    if len(raw) != start + math.prod(shape):
        promised = " x ".join(map(str, shape))
        raise UserError(f"dataset {dataset}: {path} promises {promised} bytes but holds {len(raw) - start}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_cifar(dataset: str, path: Path, labels: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """`[n, 3, 32, 32]` images and `[n, labels]` labels of a batch in CIFAR's binary format."""
    raw = np.frombuffer(read_bytes(dataset, path), np.uint8)
    if not len(raw) or len(raw) % (labels + 3072):
        raise UserError(f"dataset {dataset}: {path} holds {len(raw)} bytes, no multiple of {labels + 3072} an image")
    records = raw.reshape(-1, labels + 3072)
    return records[:, labels:].reshape(-1, 3, 32, 32), records[:, :labels]


def read_sheet(dataset: str, path: Path) -> NDArray[np.uint8]:
    """`[n, 3, 32, 32]`: the 32 x 32 tiles of one picture, row by row."""
    image = require(dataset, "PIL.Image", "pillow")
    try:
        picture = np.asarray(image.open(io.BytesIO(read_bytes(dataset, path))).convert("RGB"))
    except UserError:
        raise
    except Exception as error:  # which one depends on which byte is wrong
        raise UserError(f"dataset {dataset}: {path} is not a picture that Pillow can read") from error
    height, width, _ = picture.shape
    if height % 32 or width % 32:
        raise UserError(f"dataset {dataset}: {path} is {width} x {height} pixels, not a sheet of 32 x 32 tiles")
    tiles = picture.reshape(height // 32, 32, width // 32, 32, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)


@dataclass(frozen=True)
class Table:
    """A text table: rows of words under named columns, and where each row stands in its file."""

    dataset: str
    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    def words(self, column: str) -> list[str]:
        """One column, none of it missing."""
        cells = self.cells(column)
        for cell, line in zip(cells, self.lines, strict=True):
            if cell.lower() in MISSING:
                raise UserError(f"dataset {self.dataset}: {self.path} line {line}: column {column} is missing")
        return cells

    def cells(self, column: str) -> list[str]:
        """One column as it stands."""
        if column not in self.header:
            raise unknown(f"dataset {self.dataset}: column of {self.path}", column, self.header)
        position = self.header.index(column)
        return [row[position] for row in self.rows]

    def numbers(self, *columns: str) -> NDArray[np.float64]:
        """`[rows, columns]`, all finite."""
        return np.stack([self._numbers(column) for column in columns], axis=1)

    def _numbers(self, column: str) -> NDArray[np.float64]:
        cells = self.words(column)
        try:
            values = np.array(cells, np.float64)
        except ValueError:
            values = np.array([float(cell) if is_number(cell) else np.nan for cell in cells])
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            where = f"{self.path} line {self.lines[bad[0]]}: column {column}"
            raise UserError(f"dataset {self.dataset}: {where} is {cells[bad[0]]!r}, not a finite number")
        return values


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_table(
    dataset: str, path: Path, header: Sequence[str] | None = None, spaces: bool = False, separator: str = ","
) -> Table:
    """A CSV file, or one of words between spaces; its first line names the columns unless `header` does."""
    if len(separator) != 1 or separator in '\r\n"':
        raise UserError(
            f"dataset {dataset}: option separator={separator!r} should be one character, such as ; or a tab"
        )
    text = io.StringIO(read_text(dataset, path), newline="")
    words = (" ".join(line.split()) for line in text) if spaces else text
    reader = csv.reader(words, delimiter=" " if spaces else separator)
    try:
        numbered = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise UserError(f"dataset {dataset}: {path} line {reader.line_num} is not CSV: {error}") from error
    names = list(header) if header is not None else numbered.pop(0)[1] if numbered else []
    if len(names) == 1 and header is None:
        for other in filter(names[0].__contains__, ";\t|"):
            told = f"one column, {names[0][:60]!r}; if {other!r} stands between cells, say so: separator={other!r}"
            raise UserError(f"dataset {dataset}: {path} has {told}")
    if not numbered:
        raise UserError(f"dataset {dataset}: {path} holds no rows")
    if len(set(names)) < len(names):
        raise UserError(f"dataset {dataset}: {path} names a column twice: {', '.join(names)}")
    for line, row in numbered:
        if len(row) != len(names):
            raise UserError(f"dataset {dataset}: {path} line {line} has {len(row)} cells for {len(names)} columns")
    return Table(dataset, path, names, [row for _, row in numbered], [line for line, _ in numbered])
