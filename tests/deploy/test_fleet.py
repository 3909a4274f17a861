"""A node's connection to the SuperLink: all that is taken of Flower's inner modules for it is called here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from fake_superlink import Link, connected, message, node_key
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

from turnout.core.errors import UserError
from turnout.deploy import fleet
from turnout.deploy.fleet import LostError, RefusedError


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return node_key(tmp_path_factory.mktemp("key"))


def refused(status: int, detail: str = "no") -> httpx.HTTPStatusError:
    response = httpx.Response(status, json={"code": 1, "detail": detail})
    return httpx.HTTPStatusError("no", request=httpx.Request("POST", "https://host"), response=response)


def test_a_message_is_fetched_and_answered(key: Any) -> None:
    asked = message()
    link = Link([asked])
    link.late = 2
    with connected(link, key) as server:
        letter = server.receive()
        assert letter is not None
        parts = dict(zip(letter.names(), server.parts(letter), strict=False))
        assert fleet.opened(letter.tree, parts).metadata.message_id == asked.metadata.message_id
        assert list(server.parts(letter))  # to its end: only then the server is told
        reply, contents = fleet.cut(Message(Error(6, "no"), reply_to=letter.about))
        server.answer(reply, contents, 0.5)
    assert link.answer().error.reason == "no"
    assert link.answer().metadata.reply_to_message_id == asked.metadata.message_id
    assert "ConfirmMessageReceived" in link.told
    assert link.told[-2:] == ["DeactivateNode", "closed"]


def test_memory_of_large_parts_is_given_back_at_once(key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's memory does not depend on the size of the model: httpx holds each part until it is collected."""
    collected = list[int]()
    monkeypatch.setattr(fleet, "gc", SimpleNamespace(collect=lambda: collected.append(1)))
    large = RecordDict({"model": ArrayRecord({"w": Array(np.arange(3 << 20))})})  # 24 MiB: 5 chunks
    link = Link([message(large)])
    with connected(link, key) as server:
        letter = server.receive()
        assert letter is not None
        list(server.parts(letter))
        assert len(collected) == 5
        reply, contents = fleet.cut(Message(large, reply_to=letter.about))
        server.answer(reply, contents, 0.0)
        assert len(collected) == 10


def test_a_server_that_is_away_is_tried_again(key: Any) -> None:
    link, said = Link([message()]), list[str]()
    link.trouble = [("ActivateNode", httpx.ConnectError("refused")), ("PullMessages", refused(503))]
    with connected(link, key, said) as server:
        assert server.receive() is not None
    assert [text.partition("host:1 ")[2] for text in said] == [
        "cannot be reached (refused); trying again",
        "answers again",
        "is not ready (HTTP 503); trying again",
        "answers again",
    ]


@pytest.mark.parametrize(
    ("call", "trouble", "kind", "words"),
    [
        ("ActivateNode", refused(404, "It is not registered"), RefusedError, "does not admit this node .*registered"),
        ("ActivateNode", httpx.ConnectError("CERTIFICATE_VERIFY_FAILED"), RefusedError, "not vouched for by ca.pem"),
        ("PullMessages", refused(401), RefusedError, "does not admit"),
        ("PullMessages", refused(403, "The run is over."), LostError, "over"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_it_is(key: Any, call: str, trouble: Exception, kind: type[Exception], words: str) -> None:
    link = Link([message()])
    link.trouble = [(call, trouble)]
    with pytest.raises(kind, match=words), connected(link, key) as server:
        server.receive()
    assert link.told[-1] == "closed"


def test_a_part_that_is_nowhere_is_not_waited_for(key: Any) -> None:
    link = Link([message()])
    link.parts.clear()
    with connected(link, key) as server, pytest.raises(LostError, match="nowhere"):
        letter = server.receive()
        assert letter is not None
        list(server.parts(letter))


def test_a_file_that_is_no_key_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "node.key").write_text("money")
    with pytest.raises(UserError, match="not a node's private key"):
        fleet.node_key(tmp_path / "node.key")
