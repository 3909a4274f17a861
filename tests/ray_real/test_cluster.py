"""A cluster of two Ray nodes on this machine, one of which dies in mid-round. Run by `make test-ray`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import turnout

SECONDS = 240  # that one run on the cluster may take
HEAD, OTHER = "127.0.0.2", "127.0.0.3"  # loopback both: Ray knows a node by its address, and would replace 127.0.0.1
_FOUND = os.pathsep.join([str(Path(turnout.__file__).parents[1]), str(Path(__file__).parents[1])])
ENVIRONMENT = os.environ | {
    "PYTHONPATH": _FOUND,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "of-this-test-alone-0123456789abcdef",
    "RAY_health_check_period_ms": "500",  # a node that is dead is known to be in seconds, not in a minute
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}

# What trains: arguments are the cluster's address, a file for the model, and the first process of a node that is to
# die (0: none does) as soon as so many requests of a kind have been sent to workers.
DRIVER = """
import os, signal, sys
import numpy as np, torch
import turnout
from support import WORLD, experiment, population
from test_cluster import tree
from turnout.engine.ray_pool import RayPool

address, file, victim, kind, at = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
submit, begin, pools, begun_with, sent = RayPool.submit, RayPool.__init__, [], [], []

def counted(pool, worker, method, *arguments):
    asked = submit(pool, worker, method, *arguments)
    if method == kind:
        sent.append(worker)
        for pid in tree(victim) if victim and len(sent) == at else ():
            os.kill(pid, signal.SIGKILL)
    return asked

def begun(pool, *arguments):
    begin(pool, *arguments)
    pools.append(pool)
    begun_with.append(len(pool.workers))

RayPool.submit, RayPool.__init__ = counted, begun

def wide():
    return torch.nn.Sequential(torch.nn.Linear(5, 800), torch.nn.Tanh(), torch.nn.Linear(800, 3))

plan = turnout.Plan(engine="ray", address=address, workers=4, threads=1, blocks=8)
people = population(**WORLD | {"links": turnout.Links()})
result = turnout.execute(experiment("windowed", 5, wide, people=people, plan=plan))
np.savez(file, model=result.model.numpy(), begun=begun_with, left=len(pools[0].workers), sent=len(sent))
"""


def tree(root: int) -> list[int]:
    """List a process and all below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


@contextmanager
def node(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a Ray node with two places for workers, which ends with all its processes."""
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--disable-usage-stats"]
    started = subprocess.Popen(
        [*start, "--object-store-memory=100000000", *words],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield started
    finally:
        for pid in tree(started.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        started.wait()


def free_port() -> int:
    with socket.create_server((HEAD, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_for(what: str, true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, f"{what} within {SECONDS} s"


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """Start the first node; gives its address."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # a short path: there are sockets in it
        words = f"--node-ip-address={HEAD}", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"
        with node("--head", *words):
            wait_for("the head listens", lambda: _listens(port))
            yield f"{HEAD}:{port}"


@pytest.fixture()
def other(head: str) -> Iterator[int]:
    """Start a second node; gives the number of its first process."""
    with node(f"--address={head}", f"--node-ip-address={OTHER}") as started:
        wait_for("the other node joins", lambda: alive(head) == sorted([HEAD, OTHER]))
        yield started.pid


@pytest.fixture(scope="module")
def undisturbed(head: str, tmp_path_factory: pytest.TempPathFactory) -> NDArray[Any]:
    """Train on two nodes that live."""
    with node(f"--address={head}", f"--node-ip-address={OTHER}"):
        wait_for("the other node joins", lambda: alive(head) == sorted([HEAD, OTHER]))
        model, begun, left = train(head, tmp_path_factory.mktemp("whole") / "left.npz")
    assert begun == left == 4
    wait_for("the other node is known to be gone", lambda: alive(head) == [HEAD])
    return model


def alive(address: str) -> list[str]:
    """List the addresses of the nodes, as a process of its own is told."""
    words = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR'); "
    words += "print(*sorted(node['NodeManagerAddress'] for node in ray.nodes() if node['Alive']))"
    done = subprocess.run(
        [sys.executable, "-c", words, address], capture_output=True, text=True, env=ENVIRONMENT, timeout=SECONDS
    )
    return done.stdout.split()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HEAD, port), timeout=1):
        return True
    return False


def train(address: str, file: Path, victim: int = 0, kind: str = "train", at: int = 0) -> tuple[NDArray[Any], int, int]:
    """Train on the cluster: the model, and how many workers there were at the beginning and at the end."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, address, str(file), str(victim), kind, str(at)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([_FOUND, str(Path(__file__).parent)])},
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    left = np.load(file)
    assert left["sent"] > at, "the run was over before"
    return left["model"], int(left["begun"].item()), int(left["left"])


@pytest.mark.parametrize(("kind", "at"), [("train", 11), ("look", 6)])
def test_a_node_killed_in_mid_round_changes_no_bit(
    head: str, undisturbed: NDArray[Any], other: int, tmp_path: Path, kind: str, at: int
) -> None:
    """While blocks of the second training call are on their way, or while they are added up where they are."""
    model, begun, left = train(head, tmp_path / "left.npz", other, kind, at)
    assert (begun, left) == (4, 2)
    assert np.array_equal(model, undisturbed)
    assert alive(head) == [HEAD]
