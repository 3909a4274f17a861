"""What a board knows of the runs in a folder, and what it looks at again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import BEGUN, ENDS, copied, every_end, reconfigured, truncated, unfinished

from turnout import UserError
from turnout.record import run_folder
from turnout.record.run_folder import damage, locked, reseal, under_way
from turnout.report import index as module
from turnout.report.index import POINTS, Index, Row, joined
from turnout.report.read import recorded


@pytest.fixture(scope="module")
def ends(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return every_end(digits, tmp_path_factory.mktemp("ends"))


def look(folder: Path) -> dict[str, Row]:
    return {row.name: row for row in Index(folder).rows()}


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


def test_how_runs_ended_is_said_in_words(ends: Path) -> None:
    said = {name: (row.state, row.words) for name, row in look(ends).items()}
    why = "history/000000.parquet is damaged: it is not what was written; restore it, or have computed again what "
    assert said == {
        "finished": ("finished", "6 rounds"),
        "diverged": ("failed", "diverged: the loss is not finite"),
        "unheard": ("failed", "nobody was ever heard (stopped: 6 rounds)"),
        "stopped": ("unfinished", f"stopped in round 6 of 6; go on with: turnout resume {ends}/stopped"),
        "died": ("failed", "why the wire was cut, last after the answer of client 3 (round 6 of 6)"),
        "broken": ("damaged", f"{why}checkpoints allow by: turnout resume {ends}/broken"),
        "short": ("damaged", "model.safetensors is damaged: it is not what was written"),
        "sweep/lr=0.1": ("finished", "6 rounds"),
    }


def test_the_newest_come_first(ends: Path) -> None:
    rows = Index(ends).rows()
    assert [row.name for row in rows] == list(reversed(ENDS))
    assert rows[-1].begun == BEGUN


def test_a_row_has_what_the_record_has(ends: Path, digits: Path) -> None:
    row, run = look(ends)["finished"], recorded(digits)
    rounds = run.rounds()
    assert (row.rounds, row.seconds, row.heard) == (6, rounds["time"][-1], rounds["heard"][-1])
    assert row.measure == "test_accuracy"
    assert row.last["test_accuracy"] == run.last("test_accuracy")
    assert row.last["train_loss_worst_decile"] == run.last("train_loss_worst_decile")
    assert row.sums == {name: run.total(name) for name in ("bytes_down", "bytes_up", "arrived", "failed", "cancelled")}
    np.testing.assert_array_equal(row.curves["test_loss"], rounds["test_loss"])
    np.testing.assert_array_equal(row.curves["time"], rounds["time"])
    short = look(ends)["short"]  # what is damaged is not needed here
    assert (short.rounds, short.last) == (row.rounds, row.last)


def test_looking_changes_nothing(ends: Path) -> None:
    before = tree(ends)
    look(ends)
    assert tree(ends) == before


def test_only_what_has_changed_is_read_again(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(folder: Path, *given: Any, **options: Any) -> Any:
        read.append(folder.name)
        return recorded(folder, *given, **options)

    monkeypatch.setattr(module, "recorded", counted)
    one, two = copied(digits, tmp_path / "one"), copied(digits, tmp_path / "two")
    index = Index(tmp_path, fresh=0)
    index.rows()
    index.rows()
    assert (sorted(read), index.changes) == (["one", "two"], 2)
    unfinished(one)
    assert {row.name: row.state for row in index.rows()} == {"one": "unfinished", "two": "finished"}
    truncated(two)
    assert {row.name: row.state for row in index.rows()} == {"one": "unfinished", "two": "damaged"}
    shutil.rmtree(one)
    copied(digits, tmp_path / "later" / "three")
    assert [row.name for row in index.rows()] == ["two", "later/three"]
    assert (read[2:], index.changes) == (["one", "two", "three"], 6)


def test_it_is_not_looked_at_more_often_than_asked(digits: Path, tmp_path: Path) -> None:
    now = [0.0]
    index = Index(tmp_path, fresh=1.0, clock=lambda: now[0])
    assert index.rows() == []
    copied(digits, tmp_path / "one")
    assert index.rows() == []
    now[0] = 1.0
    assert len(index.rows()) == 1


def test_a_run_is_followed_while_it_goes_on(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, segments = copied(digits, tmp_path / "live"), list[str]()
    unfinished(folder)
    later = folder / "history" / "000001.parquet"
    later.rename(tmp_path / "later.parquet")
    reseal(folder)
    read = module._segment

    def counted(path: Path) -> Any:
        segments.append(path.name)
        return read(path)

    monkeypatch.setattr(module, "_segment", counted)
    index = Index(tmp_path, fresh=0)
    with locked(folder):
        (row,) = index.rows()
        assert (row.state, row.words, row.rounds) == ("running", "its first rounds", 0)
        (tmp_path / "later.parquet").rename(later)
        os.utime(later, (BEGUN + 3, BEGUN + 3))
        (row,) = index.rows()
        assert (row.state, row.words, row.rounds) == ("running", "2 rounds/s", 6)
        assert segments == ["000000.parquet", "000001.parquet"]  # each once
        reconfigured(folder, ("rounds = 6", "rounds = 66"))
        assert index.rows()[0].words == "2 rounds/s, about 30 s to go"
        os.utime(later, (BEGUN + 15, BEGUN + 15))
        assert index.rows()[0].words == "2.5 s a round, about 2.5 min to go"
        os.truncate(later, 50)  # as while it is about to be cut back
        assert (index.rows()[0].state, index.rows()[0].rounds) == ("running", 6)
    assert index.rows()[0].state == "damaged"


def test_links_and_what_is_hidden_are_left_alone(digits: Path, tmp_path: Path) -> None:
    elsewhere = copied(digits, tmp_path / "elsewhere" / "secret")
    runs = tmp_path / "runs"
    copied(digits, runs / ".digits.replaced")
    (runs / "away").symlink_to(elsewhere)
    for name, linked in (("config", "config.toml"), ("history", "history"), ("log", "log.txt")):
        inner = copied(digits, runs / name) / linked
        shutil.rmtree(inner) if inner.is_dir() else inner.unlink()
        inner.symlink_to(elsewhere / linked)
    rows = look(runs)
    assert set(rows) == {"config", "history", "log"}
    assert {row.state for row in rows.values()} == {"damaged"}
    assert rows["history"].words == "history is a link; a board reads only what lies in its own folder"


def test_the_folder_of_a_run_is_a_board_of_one(digits: Path) -> None:
    assert list(look(digits)) == [digits.name]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^board: .*/nowhere is not a folder; give the one that holds your runs"):
        Index(tmp_path / "nowhere")


def test_a_run_that_has_recorded_nothing(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "plan.json").write_text("{}")
    (row,) = Index(tmp_path).rows()
    assert (row.state, row.rounds, row.curves) == ("unfinished", 0, {})


def test_long_curves_are_thinned_and_gaps_left_out() -> None:
    rounds = {"round": np.arange(1001.0), "time": np.arange(1001.0), "test_loss": np.full(1001, np.nan)}
    rounds["test_loss"][::5] = np.arange(201)
    kept = module._thinned(rounds, ["test_loss"])
    assert len(kept["round"]) == POINTS
    assert (kept["round"][0], kept["round"][-1]) == (0, 1000)
    np.testing.assert_array_equal(kept["round"], 5 * kept["test_loss"])


def test_tables_below_each_other() -> None:
    found = joined([{"round": np.arange(2.0)}, {}, {"round": np.array([2.0]), "loss": np.array([0.5])}])
    np.testing.assert_array_equal(found["round"], [0, 1, 2])
    np.testing.assert_array_equal(found["loss"], [np.nan, np.nan, 0.5])


@pytest.mark.parametrize("listed", [True, False])
def test_who_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    if not listed:
        monkeypatch.setattr(run_folder, "_LOCKS", tmp_path / "none")
    folders = [tmp_path / name for name in ("one", "two", "killed")]
    (tmp_path / ".killed.lock").touch()
    with locked(folders[0]):
        assert under_way(folders) == ({folders[0]} if listed else {folders[0], folders[2]})
    assert under_way(folders) == (set() if listed else {folders[2]})


def test_of_what_is_not_read_the_length_has_to_do(digits: Path, tmp_path: Path) -> None:
    folder = copied(digits, tmp_path / "one")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    assert set(damage(folder)) == {"model.safetensors"}
    assert damage(folder, only=("history",)) == {}
    assert set(damage(folder, only=("model.safetensors",))) == {"model.safetensors"}
    path.write_bytes(content[:-1])
    assert set(damage(folder, only=("history",))) == {"model.safetensors"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.toml", "run = 3"), ("config.toml", "[run]\nrounds = 'many'"), ("result.json", "[1]"), ("plan.json", "{")],
)
def test_whatever_is_in_one_folder_the_others_are_shown(digits: Path, tmp_path: Path, name: str, text: str) -> None:
    copied(digits, tmp_path / "one")
    folder = copied(digits, tmp_path / "two")
    (folder / name).write_text(text)
    reseal(folder, name)
    with locked(folder):
        rows = look(tmp_path)
    assert rows["one"].state == "finished"
    assert rows["two"].state in ("damaged", "running")
    assert rows["two"].words
