"""A board served to this machine alone: every answer is made of what the index knows; no address leads to a file."""

from __future__ import annotations

import errno
import hashlib
import json
import sys
from collections.abc import Mapping
from functools import cached_property
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from turnout.core.errors import UserError
from turnout.report import board, page
from turnout.report.index import Index, Row

ADDRESS = "127.0.0.1"
_HOSTS = (ADDRESS, "localhost")  # a page of another name that leads here is not ours: DNS rebinding
_SILENT = 30  # seconds until a connection is given up
_SAFE = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Answer(NamedTuple):
    """What is sent back."""

    text: str | bytes
    kind: str = "text/html"
    policy: str = "default-src 'none'"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = MappingProxyType({})


def sentence(text: str, status: HTTPStatus, **headers: str) -> Answer:
    """A page that says what is wrong."""
    words = f"<p>{escape(text)}</p>" + ("" if status == HTTPStatus.FORBIDDEN else '<p><a href="/">All runs</a></p>')
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{status.phrase}</title>'
    return Answer(head + words, status=status, headers=headers)


class Board(ThreadingHTTPServer):
    """The server of a board on loopback; `port` 0 is any that is free."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, index: Index, port: int) -> None:
        self.index = index
        self._known: tuple[int, board.Document] = (-1, {})  # changes of the index, and what it knew then
        self._looking, self._reporting = Lock(), Lock()
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OverflowError as error:
            raise UserError(f"--port: {port} must be between 0 and 65535") from error
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "is taken" if error.errno == errno.EADDRINUSE else "may not be used"
            raise UserError(f"--port: {port} {why} on this machine; give another, or 0 for one that is free") from error

    def server_bind(self) -> None:
        """Take the port; the name of this machine is nobody's business, and is not looked up."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def known(self) -> board.Document:
        """All that the page shows, made again when a run has changed."""
        with self._looking:
            rows = self.index.rows()
            if self._known[0] != self.index.changes:
                self._known = self.index.changes, board.document(rows, self.index.folder, live=True)
            return self._known[1]

    def answer(self, target: str) -> Answer:
        """The answer to a GET of this target, from a page of the board."""
        asked = urlsplit(target)
        match unquote(asked.path, errors="surrogateescape").split("/")[1:]:
            case [""] | ["index.html"]:
                return Answer(board.board(self.known()), policy=f"{board.policy()}; frame-ancestors 'none'")
            case ["runs.json"]:
                return Answer(json.dumps(self.known(), allow_nan=False), "application/json")
            case [page.PLOTLY]:
                return Answer(self._library, "text/javascript")
            case ["compare.html"]:
                query = parse_qs(asked.query, errors="surrogateescape")
                return self._report(query.get("run", []))
            case ["runs", *names, "report.html"]:
                return self._report(["/".join(names)], alone=True)
        return sentence("There is no such page.", HTTPStatus.NOT_FOUND)

    @cached_property
    def _library(self) -> bytes:
        return page.plotly_library()

    def _report(self, names: list[str], alone: bool = False) -> Answer:
        rows: dict[str, Row] = {row.name: row for row in self.index.rows()}
        if not names or not all(name in rows for name in names):
            return sentence("There is no such run.", HTTPStatus.NOT_FOUND)
        with self._reporting:  # one at a time: runs that are under way need the machine
            found = [rows[name] for name in names]
            text = board.report(found[0]) if alone else board.compared(found)
        return Answer(text, policy=f"{page.policy()}; frame-ancestors 'none'")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked may go away at any time."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Board
    protocol_version = "HTTP/1.1"
    timeout = _SILENT

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command != "GET":
            self.close_connection = True  # what follows the head is not read
            self._send(sentence("A board is only looked at: GET.", HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET"))
            return False
        return True

    def do_GET(self) -> None:
        if not _is_ours(self.headers.get_all("Host", [])):
            self._send(sentence("A board answers by the name localhost or 127.0.0.1.", HTTPStatus.FORBIDDEN))
            return
        try:
            answer = self.server.answer(self.path)
        except (UserError, OSError) as error:
            answer = sentence(str(error), HTTPStatus.CONFLICT)
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        body = answer.text if isinstance(answer.text, bytes) else answer.text.encode(errors="replace")
        tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
        same = answer.status == HTTPStatus.OK and self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if same else answer.status)
        kind = {"Content-Type": f"{answer.kind}; charset=utf-8", "Content-Security-Policy": answer.policy}
        for name, value in {**_SAFE, **kind, **answer.headers, "ETag": tag}.items():
            self.send_header(name, value)
        if not same:
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if not same and self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "Turnout"

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the terminal is for what a person has to read."""


def _is_ours(hosts: list[str]) -> bool:
    """Whether a request names this machine, by whatever port."""
    try:
        return len(hosts) == 1 and urlsplit(f"//{hosts[0]}").hostname in _HOSTS
    except ValueError:
        return False
