"""A client that stays loaded: this process keeps its place at the server, `turnout.deploy.worker` computes.

The node holds the connection and beats its heart while the worker trains; it imports no model. A worker that dies costs
the job it was at: the server is told, and another worker is started. Whatever app a run names is neither fetched nor
run: what a client computes is in the Turnout that is installed there.

    python -m turnout.deploy.node FOLDER HOST:PORT           (started by turnout deploy client)
"""

from __future__ import annotations

import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, Self

from turnout.core.errors import UserError
from turnout.deploy import fleet, frames
from turnout.deploy.fleet import Fleet, Letter, LostError, RefusedError

_JOBS = 1000  # of one worker; then another takes its place: what leaks is given back
_SOON, _LATE = 0.02, 1.0  # seconds between two looks for a message: a tenth of the time that none has come
_GRACE = 2.0  # seconds of a worker to end
_ADMITTED_AGAIN = 60.0  # seconds that a server which has been restarted has to know this node again


class DeadError(Exception):
    """The worker has ended in the middle."""


class Desk:
    """Where the worker sits, as a context: it is started on entering, and again whenever it has died."""

    def __init__(
        self, folder: Path, command: tuple[str, ...] = (sys.executable, "-P", "-m", "turnout.deploy.worker")
    ) -> None:
        self.folder, self._command = folder, command

    def __enter__(self) -> Self:
        self._start()
        try:
            self._await()
        except DeadError as error:
            raise UserError(f"deploy: the client of {self.folder} cannot be loaded: {error}") from error
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [*self._command, str(self.folder), str(theirs.fileno())]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self._ready, self._jobs = False, 0

    def _end(self) -> None:
        self._channel.close()
        self.process.terminate()
        try:
            self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _await(self) -> None:
        """Wait until the worker has loaded what it needs."""
        if not self._ready:
            self._read()
            self._ready = True

    def _read(self) -> bytes:
        try:
            return frames.receive(self._channel)
        except (EOFError, OSError):
            raise self._dead() from None

    def _send(self, data: bytes) -> None:
        try:
            frames.send(self._channel, data)
        except OSError:
            raise self._dead() from None

    def _dead(self) -> DeadError:
        self._channel.close()
        code = self.process.wait()
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return DeadError(f"its worker has ended by {how}")

    def again(self) -> None:
        """Put another worker in the place of this one."""
        self._end()
        self._start()

    def ask(self, letter: Letter, parts: Iterable[bytes]) -> tuple[Letter, Iterator[bytes]]:
        """Hand a message on, part by part, and take the answer in the same way."""
        if self._jobs == _JOBS:
            self.again()
        self._await()
        self._jobs += 1
        for frame in fleet.to_bytes(letter):
            self._send(frame)
        try:
            for part in parts:
                self._send(part)
        except LostError:
            self.again()  # this one still waits for the rest
            raise
        reply = fleet.from_bytes(self._read(), self._read())
        return reply, (self._read() for _ in reply.names())


class Server(Protocol):
    """What `attend` needs of a `Fleet`."""

    def receive(self) -> Letter | None: ...
    def parts(self, letter: Letter) -> Iterator[bytes]: ...
    def answer(self, letter: Letter, parts: Iterable[bytes], seconds: float) -> None: ...


def attend(server: Server, desk: Desk, sleep: Callable[[float], None] = time.sleep) -> None:
    """Answer the server's messages for ever."""
    last = time.monotonic()
    while True:
        try:
            letter = server.receive()
            if letter is not None:
                carry_out(server, desk, letter)
                last = time.monotonic()
                continue
        except LostError as error:
            _say(f"a message is dropped: {error}")
        sleep(min(max((time.monotonic() - last) / 10, _SOON), _LATE))


def carry_out(server: Server, desk: Desk, letter: Letter) -> None:
    """Answer one message; if the worker dies of it, that is the answer."""
    begun = time.monotonic()
    try:
        reply, parts = desk.ask(letter, server.parts(letter))
        try:
            server.answer(reply, parts, time.monotonic() - begun)
        finally:
            for _ in parts:  # that nobody wants any more
                pass
    except DeadError as error:
        desk.again()
        _say(f"{error}, and another is started")
        reply, parts = fleet.cut(fleet.failure(letter.about, str(error)))
        server.answer(reply, parts, time.monotonic() - begun)


def _say(what: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main(folder: Path, address: str) -> None:
    """Take part until told to end; a server that was restarted is joined again."""
    key, admitted = fleet.node_key(folder / "node.key"), -math.inf
    with Desk(folder) as desk:
        while True:
            try:
                with Fleet(address, folder / "ca.pem", key, say=_say) as server:
                    _say(f"connected to {address}")
                    try:
                        attend(server, desk)
                    finally:
                        admitted = time.monotonic()
            except RefusedError as error:
                if time.monotonic() > admitted + _ADMITTED_AGAIN:
                    raise UserError(f"deploy: the server at {address} {error}") from error
                time.sleep(1.0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        sys.exit(2)
