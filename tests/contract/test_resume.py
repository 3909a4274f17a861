"""Invariant 4: kill the process at any moment, resume, and get the same bits as the uninterrupted run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import turnout
from support import ALGORITHMS, conv, experiment, same
from turnout.core import files
from turnout.core.errors import UserError
from turnout.record.run_folder import damage
from turnout.server.checkpoint import Checkpoints


class Crash(BaseException):
    """Somebody interrupts."""


class Moments:
    """Calls `at` with the number of every moment whose crash would leave the files as no other does: half of a file
    written, all of it, its name given."""

    def __init__(self, patch: pytest.MonkeyPatch, at: Callable[[int], None]) -> None:
        self.number, self.at = 0, at
        self._replace, self._sync, self._durably = os.replace, files._sync, files.write_durably
        patch.setattr(os, "replace", self._name)
        patch.setattr(files, "_sync", self._synced)
        for user in ("turnout.run.experiment", "turnout.record.history"):
            patch.setattr(f"{user}.write_durably", self._write)
        patch.setattr(files, "write_durably", self._write)

    def _pass(self) -> None:
        self.number += 1
        self.at(self.number)

    def _name(self, partial: Path, path: Path) -> None:
        self._pass()
        self._replace(partial, path)

    def _synced(self, path: Path) -> None:
        if path.is_dir():
            self._pass()
        self._sync(path)

    def _write(self, path: Path, write: Callable[[Path], object]) -> None:
        def torn(partial: Path) -> None:
            write(partial)
            whole = partial.read_bytes()
            partial.write_bytes(whole[: len(whole) // 2])
            self._pass()
            partial.write_bytes(whole)

        self._durably(path, torn)


def outcome(result: turnout.Result) -> tuple[torch.Tensor, Any, Any, Any]:
    return result.model, result.rounds(), result.jobs(), result.summary()


def assert_same(one: turnout.Result, two: turnout.Result) -> None:
    (model, rounds, jobs, summary), (model2, rounds2, jobs2, summary2) = outcome(one), outcome(two)
    assert torch.equal(model, model2)
    assert same(rounds, rounds2)
    assert same(jobs, jobs2)
    events = summary["audit"].pop("events"), summary2["audit"].pop("events")
    of_resuming = ("resumed", "restarted", "damaged_checkpoint", "damaged_file")
    one_kind, two_kind = ({k: v for k, v in some.items() if k not in of_resuming} for some in events)
    assert one_kind == two_kind
    assert summary == summary2


THOROUGH = "stateful"  # with jobs in flight, and clients that keep something


def four_rounds(name: str, folder: Path, resume: bool = False) -> turnout.Result:
    return turnout.execute(experiment(name, rounds=4), folder, checkpoint_every=2, resume=resume)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_power_goes_at_any_moment(name: str, tmp_path: Path) -> None:
    """What is on the disk at that moment is kept, and gone on with."""
    every = 1 if name == THOROUGH else 12  # the others take turns: each moment is that of every twelfth of them
    turn, whole, kept = ALGORITHMS.index(name) % every, tmp_path / "whole", list[Path]()

    def keep(number: int) -> None:
        if number % every == turn:
            kept.append(Path(shutil.copytree(whole, tmp_path / f"at{number}")))

    with pytest.MonkeyPatch.context() as patch:
        moments = Moments(patch, keep)
        reference = four_rounds(name, whole)
    assert moments.number > 20 and len(kept) >= moments.number // every
    for folder in kept:
        resumed = four_rounds(name, folder, resume=True)
        assert not {"damaged_file", "damaged_checkpoint"} & resumed.summary()["audit"]["events"].keys()
        assert_same(reference, resumed)
        assert damage(folder) == {}


def test_who_is_interrupted_tidies_nothing_away(tmp_path: Path) -> None:
    """At every eighth moment: what a process does on its way out leaves as much as a power cut, but nothing
    of a run that has no checkpoint yet."""
    reference, number, ended = turnout.execute(experiment(THOROUGH, rounds=4)), 1, False
    left = list[bool]()

    def crash(now: int) -> None:
        if now == number:
            raise Crash

    while not ended:
        folder = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch:
            Moments(patch, crash)
            try:
                four_rounds(THOROUGH, folder)
                ended = True
            except Crash:
                pass
        if not ended:
            left.append(folder.exists())
        if not ended and folder.exists():
            assert_same(reference, four_rounds(THOROUGH, folder, resume=True))
        number += 8
    assert left == sorted(left) and 0 < sum(left) < len(left) and number > 40


@pytest.mark.parametrize("name", ["windowed", "standing", "continuing", "scaffold"])
def test_checkpoint_frequency_changes_no_bit(name: str, tmp_path: Path) -> None:
    results = [turnout.execute(experiment(name), tmp_path / str(n), checkpoint_every=n) for n in (1, 2, 5)]
    results.append(turnout.execute(experiment(name)))
    for other in results[1:]:
        assert_same(results[0], other)


@pytest.mark.parametrize("name", ["fedavg", "windowed", "scaffold"])
def test_resume_from_every_round(name: str, tmp_path: Path) -> None:
    reference = turnout.execute(experiment(name, rounds=5))
    for stop in range(5):
        turnout.execute(experiment(name, rounds=stop), tmp_path / str(stop), checkpoint_every=1)
        assert_same(
            reference,
            turnout.execute(experiment(name, rounds=5), tmp_path / str(stop), checkpoint_every=1, resume=True),
        )


def test_conv_model_with_jobs_in_flight_and_trained_payloads_resumes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 6, "model": conv}
    reference = turnout.execute(experiment("windowed", **options))
    turnout.execute(experiment("windowed", **{**options, "rounds": 3}), tmp_path, checkpoint_every=1)
    saved = Checkpoints(tmp_path / "checkpoints")._read(sorted((tmp_path / "checkpoints").iterdir())[-1])[0]
    rows = [saved["jobs"]["rows"][i] for i in saved["places"]["in_flight"]]
    assert any(row["result"] is not None for row in rows), "no trained payload was waiting: the test shows nothing"
    assert any(row["result"] is None for row in rows)
    assert_same(
        reference, turnout.execute(experiment("windowed", **options), tmp_path, checkpoint_every=1, resume=True)
    )


CHILD = """
import sys
from pathlib import Path
from support import conv, experiment
import turnout

