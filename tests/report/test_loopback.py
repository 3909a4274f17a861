"""What the server of a board answers, and whom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from boards import copied, every_end

from turnout import UserError
from turnout.report.index import Index
from turnout.report.loopback import ADDRESS, Board


class Said(NamedTuple):
    status: int
    headers: Any
    text: str


@pytest.fixture(scope="module")
def server(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = every_end(digits, tmp_path_factory.mktemp("board") / "runs")
    (folder.parent / "secret.txt").write_text("a secret")
    (folder / "leading-out").symlink_to(folder.parent)
    with Board(Index(folder, fresh=0), 0) as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: Board, target: str, method: str = "GET", body: str | None = None, **headers: str) -> Said:
    line = HTTPConnection(ADDRESS, server.server_port, timeout=30)
    try:
        line.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer: HTTPResponse = line.getresponse()
        return Said(answer.status, answer.headers, answer.read().decode())
    finally:
        line.close()


def test_the_page_and_what_it_knows(server: Board) -> None:
    page = ask(server, "/")
    assert page.status == 200 and page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert ask(server, "/index.html").text == page.text
    known = json.loads(ask(server, "/runs.json").text)
    assert known["live"] is True
    assert {run["name"] for run in known["runs"]} >= {"finished", "sweep/lr=0.1"}
    assert "window.Plotly" in ask(server, "/plotly.js").text


ANSWERS = ("/", "/runs.json", "/plotly.js", "/runs/finished/report.html", "/nothing", "/runs/broken/report.html")
OTHERS = (
    *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost@evil.example", "", "[::1", "0.0.0.0"),
    "localhost.",
)


@pytest.mark.parametrize("target", ANSWERS)
def test_every_answer_is_shut_in(server: Board, target: str) -> None:
    headers = ask(server, target).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "http:" not in policy and "*" not in policy and "unsafe-eval" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Server"] == "Turnout"
    assert "Access-Control-Allow-Origin" not in headers
    if target in ("/", "/runs/finished/report.html"):
        assert "frame-ancestors 'none'" in policy and "script-src 'unsafe-inline'" not in policy


def test_it_listens_on_loopback_alone(server: Board) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/"


@pytest.mark.parametrize("host", OTHERS)
def test_pages_of_other_names_learn_nothing(server: Board, host: str) -> None:
    for target in ("/", "/runs.json", "/runs/finished/report.html"):
        said = ask(server, target, Host=host)
        assert said.status == 403
        assert "finished" not in said.text


def test_two_names_are_none(server: Board) -> None:
    line = HTTPConnection(ADDRESS, server.server_port, timeout=30)
    line.putrequest("GET", "/", skip_host=True)
    for name in ("localhost", "evil.example"):
        line.putheader("Host", name)
    line.endheaders()
    assert line.getresponse().status == 403
    line.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST:9000"])
def test_it_answers_by_the_names_of_this_machine(server: Board, host: str) -> None:
    assert ask(server, "/runs.json", Host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "PURGE"])
def test_it_is_only_looked_at(server: Board, method: str) -> None:
    said = ask(server, "/", method, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (said.status, said.headers["Allow"], said.headers["Connection"]) == (405, "GET", "close")


@pytest.mark.parametrize(
    "target",
    [
        "/secret.txt", "/../secret.txt", "/runs/../secret.txt", "/runs/%2e%2e/secret.txt/report.html", "/%00",
        "/..%2fsecret.txt", "/runs/../../report.html", "/runs//etc/passwd/report.html", "/runs/finished/config.toml",
        "/runs/finished/", "/runs/leading-out/runs/finished/report.html", "/runs/.finished.lock/report.html",
        "/runs/%00/report.html", "/compare.html", "/compare.html?run=../secret.txt", "//evil.example/",
        "/compare.html?run=finished&run=none",
    ],
)  # fmt: skip
def test_no_address_leads_to_a_file(server: Board, target: str) -> None:
    said = ask(server, target)
    assert said.status == 404
    assert "secret" not in said.text and "root:" not in said.text


def test_reports_are_made_when_they_are_asked_for(server: Board) -> None:
    said = ask(server, f"/runs/{quote('sweep/lr=0.1')}/report.html")
    assert said.status == 200
    assert "../../../plotly.js" in said.text
    assert not (server.index.folder / "sweep/lr=0.1/report.html").exists()
    compared = ask(server, "/compare.html?run=finished&run=diverged")
    assert (compared.status, "2 runs compared" in compared.text or "2 seeds" in compared.text) == (200, True)


def test_what_cannot_be_shown_is_a_sentence(server: Board) -> None:
    said = ask(server, "/runs/broken/report.html")
    assert said.status == 409
    assert "history/000000.parquet is damaged: it is not what was written" in said.text
    many = "&".join(["run=finished"] * 11)
    assert "11 runs; a report shows from 1 to 10" in ask(server, f"/compare.html?{many}").text


def test_what_has_not_changed_is_not_sent_again(server: Board, digits: Path) -> None:
    tag = ask(server, "/runs.json").headers["ETag"]
    again = ask(server, "/runs.json", If_None_Match=tag)
    assert (again.status, again.text) == (304, "")
    copied(digits, server.index.folder / "later")
    said = ask(server, "/runs.json", If_None_Match=tag)
    assert said.status == 200
    assert "later" in [run["name"] for run in json.loads(said.text)["runs"]]


def test_a_port_that_is_taken(server: Board) -> None:
    index = Index(server.index.folder)
    with pytest.raises(UserError, match=rf"^--port: {server.server_port} is taken on this machine; give another, or 0"):
        Board(index, server.server_port)
    with pytest.raises(UserError, match=r"^--port: 70000 must be between 0 and 65535"):
        Board(index, 70_000)
