"""Untrusted replies at the boundary: `read` makes of a reply what was asked for, or rejects it with one sentence.

Nothing that a client sends is looked at anywhere else, and nothing but `RejectedError` comes out of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, RecordDict
from flwr.common.constant import ErrorCode

from turnout.deploy.wire import ANSWER, MEASURES, NEEDS, PAYLOAD, decode
from turnout.local.sgd import Named

if TYPE_CHECKING:
    from turnout.deploy.inbox import Reply

_PER_ARRAY = 4096  # bytes of headers that an honest reply stays below
_UNREACHABLE = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
_SPLITS = ("train", "validation", "test")
_MOST_SAMPLES = 2**53  # that can be counted at all
_ROUNDING = 1e-6  # by which a mean of numbers up to 1 may exceed it
Measures = dict[str, tuple[dict[str, float], int]]  # by split: the mean of each measure over samples, and how many


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


class Failed(NamedTuple):
    """A client has not done what it was asked."""

    gone: bool  # it cannot be reached
    why: str


class Update(NamedTuple):
    """What a job has brought."""

    arrays: Named  # [1, ...]
    seconds: float  # that the client says to have computed: a span on its own clock
    size: int  # bytes


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

    def read(self, content: RecordDict) -> Update | str:
        """The update, or what the client needs for it."""
        said, record = _records(content, PAYLOAD)
        if NEEDS in said:
            return self._question(said, record)
        if set(said) != {*self.counts, "seconds"} or any(not _is(said[name], n) for name, n in self.counts.items()):
            raise RejectedError(Rejection.BAD_COUNTS)
        seconds = said["seconds"]
        if type(seconds) is not float or not math.isfinite(seconds):
            raise RejectedError(Rejection.BAD_COUNTS)
        if set(self.shapes) - set(record):
            raise RejectedError(Rejection.MISSING_ARRAY)
        if set(record) - set(self.shapes):
            raise RejectedError(Rejection.EXTRA_ARRAY)
        arrays = {name: self._array(record, name) for name in self.shapes}
        return Update(arrays, seconds, sum(len(array.data) for array in record.values()))

    def _question(self, said: ConfigRecord, record: ArrayRecord) -> str:
        names = ("client", "job")
        if set(said) != {*names, NEEDS} or len(record) or any(not _is(said[name], self.counts[name]) for name in names):
            raise RejectedError(Rejection.UNDECODABLE)
        for need in self.needs:
            if said[NEEDS] == need:
                return need
        raise RejectedError(Rejection.UNKNOWN_QUESTION)

    def _array(self, record: ArrayRecord, name: str) -> torch.Tensor:
        shape, dtype = tuple(self.shapes[name]), np.dtype(str(self.dtype).removeprefix("torch."))
        array = record[name]
        values = decode(array)
        if values.dtype != dtype or array.dtype != str(dtype):
            raise RejectedError(Rejection.WRONG_DTYPE)
        if values.shape != shape or array.shape != shape:
            raise RejectedError(Rejection.WRONG_SHAPE)
        if not np.isfinite(values).all():
            raise RejectedError(Rejection.NOT_FINITE)
        return torch.from_numpy(values.copy()).reshape(1, *shape)


@dataclass(frozen=True)
class Evaluation:
    """What a client may say of a model."""

    names: frozenset[str]  # of the measures
    samples: Mapping[str, int | None]  # by split: how many the client has at most, if that is known
    most: int = 0  # bytes of arrays

    def read(self, content: RecordDict) -> Measures:
        said, record = _records(content, MEASURES)
        splits = [split for split in _SPLITS if f"{split}_samples" in said]
        expected = {f"{split}_{name}" for split in splits for name in (*self.names, "samples")}
        if len(record) or set(said) != expected:
            raise RejectedError(Rejection.BAD_MEASURES)
        return {split: self._split(said, split) for split in splits}

    def _split(self, said: ConfigRecord, split: str) -> tuple[dict[str, float], int]:
        number, known = said[f"{split}_samples"], self.samples.get(split)
        if type(number) is not int or not 0 <= number <= (_MOST_SAMPLES if known is None else known):
            raise RejectedError(Rejection.BAD_COUNTS)
        values = {}
        for name in sorted(self.names):
            value = said[f"{split}_{name}"]
            if type(value) is not float:
                raise RejectedError(Rejection.BAD_MEASURES)
            values[name] = self._measure(name, value) if number else math.nan
        return values, number

    @staticmethod
    def _measure(name: str, value: float) -> float:
        if not math.isfinite(value):
            raise RejectedError(Rejection.NOT_FINITE)
        if not name.endswith("accuracy"):
            return value
        if not -_ROUNDING <= value <= 1 + _ROUNDING:
            raise RejectedError(Rejection.BAD_MEASURES)
        return min(max(value, 0.0), 1.0)


def read(reply: Reply, asked: Training | Evaluation) -> Update | str | Measures | Failed:
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


def _records(content: RecordDict, arrays: str) -> tuple[ConfigRecord, ArrayRecord]:
    if set(content) != {ANSWER, arrays}:
        raise RejectedError(Rejection.UNDECODABLE)
    said, values = content[ANSWER], content[arrays]
    if not isinstance(said, ConfigRecord) or not isinstance(values, ArrayRecord):
        raise RejectedError(Rejection.UNDECODABLE)
    return said, values


def _is(said: object, number: int) -> bool:
    """Whether it is this whole number and nothing like it."""
    return type(said) is int and said == number
