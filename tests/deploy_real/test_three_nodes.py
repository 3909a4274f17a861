"""What a deployment must show with three real clients over TLS: `make test-deploy`. No part of the default suite."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from real_network import Network, until

from turnout.deploy import keys
from turnout.deploy.client import FOLDER as CLIENT_FOLDER
from turnout.deploy.folder import read_clients
from turnout.deploy.link import Child, birth, descendants, environment, free_port, node, program, stop_all

MANY = 30  # rounds of a run in whose middle something happens: loaded clients are quick


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("deployed")) as running:
        yield running


def jobs(run: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((run / "jobs").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text())
    return found


def runs(parent: int, command: bytes) -> list[int]:
    """The processes below this one whose command line has these letters."""
    found = []
    for pid in descendants(parent):
        with suppress(OSError):  # it has just ended
            if command in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", ["sampler.name=full", "deploy.evaluate=clients"]),
        ("fedbuff", ["algorithm.buffer_size=2", "run.rounds=3"]),
        ("safa", ["algorithm.fraction=0.6", "run.rounds=3"]),
    ],
)
def test_a_deployed_run_is_replayed(network: Network, name: str, options: list[str]) -> None:
    network.configure(f"algorithm.name={name}", *options)
    run = network.run(name)
    assert result(run)["audit"]["contributions"] >= 6
    found = network.replayed(run)
    assert found["difference"] == 0
    assert found["jobs"] >= 6


def test_a_client_killed_in_mid_round(network: Network) -> None:
    """Flower tells of it after about 40 seconds; the round ends without it, and the run with it, back again."""
    network.configure("sampler.name=full", f"run.rounds={MANY}")

    def kill(run: Path) -> None:
        until(lambda: (run / "checkpoints" / "000000001.safetensors").exists())
        stop_all([network.nodes[2]], 0.0)

    run = network.run("killed_client", kill)
    network.nodes[2] = network.start(2)
    lost = [row for row in jobs(run) if row["outcome"] != "arrived"]
    assert {(row["client"], row["weight"], row["outcome"]) for row in lost} == {(2, 0.0, "offline")}
    assert result(run)["audit"]["failures"] == {"offline": len(lost)}
    assert result(run)["rounds"] == MANY
    assert network.replayed(run)["difference"] == 0


def test_a_server_killed_in_mid_round(network: Network) -> None:
    network.configure("sampler.name=full", f"run.rounds={MANY}")

    def kill(run: Path) -> None:
        until(lambda: (run / "checkpoints" / "000000001.safetensors").exists())
        for pid in runs(network.link.child.pid, b"flwr-serverapp"):
            os.kill(pid, signal.SIGKILL)

    run = network.run("killed_server", kill)
    assert "resumed" in (run / "log.txt").read_text()
    names = [(row["client"], row["job"]) for row in jobs(run)]
    assert len(names) == len(set(names)) == 3 * MANY
    assert result(run)["audit"]["contributions"] == 3 * MANY
    assert network.replayed(run)["difference"] == 0


def test_a_killed_worker_costs_one_job(network: Network) -> None:
    """Its node stays where it is and tells the server; another worker does the next job."""
    network.configure("sampler.name=full", f"run.rounds={MANY}")
    node_before = network.nodes[1].pid
    (killed,) = until(lambda: runs(node_before, b"turnout.deploy.worker"))

    def kill(run: Path) -> None:
        until(lambda: (run / "checkpoints" / "000000001.safetensors").exists())
        os.kill(killed, signal.SIGKILL)

    run = network.run("killed_worker", kill)
    lost = [row for row in jobs(run) if row["outcome"] != "arrived"]
    assert [(row["client"], row["weight"], row["outcome"]) for row in lost] == [(1, 0.0, "crashed")]
    assert result(run)["audit"]["failures"] == {"crashed": 1}
    assert "its worker has ended by signal 9" in (run / "log.txt").read_text()
    assert len([row for row in jobs(run) if row["client"] == 1]) == MANY
    assert network.nodes[1].running()
    assert runs(node_before, b"turnout.deploy.worker") != [killed]
    assert network.replayed(run)["difference"] == 0


def test_clients_stay_when_the_superlink_is_started_again(network: Network) -> None:
    network.configure("sampler.name=full", "run.rounds=1")
    until(lambda: all("connected" in client.log.read_text() for client in network.nodes))
    network.link.__exit__()
    network.link.__enter__()
    run = network.run("superlink_again")
    assert sorted(row["client"] for row in jobs(run) if row["outcome"] == "arrived") == [0, 1, 2]
    assert all(client.running() for client in network.nodes)


def test_supernodes_compute_the_same_bits(network: Network) -> None:
    """Flower's own way, a process for every message. A median, since a mean rounds by the order of arrivals."""
    options = ["sampler.name=full", "rule.name=coordinate_median", "deploy.evaluate=clients"]
    network.configure(*options)
    loaded = network.run("loaded")
    network.configure(*options, supernode=True)
    until(lambda: runs(network.nodes[0].pid, b"flower-superexec"))
    supernodes = network.run("supernodes")
    assert (loaded / "model.safetensors").read_bytes() == (supernodes / "model.safetensors").read_bytes()
    assert result(loaded)["measures"] == result(supernodes)["measures"]


