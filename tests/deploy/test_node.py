"""A client that stays loaded: its node, its worker, and the bytes between them. The network is one in this process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_network import World
from fake_superlink import Link, OverError, connected, message, node_key
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from test_deployment import ALGORITHMS

from turnout.core.errors import UserError
from turnout.deploy import fleet, frames, keys, node, wire, worker
from turnout.deploy.fleet import Letter, RefusedError
from turnout.deploy.node import DeadError, Desk


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return node_key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One round has been carried out: there are honest questions to ask again."""
    made = World(tmp_path_factory.mktemp("world"), ALGORITHMS["fedavg"])
    made.server(rounds=1).run()
    return made


# -- the two processes --------------------------------------------------------------------------------------------


class Beside(Desk):
    """A desk whose worker is a thread of this process."""

    def __init__(self, client: Any) -> None:
        super().__init__(Path("nowhere"))
        self.client, self.sent = client, list[int]()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        self.thread = threading.Thread(target=worker.attend, args=[self.client, theirs], daemon=True)
        self.thread.start()
        self._ready, self._jobs = False, 0

    def _end(self) -> None:
        self._channel.close()
        self.thread.join(10)

    def _send(self, data: bytes) -> None:
        self.sent.append(len(data))
        super()._send(data)


def through(desk: Desk, messages: list[Message], key: Any) -> list[Message]:
    """What the server gets for these messages."""
    answers = []
    for each in messages:
        link = Link([each])
        with connected(link, key) as server, pytest.raises(OverError):
            node.attend(server, desk, lambda _: None)
        answers.append(link.answer())
    return answers