class Speaking(turnout.Observer):
    def on_round(self, server, record):
        print(record.number, flush=True)

task, resume = experiment("windowed", rounds=12, model=conv), sys.argv[2] == "resume"
turnout.execute(task, Path(sys.argv[1]), checkpoint_every=2, resume=resume, observers=[Speaking()])
"""


def test_kill_minus_nine(tmp_path: Path) -> None:
    """Real processes, killed after so many rounds have been heard of, at whatever they are doing then."""
    reference = turnout.execute(experiment("windowed", rounds=12, model=conv), tmp_path / "whole", checkpoint_every=2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}

    def child(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, str(tmp_path / "killed"), how]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    for how, lines in (("start", 3), ("resume", 4)):
        with child(how) as process:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    made = experiment("windowed", rounds=12, model=conv)
    final = turnout.execute(made, tmp_path / "killed", checkpoint_every=2, resume=True)
    assert_same(reference, final)


def test_a_truncated_checkpoint_falls_back_and_says_so(tmp_path: Path) -> None:
    reference = turnout.execute(experiment("fedavg", rounds=8))
    turnout.execute(experiment("fedavg", rounds=6), tmp_path, checkpoint_every=2)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    result = turnout.execute(experiment("fedavg", rounds=8), tmp_path, checkpoint_every=2, resume=True)
    assert_same(reference, result)
    assert "falling back to the one before" in (tmp_path / "log.txt").read_text()


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    turnout.execute(experiment("fedavg", rounds=4), tmp_path, checkpoint_every=2)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    data = bytearray(newest.read_bytes())
    data[-50] ^= 1
    newest.write_bytes(data)
    with pytest.raises(ValueError, match="digest"):
        Checkpoints(tmp_path / "checkpoints")._read(newest)


def test_no_readable_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    turnout.execute(experiment("fedavg", rounds=2), tmp_path, checkpoint_every=2)
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"no checkpoint in .* can be used"):
        turnout.execute(experiment("fedavg", rounds=2), tmp_path, resume=True)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    turnout.execute(experiment("fedavg", rounds=2, fingerprint="one"), tmp_path)
    with pytest.raises(UserError, match="another configuration"):
        turnout.execute(experiment("fedavg", rounds=2, fingerprint="two"), tmp_path, resume=True)


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turnout.execute(experiment("fedavg", rounds=2), tmp_path)
    monkeypatch.setattr("turnout.server.checkpoint.READ", (1,))
    with pytest.raises(UserError, match="another version of Turnout"):
        turnout.execute(experiment("fedavg", rounds=3), tmp_path, resume=True)


def test_only_a_folder_can_be_resumed() -> None:
    with pytest.raises(UserError, match="only a run in a folder"):
        turnout.execute(experiment("fedavg"), resume=True)


def test_what_a_checkpoint_held_is_aligned_as_it_was(tmp_path: Path) -> None:
    """The last bit of a product depends on where its numbers lie in memory."""
    turnout.execute(experiment("windowed", rounds=2), tmp_path, checkpoint_every=1)
    for path in (tmp_path / "checkpoints").iterdir():
        tensors = Checkpoints._read(path)[1]
        assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values())
