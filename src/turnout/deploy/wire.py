"""A job as a Flower message, and back: numbers, strings and arrays of a known shape. No pickle.

Each part of a message is a request of its own to the SuperLink, twice. So a few small arrays travel in one part with
the facts, three parts in all; large ones in chunks that are streamed, and sent once however many clients get them.

What a client computes follows from what it is asked, so a question has a name: the digest of all that decides its
answer. A client that is asked the same again gives the same answer, and its state after a job is found by that name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, RecordDict
from flwr.common.constant import SType
from torch import Tensor

from turnout.core.errors import UserError
from turnout.local.sgd import LocalSGD
from turnout.server.state import work_of, work_parts

ASK, MODEL, ANSWER, PAYLOAD, MEASURES = "ask", "model", "answer", "payload", "measures"
NEEDS, NEEDS_MODEL, NEEDS_STATE = "needs", "model", "state"  # what a client may say that it does not have
FORMAT = 4  # of questions: small arrays are among the facts
SMALL = 1 << 17  # bytes of arrays that travel with the facts
_MAGIC = b"\x93NUMPY\x01\x00"
_LONGEST_HEADER = 512  # bytes
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|](?:f[248]|[iu][1248]|b1))', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,19},|[0-9]{1,19}(?:, [0-9]{1,19}){1,31})?)\), \} *\n"
)


def fingerprint(*tensors: Tensor) -> str:
    """Names the numbers of tensors."""
    digest = blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Request:
    """What a client is asked to do: everything that decides its answer, and what to remember of it."""

    client: int
    number: int  # of its jobs
    version: int
    key: int  # its randomness
    work: LocalSGD
    options: dict[str, float]  # its own numbers for the work
    model: str  # fingerprint of the one it starts from
    state: str  # the question after which its state was what it goes on from; empty: it has none
    memory: int  # how many answers may still be asked for again
    goes_on: bool  # whether it may go on from the model it ends with

    @cached_property
    def name(self) -> str:
        """The digest of what decides the answer; the same question may be asked under two job numbers."""
        kind, values, tensors = work_parts(self.work)
        decisive = [self.client, self.version, self.key, kind, values, self.options, self.model, self.state]
        names = sorted(tensors)
        text = json.dumps([*decisive, names], sort_keys=True) + fingerprint(*(tensors[name] for name in names))
        return blake2b(text.encode(), digest_size=16).hexdigest()


def together(about: str, facts: Mapping[str, ConfigRecordValues], name: str, arrays: Mapping[str, Array]) -> RecordDict:
    """Facts and arrays as the content of a message."""
    if sum(len(array.data) for array in arrays.values()) <= SMALL:
        return RecordDict({about: ConfigRecord({**facts, **{f"{name}/{key}": a.data for key, a in arrays.items()}})})
    return RecordDict({about: ConfigRecord(dict(facts)), name: ArrayRecord(dict(arrays))})


def apart(content: RecordDict, about: str, name: str) -> tuple[dict[str, ConfigRecordValues], dict[str, Array]]:
    """The inverse of `together`; `ValueError` for anything else."""
    said, values = content.get(about), content.get(name, ArrayRecord())
    if not set(content) <= {about, name} or not isinstance(said, ConfigRecord) or not isinstance(values, ArrayRecord):
        raise ValueError("not facts and arrays")
    facts, arrays = dict(said), dict(values)
    if name not in content:
        for key in [key for key in facts if key.startswith(f"{name}/")]:
            arrays[key.removeprefix(f"{name}/")] = _labelled(facts.pop(key))
    return facts, arrays


def _labelled(data: object) -> Array:
    if not isinstance(data, bytes):
        raise ValueError("not the bytes of an array")
    values = _decoded(data)
    return Array(str(values.dtype), values.shape, SType.NUMPY, data)


def pack(request: Request, model: Array | None) -> RecordDict:
    """The question as a message; without a model the client has it already."""
    kind, values, tensors = work_parts(request.work)
    text = json.dumps({"format": FORMAT, "kind": kind, "values": values, "options": request.options})
    names = ("client", "number", "version", "key", "model", "state", "memory", "goes_on")
    asked: dict[str, ConfigRecordValues] = {"work": text, **{name: getattr(request, name) for name in names}}
    arrays = {f"work/{name}": encode(value) for name, value in tensors.items()}
    return together(ASK, asked, MODEL, arrays | ({} if model is None else {"model": model}))


def unpack(record: RecordDict, device: str) -> tuple[Request, Tensor | None]:
    """The inverse of `pack`, at the client: it trusts the server with all but code."""
    found, arrays = apart(record, ASK, MODEL)
    asked: dict[str, Any] = found
    text = json.loads(asked.pop("work"))
    asks = text.get("format", 1)
    if asks != FORMAT:
        raise UserError(
            f"deploy: the server asks in format {asks}, this client knows {FORMAT}; install the same Turnout"
        )
    tensors = {name: torch.from_numpy(array.numpy()).to(device) for name, array in arrays.items()}
    own = {name.removeprefix("work/"): tensor for name, tensor in tensors.items() if name != "model"}
    work = work_of("deploy", text["kind"], text["values"], own)
    return Request(**asked, work=work, options=text["options"]), tensors.get("model")


@dataclass(frozen=True)
class Question:
    """How well does a model do on a client's samples?"""

    version: int
    state: str  # as in `Request`


def pack_question(question: Question, model: Array) -> RecordDict:
    return together(ASK, {"version": question.version, "state": question.state}, MODEL, {"model": model})


def unpack_question(record: RecordDict, device: str) -> tuple[Question, Tensor]:
    found, arrays = apart(record, ASK, MODEL)
    asked: dict[str, Any] = found
    return Question(**asked), torch.from_numpy(arrays["model"].numpy()).to(device)


def encode(tensor: Tensor) -> Array:
    return Array(tensor.detach().cpu().contiguous().numpy())


def decode(array: Array) -> np.ndarray[Any, np.dtype[Any]]:
    """Numbers that somebody untrusted has sent as NumPy writes them; anything else is a `ValueError`. No more memory is
    ever taken than has arrived."""
    if array.stype != SType.NUMPY:
        raise ValueError("not an array as NumPy writes it")
    return _decoded(array.data)


def _decoded(data: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    start = len(_MAGIC) + 2
    length = int.from_bytes(data[len(_MAGIC) : start], "little")
    found = _HEADER.fullmatch(data[start : start + length]) if length <= _LONGEST_HEADER else None
    if not data.startswith(_MAGIC) or found is None:
        raise ValueError("not an array as NumPy writes it")
    dtype = np.dtype(found["dtype"].decode())
    shape = tuple(int(size) for size in found["shape"].replace(b",", b" ").split())
    if dtype.itemsize * math.prod(shape) != len(data) - start - length:
        raise ValueError("another number of bytes than its shape says")
    order: Literal["C", "F"] = "F" if found["fortran"] == b"True" else "C"
    return np.ndarray(shape, dtype, data, start + length, order=order)