GARBAGE = """
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from turnout.deploy.client import Worker
from turnout.deploy.wire import apart

honest = Worker.train

def train(self, content):
    facts, arrays = apart(honest(self, content), "answer", "payload")
    delta = arrays["delta"]
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (12".ljust(117) + b"\\n"
    data = b"\\x93NUMPY\\x01\\x00" + len(header).to_bytes(2, "little") + header
    garbage = ArrayRecord({"delta": Array(delta.dtype, delta.shape, delta.stype, data)})
    return RecordDict({"answer": ConfigRecord(facts), "payload": garbage})

Worker.train = train
"""


def test_a_client_that_sends_garbage(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node has the right key: the run goes on to its end without it, and the log names it."""
    network.configure("sampler.name=full", "run.rounds=2")
    (tmp_path / "sitecustomize.py").write_text(GARBAGE)
    stop_all([network.nodes[1]])
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        network.nodes[1] = network.start(1)
    run = network.run("garbage")
    stop_all([network.nodes[1]])
    network.nodes[1] = network.start(1)
    assert result(run)["rounds"] == 2
    outcomes = {(row["client"], row["outcome"]) for row in jobs(run)}
    assert outcomes == {(0, "arrived"), (1, "rejected"), (2, "arrived")}
    assert "rejected reply" in (run / "log.txt").read_text()
    assert "client 1" in (run / "log.txt").read_text()
    assert network.replayed(run)["difference"] == 0


def test_a_node_with_a_wrong_key_or_without_the_certificate_is_refused(network: Network, tmp_path: Path) -> None:
    """Neither is ever asked anything; a run beside them goes on as if they were not there."""
    network.configure("sampler.name=full", "run.rounds=1")
    wrong_key, wrong_authority = tmp_path / "key", tmp_path / "authority"
    for folder in (wrong_key, wrong_authority):
        shutil.copytree(network.client(0), folder, ignore=shutil.ignore_patterns("flower", "memory", "*.log"))
    keys.make_node_key(wrong_key / "node.key")
    keys.make_certificates(wrong_authority, ["127.0.0.1"])
    strangers = [node(folder, network.link.address) for folder in (wrong_key, wrong_authority)]
    plain = [program("flower-supernode"), "--superlink", network.link.address, "--insecure", "--port", str(free_port())]
    plain += ["--node-config", f'{CLIENT_FOLDER}="{tmp_path}"']
    strangers.append(Child(plain, tmp_path / "plain.log", environment(tmp_path / "flower")))
    try:
        assert "does not admit this node" in until(lambda: not strangers[0].running() and strangers[0].tail(1))
        assert "is not vouched for by ca.pem" in until(lambda: not strangers[1].running() and strangers[1].tail(1))
        run = network.run("strangers")
        assert sorted(row["client"] for row in jobs(run)) == [0, 1, 2]
        assert not (wrong_key / "memory").exists()
        assert not (wrong_authority / "memory").exists()
        assert not (tmp_path / "memory").exists()
    finally:
        for child in strangers:
            stop_all([child])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_local_ends_everything_that_it_has_started(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "turnout", "deploy", "local", "3", "digits", "run.rounds=50"]
    turnout = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    nodes = until(lambda: len(descendants(turnout.pid)) >= 8 and descendants(turnout.pid))
    born = {pid: birth(pid) for pid in (*nodes, *descendants(turnout.pid))}
    turnout.send_signal(how)
    assert turnout.wait(timeout=60) != 0
    assert not [pid for pid, when in born.items() if when and birth(pid) == when]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with Network(tmp_path) as short_lived:
        family = [
            pid
            for child in (short_lived.link.child, *short_lived.nodes)
            for pid in (child.pid, *descendants(child.pid))
        ]
        assert len(read_clients(short_lived.link.folder / "clients.toml")) == 3
    assert not [pid for pid in family if birth(pid)]
