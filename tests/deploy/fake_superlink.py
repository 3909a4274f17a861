"""A SuperLink with one node, in this process, as far as a node's connection sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse, PushObjectResponse
from flwr.supercore.task_identity import TaskIdentity

from turnout.deploy import fleet, keys
from turnout.deploy.fleet import Fleet, Letter


class OverError(Exception):
    """Nothing more happens."""


class Link:
    """A SuperLink with one node: messages go out in order, answers are kept, `trouble` is raised once each by name."""

    def __init__(self, messages: list[Message]) -> None:
        self.cut = [fleet.cut(message) for message in messages]
        self.parts = {
            name: part for letter, parts in self.cut for name, part in zip(letter.names(), parts, strict=True)
        }
        self.letters = [letter for letter, _ in self.cut]
        self.late = 0  # looks for a part that is not there yet
        self.trouble: list[tuple[str, Exception]] = []
        self.told: list[str] = []
        self.announced: list[Message] = []
        self.got: dict[str, bytes] = {}

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.told.append("closed")

    def __getattr__(self, name: str) -> Any:
        def call(request: Any) -> Any:
            self.told.append(name)
            for trouble in [each for each in self.trouble if each[0] == name]:
                self.trouble.remove(trouble)
                raise trouble[1]
            return getattr(self, f"_{name}", lambda _: ConfirmMessageReceivedResponse())(request)

        if not name[0].isupper():
            raise AttributeError(name)
        return call

    def _ActivateNode(self, request: Any) -> Any:  # noqa: N802
        return ActivateNodeResponse(node_id=1001)

    def _SendNodeHeartbeat(self, request: Any) -> Any:  # noqa: N802
        return SendNodeHeartbeatResponse(success=True)

    def _PullMessages(self, request: Any) -> Any:  # noqa: N802
        if not self.letters:
            raise OverError
        letter = self.letters.pop(0)
        return PullMessagesResponse(messages_list=[message_to_proto(letter.about)], message_object_trees=[letter.tree])

    def _PullObject(self, request: Any) -> Any:  # noqa: N802
        self.late -= 1
        known = request.object_id in self.parts
        part = self.parts.get(request.object_id, b"") if self.late < 0 else b""
        return PullObjectResponse(object_found=known, object_available=part != b"", object_content=part)

    def _PushMessages(self, request: Any) -> Any:  # noqa: N802
        self.announced.append(message_from_proto(request.messages_list[0]))
        self.trees = request.message_object_trees
        names = Letter(self.announced[-1], self.trees[0]).names()
        return PushMessagesResponse(objects_to_push=names, session_id="session")

    def _PushObject(self, request: Any) -> Any:  # noqa: N802
        self.got[request.object_id] = request.object_content
        return PushObjectResponse(stored=request.session_id == "session")

    def answer(self) -> Message:
        return fleet.opened(self.trees[0], self.got)


def node_key(folder: Path) -> Any:
    """A new node's private key."""
    keys.make_node_key(folder / "node.key")
    return fleet.node_key(folder / "node.key")


def connected(link: Link, key: Any, said: list[str] | None = None) -> Fleet:
    says = (lambda _: None) if said is None else said.append
    return Fleet("host:1", Path("ca.pem"), key, link, lambda _: None, says)


def message(content: RecordDict | None = None, kind: str = "train") -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
    return Message(content or RecordDict(), 1001, kind, ttl=1000.0)
