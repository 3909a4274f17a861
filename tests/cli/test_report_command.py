from __future__ import annotations

import webbrowser

import pytest
from terminal import Terminal

from turnout.cli import report as report_cli
from turnout.core.errors import UserError

FEW = ("clients.count=6", "sampler.clients_per_round=3")


def test_a_run_leaves_a_report_unless_told_not_to(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    page = terminal.run("digits", *FEW) / "report.html"
    assert "3 rounds" in page.read_text(encoding="utf-8")
    terminal.done("resume", "runs/digits", "run.rounds=4")
    assert "4 rounds" in page.read_text(encoding="utf-8")
    assert not (terminal.run("quiet", *FEW, "run.report=false") / "report.html").exists()

    def fails(*_: object) -> None:
        raise UserError("report: plotly is not installed")

    monkeypatch.setattr(report_cli.page, "write", fails)  # type: ignore[attr-defined]
    answer = terminal.done("run", "digits", "run.rounds=1", "run.name=bare", *FEW)  # a report never spoils a run
    assert "no report: report: plotly is not installed" in answer.err


def test_reports_are_written_where_they_are_expected(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    terminal.run("one", *FEW, "run.report=false")
    terminal.run("two", *FEW, "run.report=false", "algorithm.name=fedprox")
    assert terminal.done("report", "runs/one").out == "Written: runs/one/report.html\n"
    assert terminal.done("report", "runs/one", "runs/two", "--open").out == "Written: report.html\n"
    assert opened == [(terminal.here / "report.html").as_uri()]
    assert "2 runs compared" in (terminal.here / "report.html").read_text(encoding="utf-8")
    terminal.done("report", "runs/two", "--out", "mine/two.html")
    assert (terminal.here / "mine" / "two.html").exists()


def test_mistakes_are_sentences(terminal: Terminal) -> None:
    assert "runs is not the folder of a run" in terminal.refused("report", "runs")
    terminal.run("one", *FEW, "run.report=false")
    terminal.write("notes.html", "mine")
    assert "notes.html exists and is not a report" in terminal.refused("report", "runs/one", "--out", "notes.html")
    assert "11 runs; a page shows from 1 to 10" in terminal.refused("report", *["runs/one"] * 11)


def test_silos_leave_a_map(terminal: Terminal) -> None:
    folder = terminal.run("silos", "algorithm.name=dpasgd", "clients.count=4", "run.rounds=2")
    assert "ring: " in (folder / "overlay.svg").read_text(encoding="utf-8")
    assert '<figure class="card picture">' in (folder / "report.html").read_text(encoding="utf-8")
