from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_files import Refused, idx, pixels, save_npz, sheet, write

from turnout.data import load
from turnout.data.mnist import IDX

DIGITS, LABELS = pixels(6, 28, 28), np.array([3, 1, 4, 1, 5, 9], np.uint8)


def write_idx(folder: Path, suffix: str = "") -> None:
    for name, array in zip(IDX, (DIGITS[:4], LABELS[:4], DIGITS[4:], LABELS[4:]), strict=True):
        write(folder / (name + suffix), idx(array))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("mnist", ""),
        ("fashion_mnist", "FashionMNIST/raw"),
        ("fashion_mnist", "fashion-mnist"),
        ("fashion_mnist", ""),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(name: str, place: str, suffix: str, tmp_path: Path) -> None:
    write_idx(tmp_path / place, suffix)
    data = load(name, folder=tmp_path, normalise="raw")
    assert (data.name, data.num_classes, data.groups) == (name, 10, None)
    assert data.inputs.shape == (4, 1, 28, 28)
    assert data.inputs.dtype == torch.float32
    assert data.test_inputs is not None
    assert data.test_targets is not None
    np.testing.assert_array_equal(data.inputs[:, 0], DIGITS[:4])
    np.testing.assert_array_equal(data.test_inputs[:, 0], DIGITS[4:])
    assert data.targets.tolist() == [3, 1, 4, 1]
    assert data.test_targets.tolist() == [5, 9]
    assert data.targets.dtype == torch.int64


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    write_idx(tmp_path / "MNIST" / "raw")
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path))
    assert len(load("mnist")) == 4
    with refused("mnist", tmp_path / "other"):
        load("mnist", folder=tmp_path / "other")


def test_bare_idx_files_below_the_environment_are_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    write_idx(tmp_path)
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path))
    with refused("fashion_mnist", tmp_path, "FashionMNIST/raw", "TURNOUT_DATA", "folder=..."):
        load("fashion_mnist")


def test_normalise(tmp_path: Path) -> None:
    write_idx(tmp_path)
    unit = torch.from_numpy(DIGITS[:4, None] / np.float32(255))
    expected = {"unit": unit, "symmetric": 2 * unit - 1, "standard": (unit - 0.1307) / 0.3081}
    for normalise, values in expected.items():
        torch.testing.assert_close(load("mnist", folder=tmp_path, normalise=normalise).inputs, values)
    torch.testing.assert_close(load("mnist", folder=tmp_path).inputs, expected["standard"])


def test_mnist_archive_with_writers(tmp_path: Path) -> None:
    arrays = {"x_train": DIGITS[:4], "y_train": LABELS[:4], "x_test": DIGITS[4:], "y_test": LABELS[4:]}
    save_npz(tmp_path / "mnist.npz", **arrays)
    assert load("mnist", folder=tmp_path).groups is None
    save_npz(tmp_path / "mnist.npz", **arrays, writer_train=np.array([70, 5, 70, 9], np.int16))
    data = load("mnist", folder=tmp_path, normalise="raw")
    assert data.groups is not None
    assert data.groups.tolist() == [2, 0, 2, 1]
    assert data.groups.dtype == np.int64
    assert data.facts["clients"] == [5, 9, 70]
    assert data.test_groups is None
    np.testing.assert_array_equal(data.inputs[:, 0], DIGITS[:4])


def test_a_damaged_archive_is_one_sentence(tmp_path: Path, refused: Refused) -> None:
    arrays = {"x_train": DIGITS[:4], "y_train": LABELS[:4], "x_test": DIGITS[4:], "y_test": LABELS[4:]}
    path = tmp_path / "mnist.npz"
    save_npz(path, **arrays, writer_train=np.array([1, 2]))
    with refused("mnist", path, "4 images but 2 writers"):
        load("mnist", folder=tmp_path)
    save_npz(path, **(arrays | {"y_train": LABELS[:3]}))
    with refused("mnist", "4 images", "[3]"):
        load("mnist", folder=tmp_path)
    save_npz(path, **(arrays | {"y_train": LABELS[:4] + 9}))
    with refused("mnist", "0 to 9"):
        load("mnist", folder=tmp_path)
    save_npz(path, **(arrays | {"x_train": DIGITS[:4] / 255}))
    with refused("mnist", "float64", "bytes"):
        load("mnist", folder=tmp_path)
    save_npz(path, x_train=DIGITS)
    with refused("mnist", path, "no array y_train", "x_train"):
        load("mnist", folder=tmp_path)
    save_npz(path, **(arrays | {"x_train": np.array([{}], object)}))
    with refused("mnist", path, "pickled"):
        load("mnist", folder=tmp_path)
    for content in (path.read_bytes()[:-30], b"", b"PK\x03\x04", b"hello"):
        path.write_bytes(content)
        with refused("mnist", path):
            load("mnist", folder=tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (idx(DIGITS)[:-1], "promises 6 x 28 x 28 bytes but holds 4703"),
        (idx(DIGITS) + b"x", "but holds 4705"),
        (idx(DIGITS)[:9], "not an idx file"),
        (b"", "not an idx file"),
        (b"\0\0\x0d\x01", "not an idx file"),
        (b"\0\0\x08\x00\x07", "[]"),
        (idx(DIGITS[:3]), "3 images"),
        (idx(DIGITS[:, 0]), "[6, 28]"),
        (idx(DIGITS[:4, 1:]), "[4, 27, 28] and [2, 28, 28]"),
        (idx(DIGITS[:0]), "[0, 1, 28, 28]"),
    ],
)
def test_a_damaged_idx_file_is_one_sentence(content: bytes, words: str, tmp_path: Path, refused: Refused) -> None:
    write_idx(tmp_path)
    (tmp_path / IDX[0]).write_bytes(content)
    with refused("fashion_mnist", words):
        load("fashion_mnist", folder=tmp_path)


