"""Untrusted answers at the boundary: whatever is not exactly what was asked for is rejected, with one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from turnout.deploy.wire import ANSWER, MEASURES, PAYLOAD, decode
from turnout.local.sgd import Named

_PER_ARRAY = 4096  # bytes of headers that an honest answer stays below


class Rejection(StrEnum):
    """Why an answer does not count."""

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


class RejectedError(Exception):
    """An answer that does not count."""

    def __init__(self, why: Rejection) -> None:
        super().__init__(str(why))
        self.why = why


def _record(reply: Message, arrays: str) -> tuple[ConfigRecord, ArrayRecord]:
    content: RecordDict = reply.content
    if set(content) != {ANSWER, arrays}:
        raise RejectedError(Rejection.UNDECODABLE)
    said, values = content[ANSWER], content[arrays]
    if not isinstance(said, ConfigRecord) or not isinstance(values, ArrayRecord):
        raise RejectedError(Rejection.UNDECODABLE)
    return said, values


def check_size(reply: Message, limit: int) -> None:
    """Before anything of it is decoded."""
    total = sum(len(array.data) for record in reply.content.array_records.values() for array in record.values())
    if total > limit:
        raise RejectedError(Rejection.TOO_LARGE)


def payload(reply: Message, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> tuple[ConfigRecord, Named]:
    """What a client says of its job, and the arrays `[1, ...]` asked for, if they are exactly these."""
    width = dtype.itemsize
    check_size(reply, sum(width * math.prod(shape) + _PER_ARRAY for shape in shapes.values()) + _PER_ARRAY)
    said, record = _record(reply, PAYLOAD)
    wanted = np.dtype(str(dtype).removeprefix("torch."))
    if set(shapes) - set(record):
        raise RejectedError(Rejection.MISSING_ARRAY)
    if set(record) - set(shapes):
        raise RejectedError(Rejection.EXTRA_ARRAY)
    arrays = {}
    for name, shape in shapes.items():
        try:
            found, kind, data = decode(record[name])
        except (ValueError, EOFError, SyntaxError) as error:
            raise RejectedError(Rejection.UNDECODABLE) from error
        if kind != wanted:
            raise RejectedError(Rejection.WRONG_DTYPE)
        if found != tuple(shape):
            raise RejectedError(Rejection.WRONG_SHAPE)
        if len(data) != width * math.prod(shape):
            raise RejectedError(Rejection.UNDECODABLE)
        values = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.zeros(0, dtype=dtype)
        if not bool(torch.isfinite(values).all()):
            raise RejectedError(Rejection.NOT_FINITE)
        arrays[name] = values.reshape(1, *shape)
    return said, arrays


def counts(said: ConfigRecord, expected: Mapping[str, int]) -> None:
    """Whether it says exactly these whole numbers."""
    if any(type(said.get(name)) is not int or said[name] != number for name, number in expected.items()):
        raise RejectedError(Rejection.BAD_COUNTS)


def seconds(said: ConfigRecord, most: float) -> float:
    """How long a client says to have computed: a span on its own clock, as far as that can be."""
    value = said.get("seconds")
    if type(value) is not float or not math.isfinite(value):
        raise RejectedError(Rejection.BAD_COUNTS)
    return min(max(value, 0.0), most)


def measures(reply: Message, names: set[str]) -> dict[str, tuple[dict[str, float], int]]:
    """By split: the mean of each measure over a client's samples, and how many these are."""
    said, record = _record(reply, MEASURES)
    if len(record):
        raise RejectedError(Rejection.EXTRA_ARRAY)
    found: dict[str, tuple[dict[str, float], int]] = {}
    for split in ("train", "validation", "test"):
        number = said.get(f"{split}_samples")
        if number is None:
            continue
        values = {name: said.get(f"{split}_{name}") for name in names}
        if type(number) is not int or number < 0:
            raise RejectedError(Rejection.BAD_COUNTS)
        if any(type(value) is not float for value in values.values()):
            raise RejectedError(Rejection.MISSING_ARRAY)
        numbers = {name: value for name, value in values.items() if isinstance(value, float)}
        if number and not all(map(math.isfinite, numbers.values())):
            raise RejectedError(Rejection.NOT_FINITE)
        found[split] = numbers, number
    return found
