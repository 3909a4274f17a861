"""Every file of a finished run is damaged in turn, and every command that reads a run names it: nothing is silent.

A sample of all combinations runs with the others; `make test-walk` takes them all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from terminal import Terminal, bits

from turnout.deploy.presence import Timeline
from turnout.record.run_folder import damage, reseal

WHOLE_WALK = os.environ.get("TURNOUT_WALK") == "all"
EVERY = 1 if WHOLE_WALK else 13  # of the combinations
WORDS = (
    "clients.count=6", "sampler.name=full", "run.rounds=5", "run.checkpoint_every=2", "engine.threads=1",
    "unlearning.track=true", 'detectors.names=["alignment"]',
)  # fmt: skip


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def removed(path: Path) -> None:
    path.unlink()


DAMAGES: tuple[Callable[[Path], None], ...] = (flipped, cut, removed)
COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": (),
    "report": ("--out", "page.html"),
    "compare": (),
    "attack": (),
    "replay": (),
    "resume": (),
    "unlearn": ("--client", "2", "--dry-run"),
}


def covered(folder: Path) -> list[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if not Path(name).name.startswith("."))


@pytest.fixture()
def finished(terminal: Terminal) -> Path:
    terminal.done("run", "digits", *WORDS, "run.name=a")
    folder = Path("runs/a")
    timeline = Timeline(folder / "arrivals")  # as a deployed run has
    timeline.note(0.0, "joined", 0)
    timeline.table.flush()
    reseal(folder)
    return folder


def test_every_file_of_a_run_is_in_its_manifest(finished: Path) -> None:
    assert damage(finished) == {}
    for name in set(covered(finished)) - {"manifest.json"}:
        kept = (finished / name).read_bytes()
        removed(finished / name)
        assert list(damage(finished)) == [name]
        (finished / name).write_bytes(kept)


def test_damage_is_named_by_every_command(terminal: Terminal, finished: Path) -> None:
    whole = bits(finished)
    cases = [(c, d, n) for c in COMMANDS for d in DAMAGES for n in covered(finished)]
    for number, (command, harm, name) in enumerate(cases):
        if number % EVERY:
            continue
        shutil.copytree(finished, "runs/b")
        harm(Path("runs/b") / name)
        answer = terminal(command, "runs/b", *COMMANDS[command])
        assert name in answer.err.replace("\n", ""), (command, harm.__name__, name, answer)
        assert answer.code in (0, 2)
        if command == "resume" and answer.code == 0:  # what a checkpoint allows is restored
            assert damage(Path("runs/b")) == {}
            assert bits(Path("runs/b")) == whole
        shutil.rmtree("runs/b")


def test_a_record_that_no_checkpoint_can_restore_is_refused(terminal: Terminal, finished: Path) -> None:
    removed(finished / "history" / "000000.parquet")
    sentence = terminal.refused("resume", "runs/a", "run.rounds=6")
    assert "history/000000.parquet, which is missing" in sentence
    assert "start the run again" in sentence


def test_an_unfinished_run_goes_on_only_with_a_whole_record(terminal: Terminal, finished: Path) -> None:
    """The run was killed after its last checkpoint: there is no result, and rows of later rounds are not known."""
    for name in ("result.json", "model.safetensors", "clients.parquet", "report.html"):
        removed(finished / name)
    reseal(finished)
    whole = terminal.done("resume", "runs/a", "--json").json()
    assert whole["rounds"] == 5
    flipped(finished / "jobs" / "000000.parquet")
    assert "jobs/000000.parquet, which is damaged" in terminal.refused("resume", "runs/a")