def test_a_truncated_gzip_is_one_sentence(tmp_path: Path, refused: Refused) -> None:
    write_idx(tmp_path, ".gz")
    path = tmp_path / f"{IDX[0]}.gz"
    whole = path.read_bytes()
    for content in (whole[:-20], b"plain", whole[:40] + b"\xff" * 20 + whole[60:]):
        path.write_bytes(content)
        with refused("mnist", path, "cannot read"):
            load("mnist", folder=tmp_path)


def test_nothing_there_is_one_sentence(tmp_path: Path, refused: Refused) -> None:
    with refused("mnist", "no folder was given", "mnist.npz", "MNIST/raw", "folder=...", "TURNOUT_DATA"):
        load("mnist")
    with refused("mnist", tmp_path, "does not hold it", "mnist.npz", "folder=...", "TURNOUT_DATA"):
        load("mnist", folder=tmp_path)
    write_idx(tmp_path)
    (tmp_path / IDX[3]).unlink()
    with refused("mnist", tmp_path, f"{tmp_path / IDX[3]} is missing"):
        load("mnist", folder=tmp_path)


COLOURS, CLASSES = pixels(12, 3, 32, 32), np.arange(12, dtype=np.uint8) % 10


def records(images: NDArray[np.uint8], *labels: NDArray[np.uint8]) -> bytes:
    return np.concatenate([np.stack(labels, axis=1), images.reshape(len(images), -1)], axis=1).tobytes()


def write_batches(folder: Path) -> None:
    for i in range(5):
        part = slice(2 * i, 2 * i + 2)
        write(folder / f"data_batch_{i + 1}.bin", records(COLOURS[part], CLASSES[part]))
    write(folder / "test_batch.bin", records(COLOURS[10:], CLASSES[10:]))


def write_sheets(folder: Path) -> None:
    for i in range(5):
        sheet(folder / f"train_{i + 1}.webp", COLOURS[2 * i : 2 * i + 2], 2)
    sheet(folder / "test.webp", COLOURS[10:], 1)
    save_npz(folder / "labels.npz", y_train=CLASSES[:10], y_test=CLASSES[10:])


@pytest.mark.parametrize("place", ["cifar-10-batches-bin", ""])
def test_cifar10_binary(place: str, tmp_path: Path) -> None:
    write_batches(tmp_path / place)
    data = load("cifar10", folder=tmp_path, normalise="raw")
    assert data.num_classes == 10
    assert data.inputs.dtype == torch.float32
    np.testing.assert_array_equal(data.inputs, COLOURS[:10])
    np.testing.assert_array_equal(data.targets, CLASSES[:10])
    assert data.test_inputs is not None
    assert data.test_targets is not None
    np.testing.assert_array_equal(data.test_inputs, COLOURS[10:])
    np.testing.assert_array_equal(data.test_targets, CLASSES[10:])


def test_cifar10_sheets_are_the_binary_ones(tmp_path: Path) -> None:
    write_batches(tmp_path / "bin")
    write_sheets(tmp_path / "cifar10")
    binary, sheets = load("cifar10", folder=tmp_path / "bin"), load("cifar10", folder=tmp_path)
    assert torch.equal(binary.inputs, sheets.inputs)
    assert torch.equal(binary.targets, sheets.targets)
    assert binary.test_inputs is not None
    assert sheets.test_inputs is not None
    assert torch.equal(binary.test_inputs, sheets.test_inputs)


