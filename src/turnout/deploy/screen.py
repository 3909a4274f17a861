"""Untrusted replies at the boundary: `Inbox` fetches each by itself, and `read` makes of it what was asked for, or
rejects it with one sentence. Nothing that a client sends is looked at anywhere else, and nothing but `RejectedError`
comes out of it.

Flower's own `Grid.pull_messages` opens all that have arrived at once, waits hours for parts that never come, believes
what a reply says of its sender, and lets one part of it be repeated a million times. Here one reply cannot keep another
back; who answers what is taken from the SuperLink's record; and no more is fetched than an honest reply has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, cast

import httpx
import numpy as np
import torch
from flwr.app import Array, ConfigRecordValues, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_children_ids_from_object_content, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from turnout.core.random import IntArray
from turnout.deploy.policy import CODES, LONGEST, NEVER
from turnout.deploy.wire import ANSWER, MEASURES, NEEDS, PAYLOAD, apart, decode
from turnout.local.sgd import Named
from turnout.server.measurement import ByClient

_WORDS = 1 << 18  # bytes of a reply beside the numbers of its arrays, and the names of their parts
_PARTS = 1 << 12  # of a reply, and one for each MiB
_NUMBERS = b"ArrayChunk "  # how a part that holds numbers of an array begins
_PER_ARRAY = 4096  # bytes of headers that an honest reply stays below
_UNREACHABLE = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
_SPLITS = ("train", "validation", "test")
_MOST_SAMPLES = 2**53  # that can be counted at all
_LONGEST_WAIT = 86400  # seconds for which a site that refuses is not asked
_ROUNDING = 1e-6  # by which a mean of numbers up to 1 may exceed it
Facts = Mapping[str, ConfigRecordValues]
Means = tuple[dict[str, float], int]  # of each measure over samples, and of how many
Measures = dict[str, Means]  # by split


class Rejection(StrEnum):
    """Why a reply does not count."""

    UNKNOWN_JOB = "it answers a job that is not waited for"
    DUPLICATE = "its job was answered before"
    WRONG_CLIENT = "it comes from another client than the one asked"
    UNDECODABLE = "it cannot be read as an answer"
    MISSING_ARRAY = "an array that was asked for is missing"
    EXTRA_ARRAY = "it holds an array that was not asked for"
    WRONG_SHAPE = "an array has another shape than asked for"
    WRONG_DTYPE = "an array has another type of numbers than asked for"
    NOT_FINITE = "it holds NaN or infinity"
    TOO_LARGE = "it has more bytes than any honest answer"
    BAD_COUNTS = "its samples or steps are not those of this client and job"
    BAD_MEASURES = "its measures are not those asked for, or not possible"
    UNKNOWN_QUESTION = "it asks for something that it was sent or that nobody has"


class RejectedError(Exception):
    """A reply that does not count."""

    def __init__(self, why: Rejection) -> None:
        super().__init__(str(why))
        self.why = why


def require(holds: bool, otherwise: Rejection) -> None:
    """Reject a reply of which something does not hold."""
    if not holds:
        raise RejectedError(otherwise)


class Failed(NamedTuple):
    """A client has not done what it was asked."""

    gone: bool  # it cannot be reached
    why: str


class Refused(NamedTuple):
    """A site does not do what it was asked: its policy is against it, or it cannot."""

    code: str
    why: str
    until: int  # seconds until asking again may help; below 0: not before something is changed


class Update(NamedTuple):
    """What a job has brought."""

    arrays: Named  # [1, ...]
    seconds: float  # that the client says to have computed: a span on its own clock
    size: int  # bytes


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
        require(self._numbers() <= self.most, Rejection.TOO_LARGE)
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


@dataclass(frozen=True)
class Training:
    """What a job may bring."""

    counts: Mapping[str, int]  # client, job, samples, steps
    shapes: Mapping[str, tuple[int, ...]]  # of the arrays
    dtype: torch.dtype
    needs: tuple[str, ...] = ()  # what the client may say that it does not have

    @property
    def most(self) -> int:
        """Bytes of arrays in an honest reply."""
        return sum(self.dtype.itemsize * math.prod(shape) + _PER_ARRAY for shape in self.shapes.values())

    def read(self, content: RecordDict) -> Update | str | Refused:
        """The update, or what the client needs for it, or why it refuses."""
        said, record = apart(content, ANSWER, PAYLOAD)
        if (refused := refusal(said, record)) is not None:
            return refused
        if NEEDS in said:
            return self._question(said, record)
        require(set(said) == {*self.counts, "seconds"}, Rejection.BAD_COUNTS)
        require(all(_is(said[name], number) for name, number in self.counts.items()), Rejection.BAD_COUNTS)
        seconds = said["seconds"]
        if type(seconds) is not float or not math.isfinite(seconds):
            raise RejectedError(Rejection.BAD_COUNTS)
        require(set(self.shapes) <= set(record), Rejection.MISSING_ARRAY)
        require(set(record) <= set(self.shapes), Rejection.EXTRA_ARRAY)
        arrays = {name: self._array(record, name) for name in self.shapes}
        return Update(arrays, seconds, sum(len(array.data) for array in record.values()))

    def _question(self, said: Facts, record: Mapping[str, Array]) -> str:
        names, need = ("client", "job"), said[NEEDS]
        require(set(said) == {*names, NEEDS} and not len(record), Rejection.UNDECODABLE)
        require(all(_is(said[name], self.counts[name]) for name in names), Rejection.UNDECODABLE)
        if type(need) is not str or need not in self.needs:
            raise RejectedError(Rejection.UNKNOWN_QUESTION)
        return need

    def _array(self, record: Mapping[str, Array], name: str) -> torch.Tensor:
        shape, dtype = tuple(self.shapes[name]), np.dtype(str(self.dtype).removeprefix("torch."))
        array = record[name]
        values = decode(array)
        require(values.dtype == dtype and array.dtype == str(dtype), Rejection.WRONG_DTYPE)
        require(values.shape == shape and array.shape == shape, Rejection.WRONG_SHAPE)
        require(bool(np.isfinite(values).all()), Rejection.NOT_FINITE)
        return torch.from_numpy(values.copy()).reshape(1, *shape)


@dataclass(frozen=True)
class Evaluation:
    """What a client may say of a model."""

    names: frozenset[str]  # of the measures
    samples: Mapping[str, int | None]  # by split: how many the client has at most, if that is known
    of_sets: Collection[str] = ()  # those that may not be defined: NaN
    most: int = 0  # bytes of arrays

    def read(self, content: RecordDict) -> Measures:
        said, record = apart(content, ANSWER, MEASURES)
        splits = [split for split in _SPLITS if f"{split}_samples" in said]
        expected = {f"{split}_{name}" for split in splits for name in (*self.names, "samples")}
        require(not len(record) and set(said) == expected, Rejection.BAD_MEASURES)
        return {split: self._split(said, split) for split in splits}

    def _split(self, said: Facts, split: str) -> Means:
        number, known = said[f"{split}_samples"], self.samples.get(split)
        if type(number) is not int or not 0 <= number <= (_MOST_SAMPLES if known is None else known):
            raise RejectedError(Rejection.BAD_COUNTS)
        values = {}
        for name in sorted(self.names):
            value = said[f"{split}_{name}"]
            if type(value) is not float:
                raise RejectedError(Rejection.BAD_MEASURES)
            undefined = name in self.of_sets and math.isnan(value)
            values[name] = self._measure(name, value) if number and not undefined else math.nan
        return values, number

    @staticmethod
    def _measure(name: str, value: float) -> float:
        require(math.isfinite(value), Rejection.NOT_FINITE)
        if not name.endswith("accuracy"):
            return value
        require(-_ROUNDING <= value <= 1 + _ROUNDING, Rejection.BAD_MEASURES)
        return min(max(value, 0.0), 1.0)


class Expected(Protocol):
    """What an answer may be."""

    @property
    def most(self) -> int:
        """Bytes of arrays in an honest reply."""

    def read(self, content: RecordDict) -> Any:
        """What it says, or `RejectedError`."""


def read(reply: Reply, asked: Expected) -> Any:
    """What a client has answered. Whatever is wrong with it, in whatever way, is a `RejectedError`."""
    try:
        content = reply.opened()
        if isinstance(content, Error):
            return Failed(content.code in _UNREACHABLE, last_line(content.reason))
        return asked.read(content)
    except RejectedError:
        raise
    except Exception as error:
        raise RejectedError(Rejection.UNDECODABLE) from error


def last_line(text: str | None) -> str:
    """The last line with something on it, at most 200 characters that can be printed: a log has a line an event."""
    lines = ["".join(c if c.isprintable() else " " for c in line).strip() for line in (text or "").splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "no reason given")


def refusal(said: Facts, record: Mapping[str, Array]) -> Refused | None:
    """Read why a site refuses; None where it does not."""
    if "refused" not in said:
        return None
    require(set(said) == {"refused", "why", "until"} and not len(record), Rejection.UNDECODABLE)
    code, why, until = (said[name] for name in ("refused", "why", "until"))
    if type(code) is not str or code not in CODES or type(until) is not int or type(why) is not str:
        raise RejectedError(Rejection.UNDECODABLE)
    require(len(why) <= LONGEST and why.isascii() and why.isprintable(), Rejection.UNDECODABLE)
    return Refused(code, why, min(max(until, NEVER), _LONGEST_WAIT))


def _is(said: object, number: int) -> bool:
    """Whether it is this whole number and nothing like it."""
    return type(said) is int and said == number


def by_client(panel: IntArray, names: Iterable[str], said: Mapping[int, Means]) -> ByClient:
    """Make columns over a panel of what clients have said of a model; who has said nothing has no samples."""
    nothing = dict.fromkeys(names, math.nan), 0
    rows = [said.get(client, nothing) for client in panel.tolist()]
    values = {name: np.array([means[name] for means, _ in rows]) for name in nothing[0]}
    return panel, values, np.array([count for _, count in rows], np.int64)
