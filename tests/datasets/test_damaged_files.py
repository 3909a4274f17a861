"""Whatever bytes a data file holds, the answer is a dataset or one sentence that names the file."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tiny_files import Refused, idx, pixels

from turnout import UserError
from turnout import data as datasets
from turnout.data import readers as files

TABLE = "a,b,who,y\n1,2.5,x,0\n3,é,y,1\n5,6,x,1\n"


def npy(header: str) -> bytes:
    """An .npy with that text as its header."""
    padded = header.encode("latin1") + b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


def npz(compressed: bool = False, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


ARRAYS = {"inputs": np.arange(12.0).reshape(6, 2), "targets": np.arange(6) % 2, "groups": np.arange(6) // 2}
IMAGES = {
    "train-images-idx3-ubyte": idx(pixels(4, 28, 28)),
    "train-labels-idx1-ubyte": idx(np.arange(4, dtype=np.uint8)),
    "t10k-images-idx3-ubyte": idx(pixels(2, 28, 28)),
    "t10k-labels-idx1-ubyte": idx(np.arange(2, dtype=np.uint8)),
}


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': 3}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True, [])}",
        "{'descr': {}, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f8', -1)], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999999999999999,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)",
        "{1: 2, 'a': 3, b'c': 4}",
        "(" * 400,
        "-" * 3000 + "1",
        "\x00",
        "'",
    ],
)  # fmt: skip
def test_headers_that_make_numpy_raise_anything(header: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "inputs.npy").write_bytes(npy(header))
    with refused("numpy_files"):
        datasets.load("numpy_files", path=tmp_path)


@pytest.mark.parametrize("kind", ["gz", "npz"])
def test_what_unpacks_to_fill_the_memory_is_not_unpacked(
    kind: str, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BOMB", (1 << 20, 200))
    monkeypatch.setattr(files, "_BLOCK", 1 << 18)
    if kind == "gz":
        path = tmp_path / "mine.csv.gz"
        path.write_bytes(gzip.compress(b"0" * (1 << 24)))
    else:
        path = tmp_path / "mine.npz"
        path.write_bytes(npz(compressed=True, inputs=np.zeros(1 << 21), targets=np.zeros(3)))
    with refused(path, "more than 200 times its size"):
        if kind == "gz":
            datasets.load("csv_table", path=path, target="y")
        else:
            datasets.load("numpy_files", path=path)


def damages(content: bytes, chance: Random, count: int) -> list[bytes]:
    """The content cut, with bytes changed, doubled, or followed by others."""
    found = [b"", content[:1], content + content, content[::-1]]
    for _ in range(count):
        place, length = chance.randrange(len(content)), chance.randrange(1, 9)
        noise = bytes(chance.randrange(256) for _ in range(length))
        found += [content[:place], content[:place] + noise + content[place + length :], content[:place] + noise]
    return found


def csv(folder: Path, content: bytes) -> None:
    (folder / "mine.csv").write_bytes(content)
    datasets.load("csv_table", path=folder / "mine.csv", target="y", client="who")


def gzipped(folder: Path, content: bytes) -> None:
    (folder / "mine.csv.gz").write_bytes(content)
    datasets.load("csv_table", path=folder / "mine.csv.gz", target="y", client="who")


def arrays(folder: Path, content: bytes) -> None:
    (folder / "mine.npz").write_bytes(content)
    datasets.load("numpy_files", path=folder / "mine.npz")


def array(folder: Path, content: bytes) -> None:
    np.save(folder / "targets.npy", ARRAYS["targets"])
    (folder / "inputs.npy").write_bytes(content)
    datasets.load("numpy_files", path=folder)


def image(folder: Path, content: bytes) -> None:
    for name, whole in IMAGES.items():
        (folder / name).write_bytes(whole)
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    datasets.load("mnist", folder=folder)


def roles(folder: Path, content: bytes) -> None:
    (folder / "roles.json").write_bytes(content)
    datasets.load("shakespeare", folder=folder)


def inner() -> bytes:
    file = io.BytesIO()
    np.save(file, ARRAYS["inputs"])
    return file.getvalue()


WHOLE: dict[str, tuple[Callable[[Path, bytes], None], bytes]] = {
    "csv": (csv, TABLE.encode()),
    "csv.gz": (gzipped, gzip.compress(TABLE.encode(), mtime=0)),
    "npz": (arrays, npz(**ARRAYS)),  # type: ignore[arg-type]
    "npz, compressed": (arrays, npz(compressed=True, **ARRAYS)),
    "npy": (array, inner()),
    "idx": (image, IMAGES["train-images-idx3-ubyte"]),
    "json": (roles, b'{"play/ROLE": ["' + b"To be or not to be. " * 9 + b'", "that."]}'),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_damaged_file_is_one_sentence_or_still_data(kind: str, tmp_path: Path) -> None:
    load, content = WHOLE[kind]
    load(tmp_path, content)  # as long as it is whole
    refusals = 0
    for damaged in damages(content, Random(kind), 40):
        try:
            load(tmp_path, damaged)
        except UserError as refusal:
            refusals += 1
            assert "\n" not in str(refusal)
            assert str(tmp_path) in str(refusal) or "dataset " in str(refusal)
    assert refusals > 30


def test_a_zip_of_something_else(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs.npy", b"no array")
    with refused("numpy_files"):
        datasets.load("numpy_files", path=path)
