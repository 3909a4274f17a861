"""Hostile bytes change nothing and stop nothing: whatever a client sends is rejected, logged with its name, and the run
goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_network import FIRST_NODE, World
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body
from mutated_replies import verdict, verdicts, wrong
from mutations import honest
from test_deployment import ALGORITHMS

from turnout import Observer, Stopping
from turnout.cli._command import sentences
from turnout.core.errors import FailedError, UserError
from turnout.deploy import server
from turnout.deploy.link import Link
from turnout.deploy.screen import Rejection, Reply
from turnout.deploy.wire import apart

LIAR = 1
Parts = dict[str, bytes]


def test_honest_replies_are_taken() -> None:
    for base in honest():
        assert verdict(base.asked, *base.parts) == "accepted rightly", base.kind


def test_no_mutated_reply_is_taken_wrongly_and_none_raises() -> None:
    found = verdicts(5000, seed=0)
    assert not wrong(found)
    assert found["accepted rightly"] > 500  # another number is as good as the one before
    assert found["rejected"] > 3000


# -- a whole run --------------------------------------------------------------------------------------------------


def renamed(said: dict[str, Any], arrays: dict[str, Any] | None = None) -> Callable[[Message], RecordDict]:
    """The honest answer with other facts and arrays."""

    def content(reply: Message) -> RecordDict:
        honest, payload = apart(reply.content, "answer", "payload")
        facts, own = {**honest, **said}, ArrayRecord({**payload, **(arrays or {})})
        return RecordDict({"answer": ConfigRecord({k: v for k, v in facts.items() if v is not None}), "payload": own})

    return content


def headed(text: bytes) -> Callable[[Message], RecordDict]:
    """An array whose header NumPy chokes on."""

    def content(reply: Message) -> RecordDict:
        honest = apart(reply.content, "answer", "payload")[1]["delta"]
        line = text + b" " * (-len(text) % 64) + b"\n"
        data = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + honest.data[128:]
        return renamed({}, {"delta": Array(honest.dtype, honest.shape, honest.stype, data)})(reply)

    return content


HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': "
SAID: dict[str, Callable[[Message], RecordDict | Error]] = {
    "token error": headed(HEADER + b"(75"),
    "type error": headed(b"{[]: 1}"),
    "recursion": headed(b"(" * 5000),
    "a whole number of 40 digits": headed(HEADER + b"(" + b"9" * 40 + b",), }"),
    "an archive": renamed({}, {"delta": Array("float32", (75,), "numpy.ndarray", b"PK\x03\x04" + b"x" * 300)}),
    "unknown question": lambda _: RecordDict(
        {"answer": ConfigRecord({"client": LIAR, "job": 5, "needs": "money"}), "payload": ArrayRecord()}
    ),
    "list for a number": renamed({"samples": [1, 2]}),
    "another fact": renamed({"more": "x" * 5000}),
    "other kind of record": lambda r: RecordDict(
        {"answer": MetricRecord({"steps": 1}), "payload": renamed({})(r)["payload"]}
    ),
    "blank reason": lambda _: Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, " \n\t "),
    "reason that is a log line": lambda _: Error(6, "x\nround 9, 5 s: stopped (all is well)\x1b[2J"),
    "reason without end": lambda _: Error(6, "x\n" * 10**6),
}


def bomb(root: str, parts: Parts) -> str:
    """An array that names its one part a hundred thousand times."""
    for name, part in parts.items():
        if part.startswith(b"Array "):
            about = json.loads(part.partition(b"\0")[2]) | {"arraychunk_ids": [0] * 100_000}
            body = json.dumps(about).encode()
            parts[name] = part.partition(b"\0")[0].rpartition(b" ")[0] + b" %d\0" % len(body) + body
    return root


def without(kind: bytes) -> Callable[[str, Parts], str]:
    def spoil(root: str, parts: Parts) -> str:
        for name in [name for name, part in parts.items() if part.startswith(kind)]:
            parts[name] = b""  # announced, and never sent
        return root

    return spoil


def only(kind: bytes) -> Callable[[str, Parts], str]:
    return lambda _root, parts: next(name for name, part in parts.items() if part.startswith(kind))


def garbled(root: str, parts: Parts) -> str:
    parts[root] = parts[root][:-7] + b"\xff" * 7
    return root


def own_metadata(root: str, parts: Parts) -> str:
    """A reply that says of itself that it comes from another and answers another question: nobody believes it."""
    body = parts[root].replace(b"message-", b"massage-")
    parts[root] = body
    return root


TRAVELS: dict[str, tuple[Callable[[str, Parts], str], str]] = {
    "bomb": (bomb, "rejected"),
    "nothing but records": (only(b"RecordDict "), "rejected"),
    "garbled": (garbled, "rejected"),
    "never sent": (without(b"ConfigRecord "), "offline"),
    "own metadata": (own_metadata, "arrived"),
}


def test_a_run_goes_on_whatever_a_client_sends(tmp_path: Path) -> None:
    """Client 1 lies in every job, each time in another way: as if it had died each time, but for the last, where it
    only lies about who it is."""
    said, travels = list(SAID.values()), list(TRAVELS.values())
    rounds = len(said) + len(travels)
    lied, died = (World(tmp_path / name, ALGORITHMS["fedavg"]) for name in "ab")

    def number(message: Message) -> int:
        return int(message.content.config_records["ask"]["number"])  # type: ignore[arg-type]

    asked_number: dict[str, int] = {}

    def lies(client: int, asked: Message, reply: Message) -> list[Message]:
        if client == LIAR:
            asked_number[asked.metadata.message_id] = job = number(asked)
            lie = said[job] if job < len(said) else renamed({})  # in as many parts as an answer can have
            return [Message(lie(reply), reply_to=asked)]
        return [reply]

    def spoil(reply: Message, root: str, parts: Parts) -> str:
        job = asked_number.get(reply.metadata.reply_to_message_id, 0)
        return travels[job - len(said)][0](root, parts) if job >= len(said) else root

    def dies(client: int, asked: Message, reply: Message) -> list[Message]:
        gone = client == LIAR and number(asked) < rounds - 1
        return [Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=asked)] if gone else [reply]

    lied.grid.tamper, lied.grid.link.spoil, died.grid.tamper = lies, spoil, dies
    model = lied.server(rounds=rounds, evaluate="server", reply_seconds=20.0).run().model
    assert torch.equal(model, died.server(rounds=rounds, evaluate="server").run().model)
    jobs = lied.jobs()
    outcomes = jobs["outcome"][jobs["client"] == LIAR].tolist()
    errors = [name for name in SAID if "reason" in name]
    expected = ["crashed" if name in errors[:2] else "rejected" for name in SAID] + [how for _, how in TRAVELS.values()]
    assert outcomes == expected
    assert set(jobs["outcome"][jobs["client"] != LIAR]) == {"arrived"}
    told = [facts for kind in ("rejected_reply", "failed_job", "gave_up") for facts in lied.events.of(kind)]
    assert sorted(facts["job"] for facts in told if "job" in facts) == list(range(rounds - 1))
    assert {facts["client"] for facts in told} == {LIAR}
    assert all(len(str(event).splitlines()) == 1 and str(event).isprintable() for event in lied.events.all)
    assert [facts["why"] for facts in lied.events.of("failed_job")] == [
        "no reason given",
        "round 9, 5 s: stopped (all is well) [2J",
    ]


# -- bounds -------------------------------------------------------------------------------------------------------


def test_a_client_that_asks_for_the_model_for_ever_is_sent_it_once(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["cafed"])  # asks for losses, then trains on the model it sent

    def asks(client: int, asked: Message, reply: Message) -> list[Message]:
        facts = {"client": client, "job": asked.content.config_records["ask"]["number"], "needs": "model"}
        needs = RecordDict({"answer": ConfigRecord(facts), "payload": ArrayRecord()})
        return [Message(needs, reply_to=asked) if client == LIAR else reply]

    world.grid.tamper = asks
    world.server(rounds=3).run()
    jobs = world.jobs()
    own = jobs["client"] == LIAR
    sends = [message for client, message in world.grid.asked if client == LIAR]
    assert set(jobs["outcome"][own]) == {"rejected"}
    assert len(sends) <= 2 * own.sum()
    assert {facts["why"] for facts in world.events.of("rejected_reply")} == {str(Rejection.UNKNOWN_QUESTION)}


def test_no_more_is_kept_of_a_reply_than_an_honest_one_has() -> None:
    reply = Reply("asked", FIRST_NODE, "root", [], most=1000)
    reply.add("numbers", add_header_to_object_body(b"x" * 2000, ArrayChunkLike()))  # type: ignore[arg-type]
    assert not reply.parts
    with pytest.raises(Exception, match="more bytes"):
        reply.opened()
    words = Reply("asked", FIRST_NODE, "root", [], most=10**9)
    words.add("words", b"ConfigRecord  9\0" + b"x" * 10**6)
    assert not words.parts


class ArrayChunkLike:
    """What Flower calls a part of an array."""

    children = None


ArrayChunkLike.__qualname__ = "ArrayChunk"


MEASURES: dict[str, tuple[dict[str, Any], Rejection]] = {
    "accuracy": ({"test_accuracy": 1e308}, Rejection.BAD_MEASURES),
    "below 0": ({"test_accuracy": -0.5}, Rejection.BAD_MEASURES),
    "nan": ({"train_loss": float("nan")}, Rejection.NOT_FINITE),
    "text": ({"train_loss": "0.1"}, Rejection.BAD_MEASURES),
    "train samples": ({"train_samples": 10}, Rejection.BAD_COUNTS),
    "test samples": ({"test_samples": 2**40}, Rejection.BAD_COUNTS),
    "negative": ({"test_samples": -1}, Rejection.BAD_COUNTS),
    "half": ({"test_samples": 0.5}, Rejection.BAD_COUNTS),
    "more": ({"test_f1": 1.0}, Rejection.BAD_MEASURES),
}


def test_evaluation_answers_are_checked(tmp_path: Path) -> None:
    """As if the client had not answered; a target is not met by a lie."""
    rounds, lies = len(MEASURES), list(MEASURES.values())
    lied, silent = (World(tmp_path / name, ALGORITHMS["fedavg"]) for name in "ab")
    told = 0

    def tamper(client: int, asked: Message, reply: Message) -> list[Message]:
        nonlocal told
        if client != LIAR or asked.metadata.message_type != "evaluate":
            return [reply]
        facts = {**reply.content.config_records["answer"], **lies[told % rounds][0]}
        told += 1
        return [Message(RecordDict({"answer": ConfigRecord(facts), "measures": ArrayRecord()}), reply_to=asked)]

    lied.grid.tamper, lied.grid.tampers_with_measures = tamper, True
    silent.grid.tamper = lambda client, asked, reply: (
        [] if client == LIAR and asked.metadata.message_type == "evaluate" else [reply]
    )
    silent.grid.tampers_with_measures = True
    deployed = lied.server(rounds=rounds - 1)
    deployed.stopping = Stopping(rounds - 1, target=1.01, measure="test_accuracy")
    deployed.run()
    assert deployed.version == rounds - 1
    assert deployed.measures == silent.server(rounds=rounds - 1, evaluation_seconds=1.0).run().measures
    expected = [{"node": FIRST_NODE + LIAR, "client": LIAR, "why": str(why)} for _, why in lies]
    assert lied.events.of("rejected_reply") == expected[:told]
    assert told == rounds


# -- a server that dies -------------------------------------------------------------------------------------------


class Breaks(Observer):
    def on_round(self, server: Any, record: Any) -> None:
        raise ZeroDivisionError("nothing to\ndivide by")


def test_a_server_that_dies_says_why_and_after_whose_answer(tmp_path: Path) -> None:
    world = World(tmp_path, ALGORITHMS["fedavg"])
    server = world.server(evaluate="server")
    server.observers.append(Breaks())
    with pytest.raises(
        FailedError, match=r"after the answer of client 3 to job 0: ZeroDivisionError: nothing to divide by"
    ):
        server.run()
    (died,) = world.events.of("died")
    assert "ZeroDivisionError" in died["why"]
    assert "client 3 to job 0" in died["last"]


def test_a_server_that_died_is_one_sentence_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise FailedError("the server failed in round 2 after the answer of client 3 to job 5: KeyError: 'x'")

    monkeypatch.setattr(server, "serve", fails)
    link = object.__new__(Link)
    link.folder, link.child = tmp_path, SimpleNamespace(running=lambda: True, log=tmp_path / "link.log")  # type: ignore[assignment]
    context: Any = SimpleNamespace(run_config={"folder": str(tmp_path), "run": str(tmp_path / "run")})

    def start(*_: Any) -> int:
        with pytest.raises(FailedError):
            server.main(None, context)  # type: ignore[arg-type]
        return 1

    monkeypatch.setattr(link, "start", start)
    monkeypatch.setattr(link, "finished", lambda _: "failed")
    with pytest.raises(BaseException) as ended, sentences():
        link.carry_out(tmp_path / "run", poll=0.0)
    assert getattr(ended.value, "exit_code", None) == 1
    said = capsys.readouterr().err
    assert "client 3 to job 5: KeyError" in said
    assert "Traceback" not in said
    with pytest.raises(BaseException) as refused, sentences():
        raise UserError("x")
    assert getattr(refused.value, "exit_code", None) == 2
