from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_files import Refused, write

from turnout.data import load

LONG = "".join(string.ascii_letters[i % 52] for i in range(260))
ROLES = {
    "play/LONG": [LONG, LONG],
    "play/ONCE": [LONG],
    "play/BRIEF": ["Ay.", "No."],
    "play/OTHER": ["x" * 100, "y" * 100],
}


def save(folder: Path, roles: object = ROLES, name: str = "shakespeare/roles.json.gz") -> Path:
    return write(folder / name, json.dumps(roles))


def decode(tokens: torch.Tensor) -> str:
    return "".join(string.printable[token] for token in tokens)


@pytest.mark.parametrize("name", ["shakespeare/roles.json.gz", "roles.json"])
def test_windows_and_what_follows(name: str, tmp_path: Path) -> None:
    save(tmp_path, name=name)
    data = load("shakespeare", folder=tmp_path)
    assert data.num_classes == 100
    assert data.inputs.dtype == data.targets.dtype == torch.int64
    assert data.facts["clients"] == ["play/LONG", "play/OTHER"]
    assert data.facts["vocabulary"] == string.printable
    text = f"{LONG} {LONG}"
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0, 0, 0, 0, 1, 1]
    for i in range(5):
        assert decode(data.inputs[i]) == text[80 * i : 80 * i + 80]
        assert decode(data.targets[i : i + 1]) == text[80 * i + 80]
    assert data.test_inputs is not None
    assert data.test_targets is not None
    assert data.test_groups is not None
    assert decode(data.test_inputs[0]) == text[417:497]
    assert decode(data.test_targets) == text[497]
    assert data.test_groups.tolist() == [0]


def test_stride(tmp_path: Path) -> None:
    save(tmp_path)
    data = load("shakespeare", folder=tmp_path, stride=1, test_fraction=0.0)
    assert data.groups is not None
    assert np.bincount(data.groups).tolist() == [521 - 80, 201 - 80]
    assert data.test_inputs is None
    assert data.test_groups is None
    assert torch.equal(data.inputs[1, :-1], data.inputs[0, 1:])
    assert data.inputs[1, -1] == data.targets[0]
    assert len(load("shakespeare", folder=tmp_path, stride=7, test_fraction=0.0, clients=1)) == 63


def test_which_roles_are_clients(tmp_path: Path, refused: Refused) -> None:
    save(tmp_path)
    assert load("shakespeare", folder=tmp_path, min_speeches=1).facts["clients"] == [
        *("play/LONG", "play/ONCE", "play/OTHER")
    ]
    assert load("shakespeare", folder=tmp_path, clients=1).facts["clients"] == ["play/LONG"]
    with refused("shakespeare", "3 speeches"):
        load("shakespeare", folder=tmp_path, min_speeches=3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'["a"]', "lists of speeches"),
        (b'{"a": "b"}', "lists of speeches"),
        (b'{"a": [1]}', "lists of speeches"),
        (json.dumps({"play/R": [LONG, "\u00e9"]}).encode(), "role play/R"),
    ],
)
def test_a_damaged_file_is_one_sentence(content: bytes, words: str, tmp_path: Path, refused: Refused) -> None:
    write(tmp_path / "roles.json.gz", content)
    with refused("shakespeare", words):
        load("shakespeare", folder=tmp_path)


def test_nothing_there_is_one_sentence(tmp_path: Path, refused: Refused) -> None:
    with refused("shakespeare", tmp_path, "roles.json", "folder=...", "TURNOUT_DATA"):
        load("shakespeare", folder=tmp_path)
