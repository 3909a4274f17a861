from __future__ import annotations

import re
import webbrowser
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from terminal import Terminal

from turnout.report.index import Index
from turnout.report.loopback import Board

FEW = ("clients.count=6", "sampler.clients_per_round=3", "run.report=false")


def test_a_board_is_served_until_it_is_interrupted(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.run("one", *FEW)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)

    def one_answer(server: Board) -> None:
        server.timeout = 30
        line = HTTPConnection(urlsplit(opened[0]).netloc, timeout=30)
        line.request("GET", "/runs.json", headers={"Connection": "close"})
        server.handle_request()
        assert b'"name": "one"' in line.getresponse().read()
        raise KeyboardInterrupt

    monkeypatch.setattr(Board, "serve_forever", one_answer)
    said = terminal.done("board", "--port", "0", "--open").out
    assert re.fullmatch(
        r"1 run of runs at http://127\.0\.0\.1:\d+/ \(Ctrl-C ends it\)\nThe board has ended; the runs go on\.\n", said
    )


def test_a_board_is_written(terminal: Terminal) -> None:
    terminal.run("one", *FEW)
    assert terminal.done("board", "runs", "--write", "public").out == "Written: public/index.html\n"
    assert (terminal.here / "public/runs/one/report.html").exists()
    assert sorted(path.name for path in (terminal.here / "runs").iterdir()) == ["one"]


def test_mistakes_are_sentences(terminal: Terminal) -> None:
    assert terminal.refused("board") == "board: runs is not a folder; give the one that holds your runs, such as runs"
    (terminal.here / "runs").mkdir()
    with Board(Index(terminal.here / "runs"), 0) as taken:
        said = terminal.refused("board", "--port", str(taken.server_port))
        assert said.startswith(f"--port: {taken.server_port} is taken on this machine")
    assert terminal.refused("board", "--port", "70000") == "--port: 70000 must be between 0 and 65535"
    assert "--port: 1 has no use with --write" in terminal.refused("board", "--port", "1", "--write", "public")
    terminal.write("notes.txt", "mine")
    assert terminal.refused("board", "--write", ".") == "--write: . is not empty and not a board; name another folder"
