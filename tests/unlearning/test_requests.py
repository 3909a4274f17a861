"""Requests on a run's folder: every step once, whatever crashes; the log, the certificate and its verification."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import turnout
from support import population
from turnout import Experiment, FedAvg, Full, LocalSGD, Plan, Stopping, Task, UserError
from turnout.core import files, random
from turnout.record import signed as log
from turnout.record.branch import read_model
from turnout.record.unlearning import Unlearning, achieved_delta, achieved_epsilon, noise_ratio
from turnout.trust import request, verify


def made(rounds: int = 3, **options: Any) -> Experiment:
    return Experiment(
        Task(lambda: nn.Linear(5, 3), seed=3),
        population((3, 7, 8, 1, 5), test=None),
        FedAvg(LocalSGD(0.1, steps=2, batching="full"), Full()),
        5,
        Stopping(rounds),
        plan=Plan(threads=1),
        fingerprint="toy",
        unlearning=Unlearning(**{"sigma": 0.03, **options}),
    )


def run_in(folder: Path, **options: Any) -> Path:
    turnout.execute(made(**options), folder, checkpoint_every=2)
    return folder


def forgotten(folder: Path, clients: list[int], seed: int | None = None, **options: Any) -> dict[str, Any]:
    return request.unlearn(request.Run(folder, made(**options)), clients, noise_seed=seed, checkpoint_every=2)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run with two requests answered."""
    folder = run_in(tmp_path_factory.mktemp("runs") / "toy")
    return folder, [forgotten(folder, [1]), forgotten(folder, [3, 0])]