@pytest.mark.parametrize("small", [wire.SMALL, -1])
def test_a_job_through_node_and_worker_is_the_job_itself(
    world: World, key: Any, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SMALL", small)
    client, asked = world.grid.asked[0]
    expected = wire.apart(world.workers[client].train(asked.content), "answer", "payload")
    with Beside(world.workers[client]) as desk:
        (reply,) = through(desk, [asked], key)
    facts, arrays = wire.apart(reply.content, "answer", "payload")
    assert facts == expected[0]
    assert arrays == expected[1]
    assert len(fleet.cut(reply)[0].names()) == (3 if small > 0 else 6)


def test_a_question_has_three_parts_where_it_is_small(world: World) -> None:
    for _, asked in world.grid.asked:
        assert len(fleet.cut(asked)[0].names()) == 3


def test_what_a_client_raises_is_an_answer_and_the_worker_stays(world: World, key: Any) -> None:
    client, asked = world.grid.asked[0]
    with Beside(world.workers[client]) as desk:
        wrong, unknown, right = through(desk, [message(), message(kind="query"), asked], key)
    assert str(wrong.error.reason).startswith("ValueError: not facts and arrays")
    assert "trains and evaluates; the server asks it to query" in str(unknown.error.reason)
    assert right.has_content()


def test_a_node_never_holds_two_parts_of_a_message() -> None:
    """Each is handed on before the next is fetched, in both directions."""
    happened = list[str]()

    class Here(Desk):
        def _send(self, data: bytes) -> None:
            happened.append("on")

        def _await(self) -> None: ...

        def _read(self) -> bytes:
            happened.append("back")
            return reply.pop(0)

    class Server:
        def receive(self) -> Letter | None:
            return None

        def parts(self, letter: Letter) -> Iterator[bytes]:
            for part in contents:
                happened.append("fetched")
                yield part

        def answer(self, letter: Letter, parts: Any, seconds: float) -> None:
            for _ in parts:
                happened.append("pushed")

    arrays = {str(number): wire.encode(torch.full((9,), number)) for number in range(5)}
    large = RecordDict({"ask": ConfigRecord(), "model": ArrayRecord(arrays)})
    letter, contents = fleet.cut(message(large))
    answered, parts = fleet.cut(Message(large, reply_to=letter.about))
    reply = [*fleet.to_bytes(answered), *parts]
    desk = Here(Path("nowhere"))
    desk._jobs = 0
    node.carry_out(Server(), desk, letter)
    count = len(letter.names())
    assert count > 6
    assert happened == ["on"] * 2 + ["fetched", "on"] * count + ["back"] * 2 + ["back", "pushed"] * count


LIGHT = """
import os, signal, socket, sys
from pathlib import Path
from turnout.deploy import frames
channel, folder = socket.socket(fileno=int(sys.argv[2])), Path(sys.argv[1])
frames.end_with(channel)
frames.send(channel, b"ready")
kept = []
while True:
    kept.append(frames.receive(channel))
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if len(kept) == 2 + 2:  # a message without content has two parts: itself and an empty record
        for frame in kept:
            frames.send(channel, frame)
        kept.clear()
"""


def test_a_worker_that_is_killed_costs_one_job(tmp_path: Path, key: Any) -> None:
    """The node stays where it is, and another worker does the next."""
    with Desk(tmp_path, (sys.executable, "-c", LIGHT)) as desk:
        first = desk.process.pid
        killed, answered, again = through(desk, [message(), message(), message()], key)
        assert desk.process.pid != first
    assert killed.error.reason == "its worker has ended by signal 9 (SIGKILL)"
    assert answered.has_content()
    assert again.has_content()
    assert desk.process.returncode in (0, 1, -signal.SIGTERM)


def test_another_worker_takes_its_place_after_many_jobs(world: World, key: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(node, "_JOBS", 2)
    client, asked = world.grid.asked[0]
    with Beside(world.workers[client]) as desk:
        threads = [id(desk.thread)]
        for _ in range(3):
            assert through(desk, [asked], key)[0].has_content()
            threads.append(id(desk.thread))
    assert threads[0] == threads[1] == threads[2] != threads[3]


def test_a_message_that_is_lost_in_the_middle_does_not_stop_the_node(world: World, key: Any) -> None:
    client, asked = world.grid.asked[0]
    link, lost = Link([asked, world.grid.asked[0][1]]), fleet.cut(asked)[0].names()[-1]
    whole, link.parts = dict(link.parts), {k: v for k, v in link.parts.items() if k != lost}
    with Beside(world.workers[client]) as desk, connected(link, key) as server:
        pull = server.receive

        def receive() -> Letter | None:
            letter = pull()
            if not link.letters:
                link.parts = whole
            return letter

        server.receive = receive  # type: ignore[method-assign]
        with pytest.raises(OverError):
            node.attend(server, desk, lambda _: None)
    assert len(link.announced) == 1


def test_a_client_that_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be loaded: its worker has ended by exit code 2"):
        Desk(tmp_path, (sys.executable, "-c", "import sys; sys.exit(2)")).__enter__()


def test_a_worker_ends_with_its_node() -> None:
    ours, theirs = socket.socketpair()
    script = "import socket, sys, time; from turnout.deploy import frames; "
    script += "frames.end_with(socket.socket(fileno=int(sys.argv[1]))); print(flush=True); time.sleep(600)"
    command = [sys.executable, "-c", script, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as process:
        theirs.close()
        assert process.stdout is not None
        process.stdout.read(1)
        ours.close()
        assert process.wait(60) == 1


def test_frames_keep_their_lengths() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for data in (b"", b"x", b"y" * 70_000):
            frames.send(ours, data)
            assert frames.receive(theirs) == data
        ours.sendall((9).to_bytes(8, "big") + b"short")
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            frames.receive(theirs)


# -- from the beginning to the end --------------------------------------------------------------------------------


def test_a_stranger_is_refused_and_a_restarted_server_is_joined_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once admitted, a node waits for a server that does not know it yet; before, it ends with a sentence."""
    keys.make_node_key(tmp_path / "node.key")
    happens = iter(["admitted", "refused", "refused", "admitted", "late", "refused"])
    now = [0.0]

    class Scripted:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> Scripted:
            what = next(happens)
            if what == "refused":
                raise RefusedError("does not admit this node (no)")
            return self

        def __exit__(self, *_: object) -> None: ...

    def attend(*_: Any) -> None:
        raise RefusedError("does not admit this node any more")

    class Nobody:
        def __init__(self, _: Path) -> None: ...

        def __enter__(self) -> Nobody:
            return self

        def __exit__(self, *_: object) -> None: ...

    def sleep(seconds: float) -> None:
        now[0] += seconds if len(waits) < 4 else 100.0
        waits.append(seconds)

    waits = list[float]()
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, strftime=lambda _: "now")
    monkeypatch.setattr(node, "Fleet", Scripted)
    monkeypatch.setattr(node, "attend", attend)
    monkeypatch.setattr(node, "Desk", Nobody)
    monkeypatch.setattr(node, "time", clock)
    with pytest.raises(UserError, match="the server at host:1 does not admit this node"):
        node.main(tmp_path, "host:1")
    assert len(waits) == 5
    assert next(happens, None) is None
    happens = iter(["refused"])
    with pytest.raises(UserError, match="host:1 does not admit"):
        node.main(tmp_path, "host:1")
    assert len(waits) == 5


def test_dead_is_told_by_exit_code_or_signal() -> None:
    desk = Desk(Path("nowhere"))
    desk._channel = socket.socketpair()[0]
    desk.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(DeadError, match="exit code 3"):
        raise desk._dead()
