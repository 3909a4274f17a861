"""The page over all runs of a folder: what it knows, what it may do, and how it is written as a folder."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from boards import copied, every_end, reconfigured, renamed, unfinished

from turnout import UserError
from turnout.report import board, page
from turnout.report.index import Index

EVIL = '</script><img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def ends(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return every_end(digits, tmp_path_factory.mktemp("ends"))


def known(folder: Path) -> dict[str, Any]:
    return board.document(Index(folder).rows(), folder, live=False)


def embedded(text: str) -> dict[str, Any]:
    data = re.search(r'id="board-data">(.*?)</script>', text)
    assert data is not None
    found: dict[str, Any] = json.loads(data[1])
    return found


def test_what_the_page_knows_of_a_run(ends: Path) -> None:
    found = known(ends)
    run = next(run for run in found["runs"] if run["name"] == "finished")
    assert (run["algorithm"], run["data"], run["clients"], run["seed"]) == ("fedavg", "digits", 12, 0)
    assert (run["round"], run["rounds"], run["state"], run["report"]) == (6, 6, "finished", True)
    assert len(run["curves"]["test_accuracy"]) == len(run["curves"]["round"]) == 7
    assert run["last"]["test_accuracy"] == run["curves"]["test_accuracy"][-1]
    assert 0 <= run["worst"]["test_accuracy"] <= run["last"]["test_accuracy"]
    assert found["first"] == "test_accuracy"
    assert found["measures"]["test_loss"] == {"words": "test loss", "lower": True}
    assert found["measures"]["test_accuracy"] == {"words": "test accuracy", "lower": False}
    json.dumps(found, allow_nan=False)


def test_only_options_in_which_runs_differ_are_there(digits: Path, tmp_path: Path) -> None:
    for name in ("a-0", "a-1", "b"):
        renamed(copied(digits, tmp_path / name), name)
    reconfigured(tmp_path / "a-1", ("seed = 0", "seed = 1"))
    reconfigured(tmp_path / "b", ("lr = 0.3", "lr = 0.1"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "plan.json").write_text("{}")  # of one without a configuration nothing is known
    found = known(tmp_path)
    runs = {run["name"]: run for run in found["runs"]}
    assert [runs[name]["options"] for name in ("a-0", "a-1", "b", "new")] == [
        {"local.lr": "0.3"}, {"local.lr": "0.3"}, {"local.lr": "0.1"}, {},
    ]  # fmt: skip
    assert runs["a-0"]["setting"] == runs["a-1"]["setting"] != runs["b"]["setting"]
    assert found["settings"][runs["a-0"]["setting"]] == "a"
    assert found["settings"][runs["b"]["setting"]] == "b"


def test_names_end_nothing(digits: Path, tmp_path: Path) -> None:
    folder = copied(digits, tmp_path / EVIL.replace("/", "|"))
    renamed(folder, EVIL)
    reconfigured(folder, ('name = "fedavg"', f"name = '{EVIL}'"))
    text = board.board(known(tmp_path))
    assert embedded(text)["runs"][0]["algorithm"] == EVIL
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert EVIL not in board.report(Index(tmp_path).rows()[0])


def test_the_page_may_do_what_it_does_and_no_more(ends: Path) -> None:
    text = board.board(known(ends))
    said = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)
    assert said is not None and said[1] == board.policy()
    assert "unsafe" not in board.policy() and board.policy().startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        inside = re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)
        assert inside is not None and page.digest(inside[1]) in board.policy()
    assert not re.findall(r'\s(?:style|on\w+)="', text)
    assert not re.findall(r"https?://(?!www\.w3\.org/)|@import|url\(|innerHTML|\beval\b", text)


def test_a_report_of_a_board_leads_back_and_shares_the_library(ends: Path) -> None:
    rows = {row.name: row for row in Index(ends).rows()}
    for name, top in (("finished", "../.."), ("sweep/lr=0.1", "../../..")):
        text = board.report(rows[name])
        assert f'<script src="{top}/plotly.js"></script>' in text
        assert f'<a href="{top}/index.html">All runs</a>' in text
        assert len(text) < 200_000
        script = re.findall(r"<script>(.*?)</script>", text, re.S)
        assert [page.digest(one) in page.policy() for one in script] == [True]
    several = board.compared([rows["finished"], rows["diverged"]])
    assert '<script src="./plotly.js"></script>' in several
    with pytest.raises(UserError, match=r"^board: 11 runs; a report shows from 1 to 10"):
        board.compared([rows["finished"]] * 11)


def test_no_report_reads_what_lies_elsewhere(digits: Path, tmp_path: Path) -> None:
    folder = copied(digits, tmp_path / "runs" / "one")
    shutil.move(folder / "jobs", tmp_path / "jobs")
    (folder / "jobs").symlink_to(tmp_path / "jobs")
    (row,) = Index(tmp_path / "runs").rows()
    assert row.state == "finished"  # the board itself has no use for it
    with pytest.raises(UserError, match="jobs is a link; a board reads only what lies in its own folder"):
        board.report(row)


# -- as a folder ----------------------------------------------------------------------------------------------


def test_it_is_written_as_a_folder(ends: Path, tmp_path: Path) -> None:
    first, remarks = board.write(Index(ends), tmp_path / "public")
    assert len(remarks) == 1 and "broken/history/000000.parquet is damaged" in remarks[0]
    found = embedded(first.read_text(encoding="utf-8"))
    assert found["live"] is False
    reports = {run["name"]: run["report"] for run in found["runs"]}
    assert [name for name, there in reports.items() if not there] == ["broken"]
    for name, there in reports.items():
        report = tmp_path / "public" / "runs" / name / "report.html"
        assert report.exists() == there
        for place in re.findall(r'(?:src|href)="(\.\.[^"#]*)"', report.read_text(encoding="utf-8") if there else ""):
            assert (report.parent / unescape(place)).resolve().is_file()
    assert "window.Plotly" in (tmp_path / "public" / "plotly.js").read_text(encoding="utf-8")


def test_it_is_written_again_and_over_nothing_else(digits: Path, tmp_path: Path) -> None:
    runs, target = tmp_path / "runs", tmp_path / "public"
    unfinished(copied(digits, runs / "one"))
    copied(digits, runs / "two")
    board.write(Index(runs), target)
    (target / "CNAME").write_text("mine")
    shutil.rmtree(runs / "one")
    first, _ = board.write(Index(runs), target)
    assert [run["name"] for run in embedded(first.read_text(encoding="utf-8"))["runs"]] == ["two"]
    assert [path.parent.name for path in target.rglob("report.html")] == ["two"]
    assert (target / "CNAME").read_text() == "mine"
    for place, why in ((runs, "is not empty and not a board"), (first, "is not a folder")):
        with pytest.raises(UserError, match=f"^--write: .* {why}"):
            board.write(Index(runs), place)
    assert sorted(path.name for path in runs.iterdir()) == ["two"]


def test_a_folder_without_runs_is_a_page(tmp_path: Path) -> None:
    found = known(tmp_path)
    assert (found["runs"], found["first"], found["measures"]) == ([], "", {})
    assert embedded(board.board(found)) == found