def test_cifar10_standard_is_per_channel(tmp_path: Path) -> None:
    write_batches(tmp_path)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    expected = (torch.from_numpy(COLOURS[:10] / np.float32(255)) - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(load("cifar10", folder=tmp_path).inputs, expected)


@pytest.mark.parametrize(
    ("name", "file"), [("cifar10", "cifar-10-batches-py/data_batch_1"), ("cifar100", "cifar-100-python/train")]
)
def test_pickled_batches_are_refused(name: str, file: str, tmp_path: Path, refused: Refused) -> None:
    boom = b"cbuiltins\nexit\n(tR."
    write(tmp_path / file, boom)
    with refused(name, tmp_path / file, "pickle", "refused", ".bin"):
        load(name, folder=tmp_path)


def test_a_truncated_batch_is_one_sentence(tmp_path: Path, refused: Refused) -> None:
    write_batches(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    for content in (path.read_bytes()[:-1], b""):
        path.write_bytes(content)
        with refused("cifar10", path, "3073"):
            load("cifar10", folder=tmp_path)


def test_a_damaged_sheet_is_one_sentence(tmp_path: Path, refused: Refused) -> None:
    write_sheets(tmp_path)
    path = tmp_path / "train_2.webp"
    sheet(path, COLOURS[:1], 1)
    with refused("cifar10", "9 images", "[10]"):
        load("cifar10", folder=tmp_path)
    import_module("PIL.Image").new("RGB", (64, 33)).save(path, lossless=True)
    with refused("cifar10", path, "64 x 33"):
        load("cifar10", folder=tmp_path)
    for content in (b"RIFF", path.read_bytes()[:-8], b""):
        path.write_bytes(content)
        with refused("cifar10", path, "not a picture"):
            load("cifar10", folder=tmp_path)


def test_without_pillow_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    for name in (*(f"train_{i}.webp" for i in range(1, 6)), "test.webp"):
        write(tmp_path / name, b"")
    save_npz(tmp_path / "labels.npz", y_train=CLASSES[:10], y_test=CLASSES[10:])
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with refused("cifar10", "pip install pillow"):
        load("cifar10", folder=tmp_path)


FINE = np.array([7, 99, 7, 0, 42, 99], np.uint8)
COARSE_OF_FINE = (np.arange(100) // 5).astype(np.uint8)


def test_cifar100_binary(tmp_path: Path) -> None:
    for name, part in (("train.bin", slice(0, 4)), ("test.bin", slice(4, 6))):
        write(tmp_path / "cifar-100-binary" / name, records(COLOURS[part], COARSE_OF_FINE[FINE[part]], FINE[part]))
    fine = load("cifar100", folder=tmp_path, normalise="raw")
    assert fine.num_classes == 100
    assert fine.targets.tolist() == [7, 99, 7, 0]
    np.testing.assert_array_equal(fine.inputs, COLOURS[:4])
    coarse_of_fine = np.asarray(fine.facts["coarse_of_fine"])
    assert coarse_of_fine.shape == (100,)
    assert coarse_of_fine[[0, 7, 42, 99, 1]].tolist() == [0, 1, 8, 19, -1]
    coarse = load("cifar100", folder=tmp_path, labels="coarse")
    assert coarse.num_classes == 20
    assert coarse.targets.tolist() == [1, 19, 1, 0]
    assert coarse.test_targets is not None
    assert coarse.test_targets.tolist() == [8, 19]


def test_cifar100_sheets(tmp_path: Path, refused: Refused) -> None:
    folder = tmp_path / "cifar100_subset"
    sheet(folder / "train.webp", COLOURS[:4], 2)
    sheet(folder / "test.webp", COLOURS[4:6], 1)
    labels = {"y_train": FINE[:4], "y_test": FINE[4:], "coarse_of_fine": COARSE_OF_FINE}
    save_npz(folder / "labels.npz", **labels)
    fine, coarse = (load("cifar100", folder=tmp_path, labels=kind, normalise="raw") for kind in ("fine", "coarse"))
    np.testing.assert_array_equal(fine.inputs, COLOURS[:4])
    assert fine.targets.tolist() == [7, 99, 7, 0]
    assert coarse.targets.tolist() == [1, 19, 1, 0]
    np.testing.assert_array_equal(np.asarray(fine.facts["coarse_of_fine"]), COARSE_OF_FINE)
    for broken in (
        {"coarse_of_fine": COARSE_OF_FINE[:5]},
        {"coarse_of_fine": np.full(100, "fish")},
        {"y_train": FINE[:4] + 100},
        {"y_train": FINE[:4].astype(int) - 1},
        {"y_train": FINE[:4] / 2},
    ):
        save_npz(folder / "labels.npz", **(labels | broken))
        with refused("cifar100", folder / "labels.npz", "100 classes"):
            load("cifar100", folder=tmp_path)
