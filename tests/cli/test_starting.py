"""Warm starts, a changed option on resume, and several seeds in one command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from terminal import Terminal

from turnout.report.read import recorded

SMALL = ("digits", "clients.count=4", "sampler.name=full", "run.report=false", "engine.threads=1")


def model(folder: str, name: str = "model") -> dict[str, torch.Tensor]:
    return load_file(f"{folder}/{name}.safetensors")


def alike(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_run_begins_with_the_model_of_another(terminal: Terminal) -> None:
    """And goes on with the same bits when that is gone."""
    terminal.done("run", *SMALL, "run.rounds=2", "run.name=a")
    new = (*SMALL, "run.rounds=4", "run.checkpoint_every=1", "local.lr=0.05", "--from", "runs/a")
    terminal.done("run", *new, "run.name=b")
    terminal.done("run", *new, "run.name=c", "run.rounds=2")
    assert alike(model("runs/b", "start"), model("runs/a"))
    first, last = recorded("runs/b").rounds(), recorded("runs/a").rounds()
    assert first["train_loss"][0] == last["train_loss"][-1]
    assert 'start = "runs/a"' in Path("runs/c/config.toml").read_text()
    assert "run.start=runs/b instead of runs/a" in terminal.refused("resume", "runs/c", "run.start=runs/b")
    shutil.rmtree("runs/a")
    terminal.done("resume", "runs/c", "run.rounds=4")
    assert alike(model("runs/c"), model("runs/b"))
    save_file({name: value + 1 for name, value in model("runs/c").items()}, "runs/c/start.safetensors")
    assert "start.safetensors is damaged" in terminal.refused("resume", "runs/c", "run.rounds=5")


def test_what_a_run_cannot_begin_with(terminal: Terminal) -> None:
    terminal.done("run", *SMALL, "run.rounds=1", "run.name=a")
    said = terminal.refused("run", *SMALL, "--from", "runs/a", "model.hidden=[8]")
    assert "run.start: 1.weight is [32, 64] in runs/a and [8, 64] in this model" in said
    assert "run.start: runs/zz cannot be read" in terminal.refused("run", *SMALL, "--from", "runs/zz")
    Path("runs/a/model.safetensors").write_bytes(b"nothing")
    assert "model.safetensors is damaged" in terminal.refused("run", *SMALL, "--from", "runs/a")
    Path("runs/a/model.safetensors").unlink()
    Path("runs/a/manifest.json").unlink()
    assert "has no model.safetensors; give the folder of a finished run" in terminal.refused(
        "run", *SMALL, "--from", "runs/a"
    )
    assert not Path("runs/digits").exists()


def test_what_cannot_forget(terminal: Terminal) -> None:
    """A client may count in a model that is kept, or that a run began with."""
    terminal.done("run", *SMALL, "run.rounds=1", "run.name=a")
    terminal.done("run", *SMALL, "run.rounds=1", "run.name=b", "--from", "runs/a")
    assert "the run begins with the model of runs/a" in terminal.refused(
        "unlearn", "runs/b", "--client", "0", "--from-scratch"
    )
    judged = ("clients.validation_fraction=0.3", "run.judge=validation_loss", "run.name=c")
    assert "Best by validation_loss" in terminal.done("run", *SMALL, "run.rounds=1", *judged).out
    assert "the best model is kept beside the last" in terminal.refused(
        "unlearn", "runs/c", "--client", "0", "--from-scratch"
    )


def test_a_changed_option_is_named_and_a_way_shown(terminal: Terminal) -> None:
    terminal.done("run", *SMALL, "run.rounds=1", "run.name=a")
    said = terminal.refused("resume", "runs/a", "local.lr=0.05", "run.rounds=3")
    assert said.startswith("resume: local.lr=0.05 instead of 0.3 is another configuration")
    command = said.rpartition("this one's model: ")[2].strip()
    assert command == "turnout run runs/a/config.toml --from runs/a local.lr=0.05 run.rounds=3"
    terminal.done(*command.split()[1:])
    assert recorded("runs/a-2").config["local"]["lr"] == 0.05
    assert "local.lr=0.1 instead of 0.3" in terminal.refused("run", *SMALL, "run.name=a", "local.lr=0.1", "--resume")


def test_several_seeds_are_one_summary(terminal: Terminal) -> None:
    """With an interval; the same command again runs nothing; a file may ask for them."""
    words = ("run", *SMALL[:3], "run.rounds=1", "run.report=false", "run.seeds=0..2")
    document = terminal.done(*words, "--json").json()
    (row,) = document["rows"]
    quantity = row["quantities"]["test_accuracy"]
    assert row["seeds"] == [0, 1, 2] and len(set(quantity["values"])) > 1
    from turnout.core.statistics import interval

    assert [quantity["mean"], quantity["half_width"]] == pytest.approx(interval(quantity["values"]))
    assert Path(document["sweep"]) == Path("runs/digits-seeds")
    again = terminal.done(*words)
    assert "Means over 3 seeds" in again.out
    assert json.loads(terminal.done(*words, "--json").out)["rows"] == document["rows"]
    single = terminal.done("run", *SMALL, "run.rounds=1", "run.seed=1", "run.name=one", "--json").json()
    assert single["measures"]["test_accuracy"] == quantity["values"][1]


def test_seeds_that_are_refused(terminal: Terminal) -> None:
    assert "are not whole numbers; write 0..4" in terminal.refused("run", *SMALL, "run.seeds=a,b")
    assert "run.seeds asks for several" in terminal.refused("run", *SMALL, "run.seeds=0..1", "run.seed=3")
    assert "--overwrite: it is for one run" in terminal.refused("run", *SMALL, "run.seeds=0..1", "--overwrite")
    assert "run.seeds: 0..1 are several runs" in terminal.refused("plan", *SMALL, "run.seeds=0..1")
