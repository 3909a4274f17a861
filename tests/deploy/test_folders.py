"""What each machine is given, the app over these folders, and the commands: all but the network itself."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from fake_network import Clock, FakeGrid
from flwr.app import Context, Message, RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from turnout import Population, Ragged, UserError
from turnout.cli.commands import app
from turnout.clients.origin import Origin
from turnout.config import config
from turnout.deploy import client, keys, server
from turnout.deploy.client import Memory
from turnout.deploy.folder import Enrolment, prepare, read_clients, read_outline, read_shard, write_outline, write_shard
from turnout.deploy.link import Child, birth, descendants, stop_all
from turnout.record.run_folder import reseal

SMALL = ["clients.count=3", "run.rounds=2", "local.epochs=1", "sampler.name=full", "engine.threads=1"]
SIMULATED = ("availability", "crashes", "links")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("deployment") / "all"
    settings = config.read("digits", SMALL)
    for section in SIMULATED:
        del settings[section]
    built, _, complete = config.build(settings)
    prepare(made, built.population, 10, config.as_toml(complete), ["127.0.0.1", "learn.example.org"], True)
    return made


class KeyedGrid(FakeGrid):
    """With the keys of the folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        workers = [client.worker(folder / "clients" / str(number)) for number in range(3)]
        super().__init__(workers, clock, (1.0, 2.0, 3.0))
        self.keys = [enrolled.key for enrolled in read_clients(folder / "server" / "clients.toml")]

    def get_nodes(self) -> Any:
        nodes = list(super().get_nodes())
        for number, node in enumerate(nodes):
            node.public_key = keys.as_pem(self.keys[number])
        return nodes


def test_each_machine_gets_its_own_and_nothing_else(folder: Path) -> None:
    rows = [load_file(folder / "clients" / str(number) / "shard.safetensors") for number in range(3)]
    enrolled = read_clients(folder / "server" / "clients.toml")
    assert [{"train": len(row["train"]), "test": len(row["test"]), "validation": None} for row in rows] == [
        each.splits for each in enrolled
    ]
    assert all(len(row["inputs"]) == len(row["train"]) + len(row["test"]) for row in rows)
    outline = load_file(folder / "server" / "outline.safetensors")
    assert len(outline["inputs"]) == 1
    assert not outline["inputs"].any()
    assert not list((folder / "server").glob("shard*"))
    for secret in (folder / "server" / "link.key", *(folder / "clients").glob("*/node.key")):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_clients_are_enrolled_by_the_names_of_the_data(tmp_path: Path) -> None:
    rows = Ragged.from_rows([[0, 1], [2, 3]])
    names = ["Lyon", 'O"slo']
    people = Population(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), rows, origin=Origin(np.array(names)))
    prepare(tmp_path / "all", people, 2, "", ["127.0.0.1"], False)
    path = tmp_path / "all/server/clients.toml"
    assert [enrolled.name for enrolled in read_clients(path)] == names
    assert Enrolment(path).columns()["origin"].names.tolist() == names
    path.write_text(path.read_text().replace('name = "Lyon"\n', ""))
    assert "origin" not in Enrolment(path).columns()  # numbers for all where one has no name


