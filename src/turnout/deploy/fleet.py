"""A node's place at a SuperLink: Flower's fleet connection, with TLS and the node's own key, without Flower's loop.

All that a client which stays loaded takes of Flower's inner modules is here. A message travels in parts, each named by
its digest; its tree says which. Parts are fetched and handed on one at a time, so a node never holds a whole model.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from turnout.core.errors import UserError
from turnout.deploy import flower_parts

_SHORT, _LONG = 0.005, 0.05  # seconds between two looks for a part that is announced and not there yet
_PATIENCE = 600.0  # seconds that such a part may take
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 10.0  # seconds between two attempts to reach a server
_LARGE = 1 << 20  # bytes of a request or an answer
_BUSY = (502, 503, 504)  # answers of a server that is there again soon


class RefusedError(Exception):
    """The server does not admit this node."""


class LostError(Exception):
    """A message is of no use any more, or a part of it is nowhere."""


class Letter(NamedTuple):
    """A message and the tree of its parts."""

    about: Message  # without its content
    tree: ObjectTree

    def names(self) -> list[str]:
        """Its parts, every one once, children first."""
        return list(dict.fromkeys(part.object_id for part in iterate_object_tree(self.tree)))


def opened(tree: ObjectTree, parts: Mapping[str, bytes]) -> Message:
    """The message that these parts are."""
    message = inflate_object_from_contents(tree.object_id, dict(parts))
    if not isinstance(message, Message):
        raise ValueError("it is no message")
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def cut(message: Message) -> tuple[Letter, Iterator[bytes]]:
    """A message in parts, in the order of their names; each is made when it is asked for."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        letter = Letter(remove_content_from_message(message), get_object_tree(message))
        parts = get_all_nested_objects(message)
    return letter, (parts[name].deflate() for name in letter.names())


def failure(asked: Message, why: str) -> Message:
    """The answer of a client whose work has failed."""
    return Message(Error(flower_parts.ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=asked)


def to_bytes(letter: Letter) -> tuple[bytes, bytes]:
    return message_to_proto(letter.about).SerializeToString(), letter.tree.SerializeToString()


def from_bytes(about: bytes, tree: bytes) -> Letter:
    return Letter(message_from_proto(ProtoMessage.FromString(about)), ObjectTree.FromString(tree))


def node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"deploy: {path} is not a node's private key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"deploy: {path} is not a node's private key; turnout deploy init makes one")
    return key


class Fleet:
    """The connection, as a context: entering it activates the node, waiting for a server that is not there yet;
    leaving it says goodbye. A server out of reach is tried again for ever, with longer and longer pauses."""

    def __init__(
        self,
        address: str,
        authority: Path,
        key: ec.EllipticCurvePrivateKey,
        client: Any = None,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.address, self._sleep, self._say = address, sleep, say
        self._public = public_key_to_bytes(key.public_key())
        version, own = RuntimeVersionHttpInterceptor(component_name="SuperNode"), key.public_key()
        signed = (version, NodeAuthHttpInterceptor(key, own))
        self._client = client or FleetHttpClient.from_server_address(address, False, str(authority), signed)

    def __enter__(self) -> Self:
        self._client.__enter__()
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            self._node = Node(node_id=self._call("ActivateNode", request).node_id)
        except BaseException:
            self._client.__exit__(None, None, None)
            raise
        self._heartbeat = HeartbeatSender(self._beat)
        self._heartbeat.start()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self._heartbeat.is_running:
                self._heartbeat.stop()
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        except (httpx.HTTPError, RuntimeError):
            pass  # the server is gone, or has forgotten this node
        finally:
            self._client.__exit__(None, None, None)

    def _beat(self) -> bool:
        """Tell the server that the node is there, from a thread of its own, also while its worker computes."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            return bool(self._client.SendNodeHeartbeat(request).success)
        except httpx.HTTPError:
            return False

    def _call(self, name: str, request: Any) -> Any:
        """One request, until it is answered."""
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = getattr(self._client, name)(request)
            except httpx.TransportError as error:
                if "certificate" in str(error).lower():
                    raise RefusedError(f"is not vouched for by ca.pem ({error})") from error
                why = f"cannot be reached ({error})"
            except httpx.HTTPStatusError as error:
                why = self._trouble(name, error)
            else:
                if max(request.ByteSize(), answer.ByteSize()) > _LARGE:
                    gc.collect()  # httpx holds what it has carried in a circle
                if pause > _FIRST_PAUSE:
                    self._say(f"the server at {self.address} answers again")
                return answer
            if pause == _FIRST_PAUSE:
                self._say(f"the server at {self.address} {why}; trying again")
            self._sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    @staticmethod
    def _trouble(name: str, error: httpx.HTTPStatusError) -> str:
        """Why to try again; raises where that is of no use."""
        status, told = error.response.status_code, FlowerError.from_json(error.response.text)
        if status in _BUSY:
            return f"is not ready (HTTP {status})"
        words = f"HTTP {status}" if told is None else " ".join(filter(None, (told.message, told.public_details)))
        if name == "ActivateNode" or status == httpx.codes.UNAUTHORIZED:
            raise RefusedError(f"does not admit this node ({words})") from error
        raise LostError(words) from error  # of a run that is over, as a rule

    # -- messages ---------------------------------------------------------------------------------------------

    def receive(self) -> Letter | None:
        """The next message for this node, if there is one."""
        answer = self._call("PullMessages", PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        return Letter(message_from_proto(answer.messages_list[0]), answer.message_object_trees[0])

    def parts(self, letter: Letter) -> Iterator[bytes]:
        """Its parts, in the order of their names, fetched one at a time; then the server is told that all are here."""
        run = letter.about.metadata.run_id
        for name in letter.names():
            yield self._part(PullObjectRequest(node=self._node, run_id=run, object_id=name))
        done = ConfirmMessageReceivedRequest(
            node=self._node, run_id=run, message_object_id=letter.about.metadata.message_id
        )
        self._call("ConfirmMessageReceived", done)

    def _part(self, request: PullObjectRequest) -> bytes:
        pause, waited = _SHORT, 0.0
        while waited < _PATIENCE:
            found = self._call("PullObject", request)
            if not found.object_found:
                break
            if found.object_available:
                content: bytes = found.object_content
                return content
            self._sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LONG)
        raise LostError("a part of it is nowhere")

    def answer(self, letter: Letter, parts: Iterable[bytes], seconds: float) -> None:
        """Send an answer that has taken so long; of its parts those that the server does not have."""
        request = PushMessagesRequest(
            node=self._node,
            messages_list=[message_to_proto(letter.about)],
            message_object_trees=[letter.tree],
            clientapp_runtime_list=[seconds],
        )
        answer, run = self._call("PushMessages", request), letter.about.metadata.run_id
        wanted = set(answer.objects_to_push)
        for name, part in zip(letter.names(), parts, strict=True):
            if name in wanted:
                pushed = PushObjectRequest(
                    node=self._node, run_id=run, object_id=name, object_content=part, session_id=answer.session_id
                )
                if not self._call("PushObject", pushed).stored:
                    raise LostError("the server does not take it any more")
