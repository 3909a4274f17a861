"""LEAF, Parquet by client, folders of images, a file or folder a centre."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tiny_files import Refused, save_npz, write

from turnout.config import config
from turnout.data import images, load


def leaf(users: dict[str, tuple[Any, Any]]) -> str:
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})


def test_leaf_keeps_users_and_a_test_folder(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.json", leaf({"zoe": ([[0.5, 1], [2, 3]], [0, 1])}))
    write(tmp_path / "train" / "b.json", leaf({"abe": ([[4, 5.5]], [2]), "nobody": ([], [])}))
    write(tmp_path / "test" / "a.json", leaf({"zoe": ([[9, 9]], [1])}))
    data = load("leaf", path=tmp_path)
    assert data.inputs.tolist() == [[0.5, 1], [2, 3], [4, 5.5]]
    assert data.targets.tolist() == [0, 1, 2]
    assert data.num_classes == 3
    assert data.facts["clients"] == ["abe", "zoe"]
    assert data.groups is not None
    assert data.test_groups is not None
    assert (data.groups.tolist(), data.test_groups.tolist()) == ([1, 1, 0], [1])
    assert load("leaf", path=tmp_path / "train", shape=[1, 2, 1]).inputs.shape == (3, 1, 2, 1)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("{", {}, ["not LEAF's JSON"]),
        ("[]", {}, ["not LEAF's JSON"]),
        (leaf({"zoe": (["some words"], [0])}), {}, ["zoe", "tokens"]),
        (leaf({"zoe": ([[1], [2, 3]], [0, 1])}), {}, ["zoe", "one length"]),
        (leaf({"zoe": ([[1]], [0, 1])}), {}, ["1 x but 2 y"]),
        (leaf({"zoe": ([[1]], [0]), "abe": ([[1, 2]], [0])}), {}, ["different shapes"]),
        (leaf({"zoe": ([], [])}), {}, ["no samples"]),
        (leaf({"zoe": ([[1, 2]], [0])}), {"shape": [3]}, ["shape=[3]"]),
    ],
)
def test_mistakes_in_leaf(
    text: str, options: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused
) -> None:
    write(tmp_path / "a.json", text)
    with refused("dataset leaf", *words):
        load("leaf", path=tmp_path / "a.json", **options)


def parquet(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_parquet_by_folder_or_file_of_a_client(tmp_path: Path) -> None:
    for client, start in (("10", 0.0), ("9", 4.0)):
        pixels = pa.array([[start, 1.0], [start + 1, 3.0]], pa.list_(pa.float32(), 2))
        columns = {"age": [30, 40], "pixels": pixels, "ill": ["yes", "no"]}
        parquet(tmp_path / "hive" / f"client={client}" / "part.parquet", **columns)
        parquet(tmp_path / "files" / f"site{client}.parquet", **columns)
    for place, options, clients in (
        ("hive", {"client": "client"}, [9, 10]),
        ("files", {}, ["site10", "site9"]),
    ):
        data = load("parquet", path=tmp_path / place, target="ill", normalise="none", test_fraction=0.0, **options)
        assert data.facts["features"] == ["age", "pixels[0]", "pixels[1]"]
        assert data.facts["classes"] == ["no", "yes"]
        assert data.facts["clients"] == clients
        assert data.inputs.tolist() == [[30, 0, 1], [40, 1, 3], [30, 4, 1], [40, 5, 3]]
        assert data.targets.tolist() == [1, 0, 1, 0]
        assert data.groups is not None
        assert data.groups.tolist() == ([1, 1, 0, 0] if place == "hive" else [0, 0, 1, 1])
    data = load("parquet", path=tmp_path / "files", target="age", inputs=["pixels"], task="regression")
    assert data.num_classes is None


@pytest.mark.parametrize(
    ("files", "clients"),
    [
        (["client=3/part", "client=10/part"], ["client=10/part", "client=3/part"]),
        (["north/part", "south/part", "south/rest"], ["north/part", "south/part", "south/rest"]),
        (["client=3/a", "client=10/b"], ["b", "a"]),
    ],
)
def test_a_parquet_file_a_client_has_a_name_of_its_own(files: list[str], clients: list[str], tmp_path: Path) -> None:
    for number, name in enumerate(files):
        parquet(tmp_path / f"{name}.parquet", x=[1.0 * number], y=[number % 2])
    data = load("parquet", path=tmp_path, target="y", test_fraction=0.0)
    assert data.groups is not None
    named = [data.facts["clients"][group] for group in data.groups]  # type: ignore[index]
    assert named == clients
    assert data.facts["features"] == ["x"]


def test_what_folders_of_parquet_say(tmp_path: Path, refused: Refused) -> None:
    for name in ("a/client=01", "a/client=1", "b/who%20is=a%20b", "c/client=2"):
        parquet(tmp_path / name / "part.parquet", x=[1.0], y=[0], **({"client": [2]} if "c/" in name else {}))

    def read(folder: str, **options: Any) -> Any:
        return load("parquet", path=tmp_path / folder, target="y", test_fraction=0.0, **options).facts

    assert read("a", client="client")["clients"] == ["01", "1"]
    assert read("b", client="who is")["clients"] == ["a b"]
    assert read("c", client="client")["clients"] == [2]
    assert read("c", inputs=["x", "client"])["features"] == ["x", "client"]
    for value in ("3", "three"):
        parquet(tmp_path / value / f"client={value}" / "part.parquet", x=[1.0], y=[0], client=[2])
        with refused("dataset parquet", f"client={value}", "column client"):
            read(value, client="client")


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"x": [1.0, None], "y": [0, 1]}, {}, ["column x", "missing"]),
        ({"x": [1.0, float("nan")], "y": [0, 1]}, {}, ["column x", "NaN"]),
        ({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}, {}, ["column x", "lists of one length"]),
        ({"y": [0, 1]}, {}, ["no column left"]),
        ({"x": [1.0], "z": [1]}, {}, ["column", "'y'"]),
        ({"x": [1.0], "y": [1]}, {"client": "who"}, ["column", "'who'"]),
        ({"x": [1.0], "y": [[1.0]]}, {"task": "classification"}, ["target y holds lists"]),
    ],
)
def test_mistakes_in_parquet(
    columns: dict[str, Any], options: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused
) -> None:
    parquet(tmp_path / "a.parquet", **columns)
    with refused("dataset parquet", *words):
        load("parquet", path=tmp_path, target="y", **options)


def test_a_damaged_parquet_file(tmp_path: Path, refused: Refused) -> None:
    write(tmp_path / "a.parquet", "no such thing")
    with refused("dataset parquet", "a.parquet", "can be read"):
        load("parquet", path=tmp_path, target="y")
    with refused("dataset parquet", "neither"):
        load("parquet", path=tmp_path / "nowhere", target="y")


def picture(path: Path, value: int, size: tuple[int, int] = (4, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 0)).save(path)


def test_folders_of_images(tmp_path: Path) -> None:
    for client in ("north", "south"):
        for number, kind in enumerate(("cat", "dog")):
            picture(tmp_path / "both" / client / kind / "0.png", 100 * number)
            picture(tmp_path / "classes" / kind / f"{client}.png", 100 * number)
            picture(tmp_path / "clients" / client / f"{kind}.png", 100 * number)
    write(tmp_path / "clients" / "labels.csv", "file,label\ncat.png,cat\nsouth/dog.png,dog\nnorth/dog.png,wolf\n")
    both = load("images", path=tmp_path / "both", layout="client/class", test_fraction=0.0)
    assert both.inputs.shape == (4, 3, 3, 4)
    assert both.inputs.dtype == torch.float32
    assert both.inputs.amax((1, 2, 3)).tolist() == pytest.approx([0, 100 / 255, 0, 100 / 255])
    assert both.facts == {"classes": ["cat", "dog"], "clients": ["north", "south"]}
    assert both.groups is not None
    assert both.groups.tolist() == [0, 0, 1, 1]
    kept = load("images", path=tmp_path / "classes", pixels="bytes", test_fraction=0.5, size=2, colour="grey")
    assert kept.test_inputs is not None
    assert (kept.inputs.dtype, kept.inputs.shape, kept.test_inputs.shape) == (torch.uint8, (2, 1, 2, 2), (2, 1, 2, 2))
    assert kept.groups is None
    table = load("images", path=tmp_path / "clients", layout="client", labels="labels.csv", test_fraction=0.0)
    assert table.facts["classes"] == ["cat", "dog", "wolf"]
    assert table.targets.tolist() == [0, 2, 0, 1]


def test_many_images_as_bytes_lie_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        picture(tmp_path / "class" / f"{number}.png", number)
    in_memory = load("images", path=tmp_path, pixels="bytes")
    monkeypatch.setattr("turnout.data.images.LARGE", 10)
    assert isinstance(images._room((3, 1, 2, 2), "bytes"), np.memmap)
    assert torch.equal(load("images", path=tmp_path, pixels="bytes").inputs, in_memory.inputs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["3 x 4 pixels", "give size"]),
        ({"layout": "client"}, ["labels=None"]),
        ({"labels": "x.csv"}, ["layout=class"]),
        ({"layout": "client/class"}, ["no images"]),
        ({"path": "nowhere"}, ["no folder"]),
    ],
)
def test_mistakes_with_images(options: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused) -> None:
    picture(tmp_path / "cat" / "0.png", 0)
    picture(tmp_path / "dog" / "0.png", 0, (3, 4))
    with refused("dataset images", *words):
        load("images", **{"path": tmp_path} | options)


def test_what_is_no_picture(tmp_path: Path, refused: Refused) -> None:
    write(tmp_path / "cat" / "0.png", "no picture")
    with refused("dataset images", "0.png", "Pillow"):
        load("images", path=tmp_path)


def test_a_model_by_name_takes_images_as_bytes(tmp_path: Path) -> None:
    for number in range(8):
        picture(tmp_path / ("cat" if number % 2 else "dog") / f"{number}.png", 20 * number)
    settings: config.Settings = {
        "data": {"name": "images", "path": str(tmp_path), "pixels": "bytes"},
        "clients": {"count": 2},
        "model": {"name": "linear"},
        "local": {"lr": 0.1},
        "algorithm": {"name": "fedavg"},
        "sampler": {"name": "full"},
    }
    one, two = (config.build(settings | {"data": settings["data"] | {"pixels": kind}})[0] for kind in ("bytes", "unit"))
    assert one.population.inputs.dtype == torch.uint8
    x, y = one.population.inputs, two.population.inputs
    assert torch.equal(one.task.outputs(one.task.initial, x), two.task.outputs(two.task.initial, y))


def test_centres_with_a_table_each(tmp_path: Path) -> None:
    write(tmp_path / "lyon.csv", "age,word,ill\n30,a,yes\n40,b,no\n")
    write(tmp_path / "nice" / "one.csv", "age,word,ill\n50,a,no\n")
    write(tmp_path / "readme.txt", "not data")
    data = load("centres", path=tmp_path, target="ill", normalise="none", test_fraction=0.0)
    assert data.facts["features"] == ["age", "word=a", "word=b"]
    assert (data.facts["classes"], data.facts["clients"]) == (["no", "yes"], ["lyon", "nice"])
    assert data.inputs.tolist() == [[30, 1, 0], [40, 0, 1], [50, 1, 0]]
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0, 1]


def test_centres_with_arrays_each(tmp_path: Path) -> None:
    save_npz(tmp_path / "b.npz", inputs=np.ones((2, 3)), targets=np.array([0, 1]))
    save_npz(tmp_path / "a.npz", inputs=np.zeros((1, 3)), targets=np.array([2]))
    data = load("centres", path=tmp_path)
    assert data.facts["clients"] == ["a", "b"]
    assert data.targets.tolist() == [2, 0, 1]
    for name in ("x", "y"):
        (tmp_path / "folders" / name).mkdir(parents=True)
        np.save(tmp_path / "folders" / name / "inputs.npy", np.ones((2, 3)))
        np.save(tmp_path / "folders" / name / "targets.npy", np.array([0, 1]))
    assert load("centres", path=tmp_path / "folders").facts["clients"] == ["x", "y"]


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        ({}, {}, ["no .csv, .npz or .npy"]),
        ({"a.csv": "x,y\n1,0\n"}, {}, ["target is needed"]),
        ({"a.csv": "x,y\n1,0\n", "b.csv": "z,y\n1,0\n"}, {"target": "y"}, ["b.csv", "the same"]),
        ({"a.csv": "x,y\n1,0\n", "b.npy": "?"}, {"target": "y"}, ["mixes"]),
        ({"a.csv": "x,y\n1,0\n"}, {"target": "z"}, ["column", "'z'"]),
    ],
)
def test_mistakes_with_centres(
    files: dict[str, str], options: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    with refused("dataset centres", *words):
        load("centres", path=tmp_path, **options)