def test_the_authority_vouches_for_the_server_under_its_names_and_for_nobody_else(folder: Path) -> None:
    ca, link = (
        x509.load_pem_x509_certificate((folder / "server" / name).read_bytes()) for name in ("ca.pem", "link.pem")
    )
    link.verify_directly_issued_by(ca)
    names = link.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["learn.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not link.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert sorted(path.name for path in (folder / "server").glob("*.key")) == ["link.key"]  # not the authority's


def test_a_node_key_is_the_one_enrolled(folder: Path) -> None:
    enrolled = read_clients(folder / "server" / "clients.toml")
    for number, row in enumerate(enrolled):
        key = load_ssh_private_key((folder / "clients" / str(number) / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        pem = public_key_to_bytes(key.public_key())  # as a SuperLink shows it
        assert keys.as_text(pem) == row.key
        assert keys.as_pem(row.key) == pem


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the app over the folders, in one process."""
    clock, run = Clock(), tmp_path_factory.mktemp("finished") / "run"
    server.serve(KeyedGrid(folder, clock), folder / "server", run, clock=clock.read, sleep=clock.sleep)
    return run


def test_the_app_leaves_a_run_that_is_replayed_and_inspected(finished: Path) -> None:
    summary = json.loads((finished / "result.json").read_text())
    assert summary["rounds"] == 2
    assert summary["measures"]["test_accuracy"] > 0
    assert summary["measures"]["central_accuracy"] > 0
    replayed = CliRunner().invoke(app, ["replay", str(finished), "--json"])
    assert replayed.exit_code == 0, replayed.output
    found = json.loads(replayed.stdout)
    assert found["jobs"] == 6
    assert found["difference"] == 0
    assert CliRunner().invoke(app, ["inspect", str(finished)]).exit_code == 0


def test_a_replay_that_finds_another_model_exits_with_1(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    model = load_file(run / "model.safetensors")
    save_file({name: value + 1e-5 for name, value in model.items()}, run / "model.safetensors")
    reseal(run, "model.safetensors")
    assert CliRunner().invoke(app, ["replay", str(run)]).exit_code == 1


def test_a_replay_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["replay", str(tmp_path)])
    assert answer.exit_code == 2
    assert "not the folder of a deployed run" in answer.stderr


def test_a_mistake_is_told_to_whoever_started_the_server(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "server"
    shutil.copytree(folder / "server", copy)
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace('name = "fedavg"', 'name = "fedavgg"'))
    context = Context(1, 0, {}, RecordDict(), {"folder": str(copy), "run": str(tmp_path / "run")})
    with pytest.raises(UserError, match="fedavgg"):
        server.main(FakeGrid([], Clock()), context)
    assert "did you mean fedavg?" in (copy / server.MISTAKE).read_text()


def test_a_super_node_without_a_folder_says_so(folder: Path) -> None:
    grid = KeyedGrid(folder, Clock())
    content = RecordDict()
    message = Message(content, 1, "train")
    with pytest.raises(UserError, match="turnout deploy client"):
        client.train(message, Context(1, 1, {}, RecordDict(), {}))
    assert grid.asked == []


def test_a_deployment_begins_with_its_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["run", "digits", *SMALL, "run.rounds=0", "run.name=first", "run.report=false"])
    answer = CliRunner().invoke(app, ["deploy", "init", "new", "digits", *SMALL, "run.start=runs/first"])
    assert answer.exit_code == 2 and "run.start: a deployment begins with its own model" in answer.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["adversary.name=random", "adversary.budget=1"], "adversary"),
        (["behaviour.name=free_rider", "behaviour.share=0.4"], "behaviour"),
        (["stream.name=spread"], "stream"),
        (["clients.unseen_fraction=0.4"], "clients.joined_at"),
    ],
)
def test_what_only_a_simulation_has_is_refused(overrides: list[str], word: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "new"), "digits", *SMALL, *overrides])
    assert answer.exit_code == 2
    assert f"{word}: it is for simulated clients" in answer.stderr
    assert not (tmp_path / "new").exists()


def test_init_makes_the_folders_and_says_what_it_left_out(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "new"), "digits", *SMALL, "--no-data"])
    assert answer.exit_code == 0, answer.output
    assert "availability, crashes, links" in answer.stderr
    assert "server/ holds 359 rows, the central test set" in " ".join(answer.output.split())
    names = {path.name for path in (tmp_path / "new" / "clients" / "2").iterdir()}
    assert names == {"ca.pem", "config.toml", "node.key"}
    again = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "new"), "digits", *SMALL])
    assert again.exit_code == 2
    assert "not empty" in again.stderr


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ('id = 1\nkey = "a"\nsamples = 2', "ids are 0, 1, 2"),
        ('id = 0\nkey = "a"\nsamples = 0', "at least one sample"),
        ("id = 0\nkey = 3\nsamples = 2", "key = 3"),
        ('id = 0\nkey = "a"\nsamples = 2\ncolour = "red"', "colour"),
        ('id = 0\nkey = "a"\nsamples = 2\ntest = -1', "below 0"),
    ],
)
def test_a_wrong_row_of_the_table_is_one_sentence(row: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "clients.toml").write_text(f"[[client]]\n{row}\n")
    with pytest.raises(UserError, match=word):
        read_clients(tmp_path / "clients.toml")


def test_a_child_is_stopped_with_all_that_it_has_started(tmp_path: Path) -> None:
    sleeper = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    script = f"import subprocess, sys; subprocess.Popen({sleeper}).wait()"
    child = Child([sys.executable, "-c", script], tmp_path / "log", dict(os.environ))
    while not (family := descendants(child.pid)):
        pass
    stop_all([child], 0.0)
    assert not child.running()
    assert not [pid for pid in family if birth(pid)]


def test_the_shard_is_the_client_s_part_of_the_population(folder: Path) -> None:
    built, _, _ = config.build(config.read(str(folder / "clients" / "0" / "config.toml")))
    people = built.population
    for number in range(3):
        own = client.worker(folder / "clients" / str(number)).population
        rows = torch.as_tensor(people.train.row(number).astype("int64"))
        assert torch.equal(own.inputs[torch.as_tensor(own.train.row(0))], people.inputs[rows])


def test_a_server_cannot_look_at_other_files_of_a_client(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory")
    memory.remember("models", "abc", {"model": torch.ones(2)}, 3)
    (tmp_path / "memory" / "answers").mkdir()
    assert memory.recall("models", "abc") is not None
    assert memory.recall("answers", "../models/abc") is None


def test_a_shard_of_trees_is_read_as_it_was_written(tmp_path: Path) -> None:
    inputs = {"ids": torch.arange(12).view(6, 2), "more": (torch.ones(6, 3), [torch.zeros(6).byte()])}
    rows = Ragged.from_rows([[0, 2], [1, 3]])
    people = Population(inputs, (torch.arange(6), torch.ones(6)), rows, rows, central=(inputs, inputs["ids"]))
    write_shard(tmp_path / "shard.safetensors", people, 1, 6)
    data, own = read_shard(tmp_path / "shard.safetensors")
    assert own.inputs["ids"].tolist() == [[2, 3], [6, 7]]
    assert own.inputs["more"][1][0].dtype == torch.uint8
    assert own.targets[0].tolist() == [1, 3]
    assert (type(own.targets), data.num_classes, own.train.row(0).tolist()) == (tuple, 6, [0, 1])
    write_outline(tmp_path / "outline.safetensors", people, 6)
    _, known = read_outline(tmp_path / "outline.safetensors", [2, 2])
    assert known.inputs["ids"].tolist() == [[0, 0]]
    assert known.central is not None
    assert torch.equal(known.central[0]["more"][0], torch.ones(6, 3))


def test_a_shard_holds_no_classes_of_ones_own(tmp_path: Path) -> None:
    @dataclass
    class Batch:
        ids: torch.Tensor

    people = Population(Batch(torch.ones(2, 1)), torch.ones(2), Ragged.from_rows([[0, 1]]))
    with pytest.raises(UserError, match=r"inputs: Batch cannot be written; .* use a dictionary"):
        write_shard(tmp_path / "shard.safetensors", people, 0, None)


@pytest.mark.parametrize("built", ["{", "3", "[]", '{"inputs": {"set": []}}', '{"inputs": "none"}', '{"inputs": {}}'])
def test_a_shard_with_a_wrong_description_is_refused(built: str, tmp_path: Path) -> None:
    tensors = {"inputs": torch.ones(2, 1), "targets": torch.ones(2), "train": torch.arange(2)}
    save_file(tensors, tmp_path / "shard.safetensors", {"classes": "", "trees": built})
    with pytest.raises(UserError, match="cannot be read"):
        read_shard(tmp_path / "shard.safetensors")
