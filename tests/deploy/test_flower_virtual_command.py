"""`turnout simulate-flower`."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from safetensors.torch import load_file

from cli.terminal import Terminal
from deploy.flower_apps import NUMPY, kind

WORLD = """
[clients]
count = 3
[devices]
name = "table"
source = [1.0, 1.5, 4.0]
[data]
name = "an app brings its own"
"""
FEDBUFF = ("--algorithm", "fedbuff", "algorithm.buffer_size=2", "--rounds", "4")


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.toml").write_text(WORLD, encoding="utf-8")
    return Terminal(tmp_path)


def simulated(terminal: Terminal, *words: str) -> Any:
    common = ("simulate-flower", str(NUMPY), "--population", "world.toml", "engine.threads=1")
    return json.loads(terminal.done(*common, *words, "--json").out)


def test_a_run_like_any_other(terminal: Terminal) -> None:
    """It can be inspected, and gone on with."""
    found = simulated(terminal, *FEDBUFF, "--out", "runs/a", "--seed", "5", "--run-config", "lr=0.25")
    assert found["rounds"] == 4
    shown = json.loads(terminal.done("inspect", "runs/a", "--json").out)
    assert shown["virtual_seconds"] == found["virtual_seconds"]
    settings = tomllib.loads(Path("runs/a/config.toml").read_text(encoding="utf-8"))
    assert settings["flower"] == {"app": str(NUMPY.resolve()), "run_config": {"lr": 0.25}, "samples": [10, 15, 20]}
    assert set(load_file("runs/a/model.safetensors")) == {"0", "1"}
    terminal.done("resume", "runs/a", "run.rounds=6")
    longer = simulated(terminal, *FEDBUFF, "--out", "runs/b", "--seed", "5", "--run-config", "lr=0.25", "--rounds", "6")
    resumed = json.loads(terminal.done("inspect", "runs/a", "--json").out)
    assert resumed["measures"] == longer["measures"]


def test_the_app_leads(terminal: Terminal) -> None:
    """As many rounds as it says, without an algorithm in the record; resumed, it is repeated."""
    found = simulated(terminal, "run.checkpoint_every=1")
    assert (found["rounds"], found["stopped"]) == (3, "the app has ended")
    assert "algorithm" not in tomllib.loads(Path("runs/numpy_app/config.toml").read_text(encoding="utf-8"))
    assert json.loads(terminal.done("resume", "runs/numpy_app", "--json").out)["measures"] == found["measures"]
    shorter = simulated(terminal, "--rounds", "1", "--overwrite")
    assert (shorter["rounds"], shorter["stopped"]) == (1, "the app has ended")  # told so, not cut short


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere",), "flower.app: nowhere is not the folder of a Flower app"),
        ((".",), "flower.app: . is not the folder of a Flower app"),
        (("other",), "it must name clientapp and serverapp"),
        (("broken",), "flower.app: client:app cannot be imported (ModuleNotFoundError"),
        (("wrong",), "flower.app: json:dumps is a function, not a ClientApp"),
        ((str(NUMPY), "data.name=mnist"), "data: a Flower app brings its own"),
        ((str(NUMPY), "local.lr=1"), "local.lr: unknown option"),
        ((str(NUMPY), "flower.samples=[1]"), "flower.samples: a number above 0 for each of 3 clients"),
        ((str(NUMPY), "--run-config", "speed=1"), "flower.run_config: the app has no 'speed'"),
        ((str(NUMPY), "--algorithm", "fedovg"), "did you mean fedavg?"),
        ((str(NUMPY), "--population", "mars"), "unknown name 'mars'"),
    ],
)
def test_mistakes(terminal: Terminal, words: tuple[str, ...], sentence: str) -> None:
    """One sentence, exit code 2, nothing written."""
    apps = {"other": "", "broken": "client:app", "wrong": "json:dumps"}
    for name, client in apps.items():
        (terminal.here / name).mkdir()
        text = f'[tool.flwr.app.components]\nclientapp = "{client}"\nserverapp = "server_app:app"\n' if client else ""
        (terminal.here / name / "pyproject.toml").write_text(text, encoding="utf-8")
    population = () if "--population" in words else ("--population", "world.toml")
    assert sentence in terminal.refused("simulate-flower", *words, *population)
    assert not Path("runs").exists()


def test_a_mistake_of_the_app(terminal: Terminal) -> None:
    """One sentence and exit code 2; the folder is kept for its log, and the next run takes another."""
    app = kind(terminal.here / "app", "failing:client", "failing:server")
    for folder in ("runs/app", "runs/app-2"):
        said = terminal.refused("simulate-flower", str(app), "--population", "world.toml")
        assert "its ServerApp fails (" in said and ", in total)); the traceback is in the log.txt of the run" in said
        assert "Traceback" not in said
        assert "LookupError: no such column" in Path(folder, "log.txt").read_text(encoding="utf-8")


def test_without_flower(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.cli.flower.find_spec", lambda name: None if name == "flwr" else importlib.util)
    said = terminal.refused("simulate-flower", str(NUMPY), "--population", "world.toml")
    assert said.startswith('flower.app: Flower is not installed; pip install -e ".[flower]" in the checkout of Turnout')