@pytest.fixture()
def copied(twice: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> Path:
    shutil.copytree(twice[0], tmp_path / "toy")
    return tmp_path / "toy"


# -- what is left behind --------------------------------------------------------------------------------------


def test_certificates_and_models(twice: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, (first, second) = twice
    assert verify.problems(folder) == []
    assert (first["forgotten"], second["forgotten"]) == ([1], [0, 1, 3])
    assert second["earlier"][0]["clients"] == [1]
    assert second["guarantee"]["mu"] <= second["together"]["mu"]
    assert first["noise"]["source"] == request.ENTROPY
    assert first["noise"]["private"]
    assert second["models"]["before"] == first["models"]["after"]
    assert request.sha256(folder / "model.safetensors") == second["models"]["after"]  # type: ignore[attr-defined]
    assert second["audit"]["train_accuracy of the forgotten, after"] >= 0
    assert {one["state"] for one in first["assumptions"]} == {"holds", "assumed", "unknown"}
    assert "heuristic" in first["statement"]
    for number, certificate in enumerate((first, second), 1):
        path = folder / "unlearning" / f"certificate{number}.json"
        assert json.loads(path.read_text()) == certificate
        page = path.with_suffix(".html").read_text()
        assert certificate["statement"].split(".")[0] in page
        assert certificate["models"]["after"] in page
        assert "http" not in page


def test_dead_files_are_destroyed_and_recorded(twice: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, (_, second) = twice
    cuts = dict(second["lineage"])
    for branch, home in ((0, folder), (1, folder / "unlearning" / "branch1")):
        kept = sorted(int(path.stem) for path in (home / "sensitivity" / "models").iterdir())
        assert kept == list(range(cuts.get(branch, -1) + 1))
        assert not list((home / "checkpoints").iterdir())
    assert not (folder / "unlearning" / "branch1" / "model.safetensors").exists()
    entries = log.read(folder / "unlearning" / "log.jsonl")
    assert [entry["event"] for entry in entries] == [*verify.ENTRIES, *verify.ENTRIES]
    destroyed = [name for entry in entries if entry["event"] == "destroying" for name in entry["files"]]
    assert {"checkpoints/000000002.safetensors", "unlearning/start1.safetensors"} < set(destroyed)
    assert not any((folder / name).exists() for name in destroyed)


def test_destroyed_files_are_gone_for_good_before_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced, append = run_in(tmp_path / "toy"), set[Path](), log.AuditLog.append
    monkeypatch.setattr(files, "_sync", synced.add)

    def told(self: log.AuditLog, event: str, number: int, **facts: Any) -> log.Entry:
        if event == "destroyed":
            assert {folder / "checkpoints", folder / "sensitivity" / "models"} <= synced
        return append(self, event, number, **facts)

    monkeypatch.setattr(log.AuditLog, "append", told)
    assert forgotten(folder, [1])["destroyed"] > 2


def test_a_run_whose_clients_were_forgotten_is_not_resumed(copied: Path) -> None:
    with pytest.raises(UserError, match="going on would train with them again"):
        turnout.execute(made(9), copied, resume=True)


def test_the_noise_is_nowhere(twice: tuple[Path, list[dict[str, Any]]]) -> None:
    """The log and the certificates name its source and sigma, and nothing to draw it from again."""
    folder, _ = twice
    entries = log.read(folder / "unlearning" / "log.jsonl")
    assert all("seed" not in line for line in (json.dumps(entry) for entry in entries))
    planned = next(entry for entry in entries if entry["event"] == "planned")
    assert planned["noise"] == request.ENTROPY


def test_a_seed_is_not_private(tmp_path: Path) -> None:
    folders = [run_in(tmp_path / name) for name in ("one", "two")]
    one, two = (forgotten(folder, [1], seed=9) for folder in folders)
    assert one["models"] == two["models"]
    assert not one["noise"]["private"]
    assert "NOT PRIVATE" in one["statement"]
    assert verify.problems(folders[0]) == []


def test_the_certificate_says_what_holds_not_what_was_asked(tmp_path: Path) -> None:
    """Classic noise just at its limit: the promise is delta 0.0406 at epsilon 10, or epsilon 11.918 at delta 0.01."""
    folder = run_in(tmp_path / "toy", calibration="classic")
    table = request.Run(folder, made(calibration="classic")).branches.tables[0]
    sigma = noise_ratio(10, 0.01, "classic") * float(table.psi([2])[-1]) * (1 + 1e-12)
    certificate = forgotten(folder, [2], sigma=sigma, calibration="classic")
    assert certificate["rollback"] == [0, 3]
    assert certificate["guarantee"]["delta"] == pytest.approx(0.04058, abs=5e-6)
    assert certificate["guarantee"]["epsilon"] == pytest.approx(11.918, abs=5e-4)
    assert "epsilon = 11.92" in certificate["statement"]
    assert "more than was asked for" in certificate["statement"]
    assert verify.problems(folder) == []


def test_cuts_add_up(tmp_path: Path) -> None:
    """Noise enough for either cut alone: the promise is that of both."""
    folder = run_in(tmp_path / "toy", sigma=0.06)
    first, second = (forgotten(folder, [client], sigma=0.06) for client in (3, 0))
    assert second["lineage"] == [*first["lineage"], [1, 3]]
    at_cuts = second["guarantee"]["psi"]
    assert min(at_cuts) > 0
    assert second["guarantee"]["mu"] == pytest.approx(math.hypot(*at_cuts) / 0.06)
    assert second["guarantee"]["epsilon"] > max(achieved_epsilon(psi / 0.06, 0.01) for psi in at_cuts)
    assert verify.problems(folder) == []


def test_what_is_stated_makes_the_promise_firm(tmp_path: Path) -> None:
    firm: dict[str, Any] = {
        "convex": True,
        "smoothness": 4.0,
        "bound": "contracted",
        "strong_convexity": 0.1,
        "group_rule": "max",
    }
    firm |= {"sigma": 1.0}
    folder = run_in(tmp_path / "toy", **firm)
    certificate = forgotten(folder, [1, 2], **firm)
    assert {one["state"] for one in certificate["assumptions"]} == {"holds", "assumed"}
    assert "heuristic" not in certificate["statement"]
    assert certificate["rollback"] == [0, 3]
    assert "each alone" in certificate["statement"]
    assert verify.problems(folder) == []


def test_an_interrupted_run_can_forget(tmp_path: Path) -> None:
    """Killed after round 3 with a checkpoint at 2: the branch is two rounds long."""

    class Kill(turnout.Observer):
        def on_round(self, server: turnout.Server, record: object) -> None:
            if server.version == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turnout.execute(made(9), tmp_path / "toy", checkpoint_every=2, observers=[Kill()])
    certificate = forgotten(tmp_path / "toy", [2], rounds=9)
    assert certificate["rollback"][1] <= 2
    assert certificate["models"]["before"] is None
    assert certificate["retraining"]["rounds"] == 9
    assert verify.problems(tmp_path / "toy") == []


# -- crashes --------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The power goes."""


class FaultyDisk:
    """Counts what changes the disk for good, and crashes just before or just after the chosen one."""

    def __init__(self, patch: pytest.MonkeyPatch, crash_at: int | None = None, after: bool = False) -> None:
        self.operations, self.crash_at, self.after = 0, crash_at, after
        unlink, replace = Path.unlink, os.replace
        patch.setattr(os, "fsync", lambda _: self._do(lambda: None))
        patch.setattr(os, "replace", lambda *names: self._do(lambda: replace(*names)))
        patch.setattr(Path, "unlink", lambda path, **options: self._do(lambda: unlink(path, **options)))

    def _do(self, operation: Callable[[], None]) -> None:
        self.operations += 1
        here = self.operations == self.crash_at
        if not here or self.after:
            operation()
        if here:
            raise Crash


@pytest.fixture()
def draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often noise was drawn."""
    counted: list[int] = []
    draw = random.secret_normal

    def counting(size: int) -> Any:
        counted.append(size)
        return draw(size)

    monkeypatch.setattr(random, "secret_normal", counting)
    yield counted


def no_training(_: Experiment, folder: Path, **__: Any) -> Any:
    """Leaves a branch behind that never trained: what crashes during training do is tested with the other runs."""
    home = folder.parent.parent
    shutil.copytree(home / "sensitivity", folder / "sensitivity", dirs_exist_ok=True)
    (folder / "sensitivity" / "log.jsonl").unlink(missing_ok=True)
    for name in ("model.safetensors", "clients.parquet", "result.json"):
        shutil.copyfile(home / name, folder / name)
    return SimpleNamespace(server=SimpleNamespace(version=3, stopped="3 rounds"))


@pytest.mark.parametrize("trains", [False, True])
def test_a_crash_neither_draws_noise_again_nor_uses_it_twice(trains: bool, tmp_path: Path, draws: list[int]) -> None:
    run_in(tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        if not trains:
            patch.setattr(request, "execute", no_training)
        _crash_everywhere(tmp_path, draws, every=23 if trains else 1)


def _crash_everywhere(tmp_path: Path, draws: list[int], every: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shutil.copytree(tmp_path / "whole", tmp_path / "counted")
        disk = FaultyDisk(patch)
        forgotten(tmp_path / "counted", [1])
    assert len(draws) == 1
    assert disk.operations > 40
    starts = set()
    for crash_at in range(1, disk.operations + 1, every):
        folder = tmp_path / f"crash{crash_at}"
        shutil.copytree(tmp_path / "whole", folder)
        start, path = folder / "unlearning" / "start1.safetensors", folder / "unlearning" / "log.jsonl"
        with pytest.MonkeyPatch.context() as patch:
            FaultyDisk(patch, crash_at, after=crash_at % 2 == 0)
            with pytest.raises(Crash):
                forgotten(folder, [1])
        drawn = read_model(start) if start.exists() else None
        if drawn is None:
            assert not path.exists() or "noised" not in path.read_text()  # synced before the log knows of it
        draws.clear()
        if path.exists() and "certified" in path.read_text():
            assert verify.problems(folder) == []
            continue
        certificate = forgotten(folder, [1])
        assert verify.problems(folder) == []
        assert len(draws) == (drawn is None)
        assert drawn is None or torch.equal(read_model(start), drawn)
        assert certificate["models"]["retraining began with"] not in starts  # no two share their noise
        starts.add(certificate["models"]["retraining began with"])
        assert [entry["event"] for entry in log.read(path)] == list(verify.ENTRIES)


def test_an_unfinished_request_is_finished_first(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "execute", lambda *_, **__: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            forgotten(folder, [1], seed=3)
    assert verify.problems(folder) == ["request 1: it is not finished"]
    with pytest.raises(UserError, match=r"request 1 is not finished; go on with: .* --client 1"):
        forgotten(folder, [2])
    with pytest.raises(UserError, match="is not finished"):
        request.plan(request.Run(folder, made()), [2])
    with pytest.raises(UserError, match="begun with a seed that was given"):
        forgotten(folder, [1])
    assert not forgotten(folder, [1], seed=3)["noise"]["private"]
    assert verify.problems(folder) == []


# -- tampering ------------------------------------------------------------------------------------------------


def test_any_edited_byte_of_the_log_is_found(copied: Path) -> None:
    path = copied / "unlearning" / "log.jsonl"
    text = path.read_bytes()
    for place in [*range(0, len(text), 7), len(text) - 1]:
        edited = bytearray(text)
        edited[place] ^= 1
        found: list[str] = []
        verify.check_chain(bytes(edited), found)
        assert found, place
    lines = text.splitlines(keepends=True)
    spaced = [lines[0].replace(b'":', b'": ', 1), *lines[1:]]  # says the same
    for changed in (spaced, lines[1:], [*lines[:2], *lines[3:]], [lines[1], lines[0], *lines[2:]], [*lines, lines[-1]]):
        path.write_bytes(b"".join(changed))
        assert verify.problems(copied)
        with pytest.raises(UserError, match="line"):
            log.AuditLog(path)
    path.write_bytes(b"".join(lines[:-1]))  # the chain is whole, but the certificate says there was more
    assert verify.problems(copied) == ["request 2: it is not finished"]
    path.write_bytes(b"".join(lines[:8]))
    assert "certificate2.json is not in the log" in verify.problems(copied)
    path.write_bytes(text[:-5])
    with pytest.raises(UserError, match="not whole"):
        log.AuditLog(path)


@pytest.mark.parametrize("lines", [0, 8])
def test_a_log_that_was_cut_off_does_not_have_noise_used_again(copied: Path, lines: int) -> None:
    path = copied / "unlearning" / "log.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    with pytest.raises(UserError, match=r"the log does not know of .*; lines were cut off"):
        forgotten(copied, [2])


def rewrite(copied: Path, change: Any) -> None:
    """What somebody would do who can compute hashes: change entries and chain them anew."""
    path = copied / "unlearning" / "log.jsonl"
    entries = log.read(path)
    change(entries)
    previous = log.FIRST
    for entry in entries:
        entry["previous"] = previous
        entry["hash"] = previous = log.hash_of(entry)
    path.write_text("".join(log.line_of(entry) + "\n" for entry in entries))


def test_a_wrong_promise_is_found(copied: Path) -> None:
    def better(entries: list[dict[str, Any]]) -> None:
        certificate = copied / "unlearning" / "certificate2.json"
        document = json.loads(certificate.read_text())
        document["guarantee"]["epsilon"] /= 2
        certificate.write_text(json.dumps(document))
        entries[-1]["json"] = request.sha256(certificate)  # type: ignore[attr-defined]

    rewrite(copied, better)
    found = verify.problems(copied)
    assert any("the promise to [0, 3] should be" in sentence for sentence in found)


@pytest.mark.parametrize(
    ("name", "value"),
    [("forgotten", [3]), ("rollback", [0, 0]), ("destroyed", 0), ("threshold", 9.0), ("budget", {}), ("retraining", 1),
     ("models", {}), ("noise", {"private": True}), ("log", {}), ("version", "9"), ("received", "now")],
)  # fmt: skip
def test_a_certificate_that_says_otherwise_than_the_log_is_found(copied: Path, name: str, value: Any) -> None:
    def other(entries: list[dict[str, Any]]) -> None:
        certificate = copied / "unlearning" / "certificate2.json"
        certificate.write_text(json.dumps(json.loads(certificate.read_text()) | {name: value}))
        entries[-1]["json"] = request.sha256(certificate)  # type: ignore[attr-defined]

    rewrite(copied, other)
    # the log is new from its last entry on, and certificate 2 names the entry before
    assert verify.problems(copied) == [f"request 2: its certificate does not say of {name} what the log says"]


def test_a_chained_log_that_lacks_something_is_a_sentence(copied: Path) -> None:
    whole = (copied / "unlearning" / "log.jsonl").read_text()
    for place, name in ((0, "event"), (0, "clients"), (1, "tables"), (2, "start"), (4, "files"), (7, "json")):
        (copied / "unlearning" / "log.jsonl").write_text(whole)
        rewrite(copied, lambda entries, place=place, name=name: entries[place].pop(name))
        found = verify.problems(copied)
        assert len(found) == 1, name
        assert "is not whole (KeyError" in found[0] or "line 1 is not as it was written" in found[0]


def test_a_wrong_rollback_is_found(copied: Path) -> None:
    def later(entries: list[dict[str, Any]]) -> None:
        entries[1]["lineage"] = [[0, entries[1]["lineage"][0][1] + 1]]

    rewrite(copied, later)
    assert any("request 1: it should have been rolled back to" in sentence for sentence in verify.problems(copied))


@pytest.mark.parametrize(
    ("name", "words"),
    [("sensitivity/table.jsonl", "the table of branch 0"), ("unlearning/certificate1.html", "certificate1.html is not"),
     ("model.safetensors", "not the model that was certified last"), ("unlearning/start2.safetensors", "start2"),
     ("sensitivity/facts.json", "the table of branch 0")],
)  # fmt: skip
def test_changed_files_are_found(copied: Path, name: str, words: str) -> None:
    path = copied / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    assert any(words in sentence for sentence in verify.problems(copied))


def test_a_destroyed_model_that_is_back_is_found(copied: Path, tmp_path: Path) -> None:
    run_in(tmp_path / "again")
    entries = log.read(copied / "unlearning" / "log.jsonl")
    name = next(name for name in entries[4]["files"] if "models" in name)
    (tmp_path / "again" / name).rename(copied / name)
    assert verify.problems(copied) == [f"request 1: {name} was to be destroyed"]


def test_the_verification_needs_the_standard_library_only(copied: Path) -> None:
    command = [sys.executable, "-I", "-S", verify.__file__, str(copied)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "The log is whole, and every promise follows from it.\n"), done.stderr
    (copied / "unlearning" / "log.jsonl").unlink()
    assert subprocess.run(command, capture_output=True).returncode == 1


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.2, 12.0, 60.0])
def test_both_implementations_of_the_mathematics_agree(mu: float) -> None:
    for epsilon in (0.0, 0.5, 10.0, mu**2 / 2, mu**2):
        assert verify.excess(mu, epsilon) == pytest.approx(achieved_delta(mu, epsilon), rel=1e-6, abs=1e-12)
    assert verify._least_epsilon(mu, 0.01) == pytest.approx(achieved_epsilon(mu, 0.01), rel=1e-9, abs=1e-9)
    assert verify.ratio(mu, 0.01, "analytic") == pytest.approx(noise_ratio(mu, 0.01), rel=1e-9)


# -- refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("table.jsonl", None, "no table that can be read"), ("table.jsonl", "{\n", "no table that can be read"),
     ("facts.json", "{", "no table that can be read"), ("facts.json", "{}", "no table that can be read"),
     ("models/000000000.safetensors", None, "the models of branch 0 are gone"),
     ("models/000000002.safetensors", "?", "holds no model that can be read")],
)  # fmt: skip
def test_files_that_are_gone_or_spoilt(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    path = run_in(tmp_path / "toy", sigma=0.05, rounds=2) / "sensitivity" / name
    (tmp_path / "toy" / "sensitivity" / "log.jsonl").unlink()  # as if the run had not ended
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(UserError, match=words):
        forgotten(tmp_path / "toy", [1], sigma=0.05, rounds=2)


def test_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"unlearning\.sigma: 0\.2 is not what the first request of this run fixed, 0\.03"
    ):
        request.Run(copied, made(sigma=0.2))
    before = (copied / "unlearning" / "log.jsonl").read_bytes()
    with pytest.raises(UserError, match="client 1 was forgotten before"):
        forgotten(copied, [1])
    assert (copied / "unlearning" / "log.jsonl").read_bytes() == before
    turnout.execute(replace(made(), unlearning=None), tmp_path / "plain")
    with pytest.raises(UserError, match="was not tracked"):
        request.Run(tmp_path / "plain", made())
