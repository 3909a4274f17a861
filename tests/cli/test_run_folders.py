"""Folders of runs: names, locks, what is replaced when, and what a full disk leaves behind."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from terminal import Terminal, bits

import turnout
from support import experiment
from turnout.config import config
from turnout.core import files
from turnout.core.errors import UserError
from turnout.record.run_folder import RunFolder, damage, locked
from turnout_studies import find as find_study

TINY = ("clients.count=4", "sampler.name=full", "run.rounds=3", "engine.threads=1")


# -- names ----------------------------------------------------------------------------------------------------


def test_a_new_run_takes_the_next_free_name_and_says_where_it_is(terminal: Terminal) -> None:
    for name in ("digits", "digits-2", "digits-3"):
        shown = terminal.done("run", "digits", *TINY).out
        assert f"Report: runs/{name}/report.html" in shown
        assert f"runs/{name}: 3 rounds" in shown
        written = config.toml(f"runs/{name}/config.toml")
        assert written["run"]["name"] == name
    assert "runs/digits already holds a run" in terminal.refused("run", "digits", *TINY, "run.name=digits")
    terminal.done("run", "digits", *TINY, "--overwrite")
    assert not Path("runs/digits-4").exists()


@pytest.mark.parametrize("letters", [300, 5000])
def test_a_name_that_no_file_can_have(terminal: Terminal, letters: int) -> None:
    assert "run.name" in terminal.refused("run", "digits", *TINY, f"run.name={'a' * letters}")


def test_a_folder_that_cannot_be_made(terminal: Terminal) -> None:
    Path("plain").write_text("a file")
    sentence = terminal.refused("run", "digits", *TINY, "run.folder=plain/runs")
    assert "plain" in sentence
    assert "cannot be written" in sentence


# -- one process at a time ------------------------------------------------------------------------------------


def test_a_second_process_gets_a_sentence(terminal: Terminal) -> None:
    terminal.done("run", "digits", *TINY, "run.name=a", "unlearning.track=true")
    before = bits(Path("runs/a"))
    with locked(Path("runs/a")):
        for words in (
            ("resume", "runs/a", "run.rounds=4"),
            ("run", "digits", *TINY, "run.name=a", "--overwrite"),
            ("unlearn", "runs/a", "--client", "1"),
        ):
            assert "another process is working on it" in terminal.refused(*words)
    assert bits(Path("runs/a")) == before
    terminal.done("resume", "runs/a", "run.rounds=4")
    assert not list(Path("runs").glob(".*"))


def test_a_study_is_run_by_one_process_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "study"), pytest.raises(UserError, match="another process is working on it"):
        find_study("stream_weights").run("small", [0], tmp_path / "study")


# -- replacing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [UserError("not so"), RuntimeError("a bug")])
def test_an_old_run_is_there_until_the_new_one_has_a_checkpoint(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    terminal.done("run", "digits", *TINY, "run.name=a")
    before = bits(Path("runs/a"))

    def refuse(*_: Any) -> None:
        assert Path("runs/.a.replaced/model.safetensors").exists()  # aside, not gone
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(turnout.FedAvg, "begin", refuse)
        with suppress(RuntimeError):
            assert terminal("run", "digits", *TINY, "run.name=a", "--overwrite").code == 2
    assert bits(Path("runs/a")) == before
    assert damage(Path("runs/a")) == {}
    assert not list(Path("runs").glob(".*"))
    terminal.done("run", "digits", *TINY, "run.name=a", "run.rounds=2", "--overwrite")
    assert bits(Path("runs/a")) != before
    assert not list(Path("runs").glob(".*"))


def test_a_refused_deployment_removes_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.done("run", "digits", *TINY)
    before = bits(Path("runs/digits"))
    monkeypatch.setitem(sys.modules, "flwr", None)  # Flower is not installed
    assert "Flower is not installed" in terminal.refused("deploy", "local", "3", "digits", "--overwrite")
    assert bits(Path("runs/digits")) == before


def test_a_killed_replacement_gives_the_old_run_back(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    turnout.execute(experiment("fedavg", rounds=2), folder)
    before = bits(folder)
    RunFolder(folder).make(overwrite=True)  # and then the process is killed
    with pytest.raises(UserError, match="already holds a run"):
        turnout.execute(experiment("fedavg", rounds=2), folder)
    assert bits(folder) == before


# -- a disk that is full --------------------------------------------------------------------------------------


class FullDisk:
    """Counts what is written, and has no room from the chosen write on."""

    def __init__(self, patch: pytest.MonkeyPatch, full_at: int | None = None) -> None:
        self.writes, self.full_at = 0, full_at
        for place, name in ((files, "_sync"), (files, "_save_tensors"), (Path, "write_text")):
            patch.setattr(place, name, self._checked(getattr(place, name)))
        patch.setattr("turnout.record.log.append_lines", self._checked(files.append_lines, "appended"))

    def _checked(self, write: Any, kind: str = "") -> Any:
        def checked(path: Path, *arguments: Any, **options: Any) -> None:
            self.writes += 1
            if self.full_at is not None and self.writes >= self.full_at:
                error = OSError(errno.ENOSPC, "No space left on device", str(path))
                raise files.cannot_write(path, error) if kind else error
            write(path, *arguments, **options)

        return checked


def test_a_full_disk_is_a_sentence_and_the_run_goes_on_once_there_is_room(terminal: Terminal) -> None:
    words = ("run", "digits", *TINY, "run.checkpoint_every=2", "run.report=false")
    terminal.done(*words, "run.name=whole")
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch)
        terminal.done(*words, "run.name=counted")
    assert disk.writes > 20
    whole = load_file("runs/whole/model.safetensors")
    for full_at in range(1, disk.writes + 1, 3):
        shutil.rmtree("runs/full", ignore_errors=True)
        with pytest.MonkeyPatch.context() as patch:
            FullDisk(patch, full_at)
            sentence = terminal.refused(*words, "run.name=full")
        assert "cannot be written (No space left on device); free some" in sentence
        assert not list(Path("runs").rglob("*.partial"))
        if Path("runs/full").exists():
            terminal.done("resume", "runs/full")
            found = load_file("runs/full/model.safetensors")
            assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_safetensors_says_why_it_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(UserError, match=r"model: cannot be written \(No space left on device\); free some"):
        files.write_tensors(tmp_path / "model", {"a": torch.zeros(3)})


# -- threads --------------------------------------------------------------------------------------------------


def test_the_number_of_threads_is_written_down(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits depend on it: a run that is carried out elsewhere must have as many."""
    monkeypatch.setattr("turnout.engine.plan.os.cpu_count", lambda: 1)
    terminal.done("run", "digits", "clients.count=4", "sampler.name=full", "run.rounds=1", "run.name=a")
    assert config.toml("runs/a/config.toml")["engine"]["threads"] == 1
    assert json.loads(Path("runs/a/plan.json").read_text())["threads"] == 1
    monkeypatch.setattr("turnout.engine.plan.os.cpu_count", lambda: 64)  # another machine
    document = terminal.done("resume", "runs/a", "run.rounds=2", "--json").json()
    assert document["rounds"] == 2
    assert json.loads(Path("runs/a/plan.json").read_text())["threads"] == 1
    assert "another configuration" in terminal.refused("resume", "runs/a", "engine.threads=2")


