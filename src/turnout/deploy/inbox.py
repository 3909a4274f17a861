"""Replies as they come through Flower's Grid, each fetched and opened by itself.

Flower's own `Grid.pull_messages` opens all that have arrived at once, waits hours for parts that never come, believes
what a reply says of its sender, and lets one part of it be repeated a million times. Here one reply cannot keep another
back; who answers what is taken from the SuperLink's record; and no more is fetched than an honest reply has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_children_ids_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from turnout.deploy.screen import RejectedError, Rejection

_WORDS = 1 << 18  # bytes of a reply beside the numbers of its arrays, and the names of their parts
_PARTS = 1 << 12  # of a reply, and one for each MiB
_NUMBERS = b"ArrayChunk "  # how a part that holds numbers of an array begins


@dataclass(eq=False)
class Reply:
    """What a node has sent, in parts as Flower cuts it; nothing of it has been looked at."""

    to: str  # the message it answers
    node: int  # that has sent it; the SuperLink's own, where that speaks for a node
    root: str  # the part that all others hang on
    missing: list[str]  # parts still to be fetched
    parts: dict[str, bytes] = field(default_factory=dict)
    most: int = 0  # bytes of arrays that it may have
    size: int = 0  # bytes that have been fetched
    words: int = 0  # of these, not numbers of arrays
    refused: Rejection | None = None
    lost: bool = False  # a part is nowhere

    def add(self, name: str, part: bytes) -> None:
        """Keep a part that was fetched, unless it is too much."""
        self.parts[name] = part
        self.size += len(part)
        self.words += 0 if part.startswith(_NUMBERS) else len(part)
        if self.size - self.words > self.most or self.words > _WORDS + self.most // 4096:
            self.refused, self.parts = Rejection.TOO_LARGE, {}

    def opened(self) -> RecordDict | Error:
        """What it says; whatever is wrong with it is an exception of any kind."""
        if self.refused is not None:
            raise RejectedError(self.refused)
        if self.lost:
            return Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "its reply is lost")
        if self._numbers() > self.most:
            raise RejectedError(Rejection.TOO_LARGE)
        message = inflate_object_from_contents(self.root, self.parts)
        if not isinstance(message, Message):
            raise RejectedError(Rejection.UNDECODABLE)
        if message.has_error():
            return message.error
        if not isinstance(message.content, RecordDict):
            raise RejectedError(Rejection.UNDECODABLE)
        return message.content

    def _numbers(self) -> int:
        """Bytes of its arrays once opened: an array may name a part more than once."""
        total = 0
        for part in self.parts.values():
            if part.startswith(b"Array "):
                chunks = get_object_children_ids_from_object_content(part)
                about = json.loads(part[part.index(b"\0") + 1 :])
                total += sum(len(self.parts[chunks[place]]) for place in about["arraychunk_ids"])
        return total


class Inbox:
    """Fetches replies from a SuperLink."""

    def __init__(self, grid: Grid) -> None:
        self._grid = cast(Any, grid)
        self._arriving: list[Reply] = []

    def pull(self, most: Mapping[str, int]) -> list[Reply]:
        """The replies to these messages that are here as a whole. `most`: by message, how many bytes of arrays a reply
        may have; one that nobody waits for comes unread."""
        begun = {reply.to for reply in self._arriving}
        new = [name for name in most if name not in begun]
        if new:
            self._arriving += self._announced(new)
        here = [reply for reply in self._arriving if self._fetched(reply, most)]
        self._arriving = [reply for reply in self._arriving if reply not in here]
        return here

    def _announced(self, names: list[str]) -> list[Reply]:
        answer = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=names))
        replies = []
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            about = message.metadata
            parts = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
            replies.append(Reply(about.reply_to_message_id, about.src_node_id, about.message_id, parts))
        return replies

    def _fetched(self, reply: Reply, most: Mapping[str, int]) -> bool:
        """Fetch what is there of a reply; whether that is all, or all there is to know."""
        client, run = self._grid._runtime_client, self._grid.run.run_id
        reply.most = most.get(reply.to, 0)
        if len(reply.missing) > _PARTS + (reply.most >> 20):
            reply.refused = Rejection.TOO_LARGE
        while reply.to in most and reply.missing and reply.refused is None and not reply.lost:
            name = reply.missing[-1]
            try:
                found = client.PullObject(PullObjectRequest(node=self._grid.node, run_id=run, object_id=name))
            except httpx.HTTPStatusError:  # the SuperLink does not like what it is asked for
                reply.refused = Rejection.UNDECODABLE
                break
            if found.object_found and not found.object_available:
                return False
            reply.lost = not found.object_found
            reply.missing.pop()
            reply.add(name, found.object_content)
        done = ConfirmMessageReceivedRequest(node=self._grid.node, run_id=run, message_object_id=reply.root)
        with suppress(httpx.HTTPStatusError):
            client.ConfirmMessageReceived(done)
        return True
