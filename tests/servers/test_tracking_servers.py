"""Trackers before real servers, read back over HTTP. Run by `make test-tracking`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support import experiment
from turnout import Observer, Result, UserError, execute
from turnout.record.tracking import TIME, MLflow, TensorBoard, Tracker
from turnout.server.observer import Round
from turnout.server.server import Server

SETTINGS: dict[str, dict[str, Any]] = {
    "algorithm": {"name": "windowed", "window": 0.5},
    "model": {f"option{i}": i for i in range(150)},
}
PATIENCE = 120  # seconds until a server must be up
hasty = count(0, 1000).__next__  # a clock by which every round is sent at once


class Crash(Observer):
    """Dies in a round, after all others have heard of it."""

    def on_round(self, server: Server, record: Round) -> None:
        if record.number == 5:
            raise KeyboardInterrupt


def crash_and_resume(make: Callable[[], Tracker], folder: Path) -> Result:
    """The same run, by two processes."""
    with pytest.raises(KeyboardInterrupt):
        execute(experiment("windowed", 7), folder, checkpoint_every=2, observers=[make(), Crash()])
    return execute(experiment("windowed", 7), folder, checkpoint_every=2, resume=True, observers=[make()])


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


@contextmanager
def serving(path: str, *words: str) -> Iterator[str]:
    """A server on a free port of this machine, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = [sys.executable, "-m", *words, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(log, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        _until(lambda: ask(address + path) is not None, process)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    last = time.monotonic() + PATIENCE
    while time.monotonic() < last and process.poll() is None:
        try:
            if done():
                return
        except (OSError, KeyError):
            pass
        time.sleep(0.2)
    process.terminate()
    raise AssertionError(process.communicate()[0])


def wanted(result: Result, name: str) -> dict[int, float]:
    rounds = result.rounds()
    return dict(zip(rounds["round"].tolist(), rounds["time" if name == TIME else name].tolist(), strict=True))


# -- MLflow ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    places = ("--backend-store-uri", f"sqlite:///{folder}/db", "--default-artifact-root", str(folder / "artifacts"))
    with serving("/health", "mlflow", "server", *places, "--workers", "1") as address:
        yield address


def history(address: str, run_id: str, name: str) -> list[tuple[int, float]]:
    query = urllib.parse.urlencode({"run_id": run_id, "metric_key": name})
    metrics = ask(f"{address}/api/2.0/mlflow/metrics/get-history?{query}")["metrics"]
    return [(int(metric.get("step", 0)), float(metric["value"])) for metric in metrics]


def test_mlflow_server_has_every_round_once(mlflow_server: str, tmp_path: Path) -> None:
    result = crash_and_resume(lambda: MLflow(mlflow_server, SETTINGS, run_name="mine", clock=hasty), tmp_path)
    found = ask(f"{mlflow_server}/api/2.0/mlflow/experiments/get-by-name?experiment_name=turnout")["experiment"]
    (run,) = ask(f"{mlflow_server}/api/2.0/mlflow/runs/search", {"experiment_ids": [found["experiment_id"]]})["runs"]
    assert (run["info"]["run_name"], run["info"]["status"]) == ("mine", "FINISHED")
    options = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert len(options) == 152
    assert (options["algorithm.name"], options["model.option149"]) == ("windowed", "149")
    for name in (TIME, "test_accuracy", "train_loss_worst_decile", "used"):
        points = history(mlflow_server, run["info"]["run_id"], name)
        expected = {n: v for n, v in wanted(result, name).items() if n or name != "used"}
        assert sorted(n for n, _ in points) == sorted(expected)
        assert dict(points) == pytest.approx(expected)


def test_mlflow_database_without_a_server(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/runs.db"
    result = crash_and_resume(lambda: MLflow(uri, clock=hasty), tmp_path / "run")
    client = mlflow.MlflowClient(uri)
    number = client.get_experiment_by_name("turnout").experiment_id
    (run,) = client.search_runs([number])
    points = client.get_metric_history(run.info.run_id, "test_accuracy")
    assert [point.step for point in points] == list(range(8))
    assert run.data.metrics["test_accuracy"] == pytest.approx(result.measures["test_accuracy"])


def test_mlflow_that_cannot_be_used() -> None:
    pytest.importorskip("mlflow")
    with pytest.raises(UserError, match=r"--mlflow: mlruns cannot be used \(.*\); give a server or sqlite:///FILE"):
        MLflow("mlruns")


# -- TensorBoard ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", ["true", "false"])
def test_tensorboard_server_has_every_round_once(tmp_path: Path, fast: str) -> None:
    """With both of its readers."""
    pytest.importorskip("tensorboard")
    result = crash_and_resume(lambda: TensorBoard(tmp_path / "board" / "mine", SETTINGS), tmp_path / "run")
    words = ("tensorboard.main", "--logdir", str(tmp_path / "board"), "--load_fast", fast)
    with serving("/data/runs", *words) as address:
        query = f"{address}/data/plugin/scalars/scalars?run=mine&tag="
        last = time.monotonic() + PATIENCE
        while "mine" not in ask(f"{address}/data/runs") and time.monotonic() < last:
            time.sleep(0.2)
        for name in (TIME, "test_accuracy", "used"):
            points = {int(step): value for _, step, value in ask(query + name)}
            assert len(ask(query + name)) == len(points)
            expected = {n: v for n, v in wanted(result, name).items() if n or name != "used"}
            assert points == pytest.approx(expected, rel=1e-6)