def test_a_run_of_the_version_before_goes_on(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no manifest, and says `threads = 0` for all cores."""
    monkeypatch.setattr("turnout.engine.plan.os.cpu_count", lambda: 1)
    own = ["clients.count=4", "sampler.name=full", "run.checkpoint_every=2"]
    terminal.done("run", "digits", *own, "run.name=whole", "run.rounds=4")
    built, _, complete = config.build(config.read("digits", [*own, "run.name=a", "run.rounds=2"]))
    assert built.former != built.fingerprint
    built.fingerprint = built.former
    complete["engine"]["threads"] = 0
    turnout.execute(built, Path("runs/a"), checkpoint_every=2, configuration=config.as_toml(complete))
    plan = json.loads(Path("runs/a/plan.json").read_text())
    del plan["format"]
    Path("runs/a/plan.json").write_text(json.dumps(plan))
    Path("runs/a/manifest.json").unlink()
    terminal.done("resume", "runs/a", "run.rounds=4")
    assert bits(Path("runs/a"))["model"] == bits(Path("runs/whole"))["model"]


def test_a_machine_without_memory_is_a_sentence(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(turnout.FedAvg, "run", full)
    answer = terminal("run", "digits", *TINY)
    assert answer.code == 1
    assert "too little memory" in answer.err
