"""Mutated replies: honest ones of every kind, changed in structure, bytes, types and values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute
from flwr.supercore.task_identity import TaskIdentity

from turnout.deploy.screen import Evaluation, Training

Parts = dict[str, bytes]
COUNTS = {"client": 1, "job": 3, "samples": 9, "steps": 6}
TRAINING = Training(COUNTS, {"delta": (2, 3), "loss": ()}, torch.float32, ("model",))
STATEFUL = Training(COUNTS, {"delta": (12,)}, torch.float64, ("state",))
EVALUATION = Evaluation(frozenset({"loss", "accuracy"}), {"train": 9, "test": 4, "validation": None})
NUMBERS = [
    0, 1, -1, 3, 6, 9, 4, 5, 10, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), True, False, 0.0, -0.0, 0.5, 1.0, 1.1,
    -0.1, 1 + 1e-7, 9.0, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf,
]  # fmt: skip
WORDS = [
    "", " ", "\n", " \n\t ", "\r\n\r\n", "\x00", "\x1b[2J", "\u2028", "\x85", "model", "state", "MODEL", "model ",
    "6", "money", "nan", "ValueError: no", "a\nround 9: stopped (all is well)", "x" * 5000, "\n" * 5000,
    "\u202e\u200b", "é" * 300,
]  # fmt: skip
NAMES = [
    "client", "job", "samples", "steps", "seconds", "needs", "train_samples", "test_samples", "validation_samples",
    "loss", "train_loss", "test_accuracy", "validation_loss", "validation_accuracy", "delta", "matrix", "control",
    "answer", "", "payload", "measures", " ", "\n", "__class__", "x" * 999,
]  # fmt: skip
SHAPES = [
    "(12", "12", "(-12,)", "(1125899906842624,)", "(9999999999999999999999,)", "(12L,)", "(12, 1)", "(0, 9)",
    "(2, 3)", "(12,), 'more': 1", "(" + "1, " * 60 + "12)", "(12,)", "()", "None", "(" * 300, "(2.0,)", "('a',)",
]  # fmt: skip
TYPES = [
    "'<f4'", "'>f4'", "'<f8'", "'|O'", "'<U3'", "'<c8'", "[('a', '<f4')]", "('<f4', (2,))", "1", "'<f4", "'<f99'",
    "{}",
]  # fmt: skip
KINDS = ["f2", "f4", "f8", "i4", "i8", "u1", "b1", "c8", ">f4", ">f8", "U3"]
HEADERS = [
    "", "{", "}", "(", "'", '"""', "(" * 300, "[" * 60000, "-" * 500, "{[]: 1}", "{{}}", "1\n 2", "\tx\n y", "None",
    "é", "\x00", "{'shape': (12,)}", "lambda: 0", "__import__('os')", "9" * 5000,
    "{'descr': 1, 'fortran_order': 2, 'shape': 3}",
]  # fmt: skip


class Honest(NamedTuple):
    """A reply as a client of ours gives it, and what it answers."""

    kind: str
    asked: Training | Evaluation
    said: RecordDict | Error
    parts: tuple[str, Parts]  # as it travels


def honest() -> list[Honest]:
    draw = np.random.default_rng(0)

    def update(asked: Training) -> RecordDict:
        dtype = str(asked.dtype).removeprefix("torch.")
        arrays = {name: Array(np.asarray(draw.normal(size=shape), dtype)) for name, shape in asked.shapes.items()}
        return _content({**COUNTS, "seconds": 0.25}, "payload", arrays)

    def small(content: RecordDict) -> RecordDict:
        """The same as it travels where its arrays are small: among the facts."""
        arrays = {f"payload/{name}": array.data for name, array in content.array_records["payload"].items()}
        return RecordDict({"answer": ConfigRecord({**content.config_records["answer"], **arrays})})

    names = {"client": 1, "job": 3}
    measures = {f"{split}_{name}": 0.75 for split in ("train", "validation", "test") for name in ("loss", "accuracy")}
    sizes = {"train_samples": 9, "validation_samples": 0, "test_samples": 4}
    kinds: list[tuple[str, Training | Evaluation, RecordDict | Error]] = [
        ("training", TRAINING, update(TRAINING)),
        ("training with state", STATEFUL, update(STATEFUL)),
        ("question", TRAINING, _content({**names, "needs": "model"}, "payload", {})),
        ("question", STATEFUL, _content({**names, "needs": "state"}, "payload", {})),
        ("error", TRAINING, Error(6, "traceback\nValueError: no")),
        ("error", EVALUATION, Error(1, "the node is gone")),
        ("evaluation", EVALUATION, _content({**measures, **sizes}, "measures", {})),
        ("small training", TRAINING, small(update(TRAINING))),
        ("small training with state", STATEFUL, small(update(STATEFUL))),
        ("small evaluation", EVALUATION, RecordDict({"answer": ConfigRecord({**measures, **sizes})})),
    ]
    return [Honest(kind, asked, said, cut(said)) for kind, asked, said in kinds]


def _content(said: dict[str, Any], name: str, arrays: dict[str, Array]) -> RecordDict:
    return RecordDict({"answer": ConfigRecord(said), name: ArrayRecord(arrays)})


def cut(said: RecordDict | Error) -> tuple[str, Parts]:
    """A reply in the parts that travel, and the first of them."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
    asked = Message(RecordDict(), 1001, "train", ttl=1000.0)
    asked.metadata.__dict__["_message_id"] = "asked"
    reply = Message(said, reply_to=asked)
    parts: Parts = {}
    with no_object_id_recompute():
        for part in _children_first(reply):
            parts[part.object_id] = part.deflate()
        return reply.object_id, parts


def _children_first(part: Any) -> Iterator[Any]:
    for child in (part.children or {}).values():
        yield from _children_first(child)
    yield part


# -- mutations of what is said ------------------------------------------------------------------------------------


def _value(random: Random, like: Any = None) -> Any:
    """Anything, or with luck a value of the same kind."""
    if like is not None and random.random() < 0.5:
        alike = [value for value in (*NUMBERS, *WORDS) if type(value) is type(like)]
        return random.choice([*alike, random.uniform(0, 1)] if isinstance(like, float) else [*alike, like])
    kind = random.random()
    if kind < 0.55:
        return random.choice(NUMBERS)
    if kind < 0.8:
        return random.choice(WORDS)
    if kind < 0.9:
        return random.randbytes(random.choice([0, 1, 8, 300]))
    return [random.choice([0, 1, 9])] * random.choice([0, 1, 2, 400])


def _array(random: Random, before: Array) -> Array:
    """Another one in its place: of another shape or type, not finite, differently written, mislabelled or damaged."""
    kind, values = random.randrange(10), before.numpy().copy()
    if kind == 0:
        values = np.resize(values, random.choice([(), (0,), (1,), (11,), (13,), (12, 1), (3, 2), (2, 3, 1), (3000,)]))
    if kind == 1:
        with np.errstate(all="ignore"):
            values = values.real.astype(
                random.choice(["f2", "f4", "f8", "i4", "i8", "u1", "b1", "c8", ">f4", ">f8", "U3"])
            )
    if kind in (2, 3) and values.size:
        other = [np.nan, np.inf, -np.inf] if kind == 2 else [0.0, -0.0, 1e-45, 3e38, random.uniform(-1, 1)]
        values.flat[random.randrange(values.size)] = random.choice(other)
    array = Array(np.asfortranarray(values) if kind == 4 else values)
    if kind == 5:
        array.dtype = random.choice(["float32", "float64", "", "object", "x" * 99])
    if kind == 6:
        array.shape = random.choice([(), (12,), (0,), (-1,), (2**70,), (2, 3)])
    if kind == 7:
        array.stype = random.choice(["", "pickle", "numpy.ndarray", "torch.Tensor"])
    if kind > 7:
        array.data = _data(random, array.data)
    return array


def _damaged(random: Random, array: Array) -> Array:
    try:
        if b"'<f" in array.data[:128]:  # NumPy takes years to read an array of numbers without size
            return _array(random, array)
    except Exception:  # it was damaged before
        pass
    return Array(np.zeros(12, np.float32))


def _data(random: Random, data: bytes) -> bytes:
    """An array as NumPy writes it, with another header, or with other bytes."""
    kind = random.randrange(6)
    if kind < 3:
        order = random.choice(["False", "False", "True", "0"])
        header = f"{{'descr': {random.choice(TYPES)}, 'fortran_order': {order}, 'shape': {random.choice(SHAPES)}, }}"
        text = random.choice([header, header, random.choice(HEADERS)]).encode("latin-1")
        text += b" " * (-(len(text) + 11) % 64) + b"\n" if random.random() < 0.7 else b""
        version = random.choice([b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"])
        length = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
        return b"\x93NUMPY" + version + length + text + data[128:]
    if kind == 3:
        return random.choice([b"", b"\x93NUMPY", b"PK\x03\x04" + data, b"\x1f\x8b\x08" + data, b"\x80\x04K\x01."])
    return _bytes(random, data)


def _said(random: Random, content: RecordDict) -> RecordDict:
    """Other facts, arrays or records."""
    content = RecordDict(dict(content.items()))
    kind = random.randrange(12)
    if kind == 10:
        name = random.choice(NAMES)
        content.pop(name, None)
        records: list[Any] = [ConfigRecord(), ArrayRecord(), MetricRecord({"accuracy": 1.0})]
        content[name] = random.choice(records)
    elif kind == 11 and len(content):
        record = content.pop(random.choice(list(content)))
        if random.random() < 0.5:
            name = random.choice(NAMES)
            content.pop(name, None)
            content[name] = record
    elif len(content):
        whole = [name for name, record in content.items() if len(record)]
        name = random.choice(whole or list(content))
        content[name] = _record(random, content[name])
    return content


def _record(random: Random, record: Any) -> Any:
    """One with another item, one more or one less."""
    items, kind = dict(record.items()), random.randrange(6)
    within = [name for name, item in items.items() if name.startswith("payload/") and type(item) is bytes]
    if within and random.random() < 0.7:
        name = random.choice(within)
        items[name] = _damaged(random, Array("float32", (1,), "numpy.ndarray", items[name])).data
        return type(record)(items)
    name = random.choice(list(items) if items and kind < 5 else NAMES)
    if kind == 4:
        items.pop(name, None)
    elif isinstance(record, ArrayRecord):
        items[name] = _damaged(random, items[name]) if name in items else Array(np.zeros(12, np.float32))
    elif isinstance(record, ConfigRecord):
        items[name] = _value(random, items.get(name))
    return type(record)(items)


def _error(random: Random, error: Error) -> Error:
    code = random.choice([error.code, 0, 1, 2, 3, 6, 99, -1, 2**62])
    return Error(code, random.choice([*WORDS, "a\n" * random.randrange(9), error.reason]))


# -- mutations of what travels ------------------------------------------------------------------------------------


def _bytes(random: Random, data: bytes) -> bytes:
    kind, here = random.randrange(6), random.randrange(len(data) + 1)
    there = min(len(data), here + random.choice([1, 1, 2, 7, 60]))
    if kind == 0 and here < len(data):
        return data[:here] + bytes([data[here] ^ 1 << random.randrange(8)]) + data[here + 1 :]
    if kind == 1:
        return data[:here] + data[there:]
    if kind == 2:
        return data[:here] + random.randbytes(there - here) + data[there:]
    if kind == 3:
        return data[:here] + data[here:there] * random.choice([2, 3, 200]) + data[there:]
    if kind == 4:
        return data[:here]
    return data[:here] + random.choice([b"\x00", b" ", b",", b"\xff" * 9, b"[" * 9000, b"{}", b"-1"]) + data[here:]


def _json(random: Random, part: bytes) -> bytes:
    """A part that is a list of references, with others."""
    head, _, body = part.partition(b"\0")
    try:
        about = dict(json.loads(body))
    except (ValueError, TypeError, RecursionError):  # changed before
        return _bytes(random, part)
    other: list[Any] = [
        [], {}, None, 0, "x", [about] * 2, {"arraychunk_ids": [0]}, {**about, "arraychunk_ids": [0] * 9000},
        {**about, "arraychunk_ids": [-1]}, {**about, "arraychunk_ids": [0.5]}, {**about, "arraychunk_ids": "0"},
        {**about, "shape": 7}, {**about, "shape": [None]}, {**about, "dtype": []}, {**about, "stype": 1},
        {**about, "more": list(about)}, dict.fromkeys(about, "0" * 64), {f"{name}\ud800": 1 for name in about},
    ]  # fmt: skip
    body = json.dumps(random.choice(other)).encode()
    if random.random() < 0.2:
        body = random.choice([b"[" * 100000, b'{"a":' * 5000, b"1" * 5000, b"NaN", b"\xff\xfe", b'{"a": 1e999}'])
    return head.rpartition(b" ")[0] + b" %d\0" % len(body) + body


def _parts(random: Random, root: str, parts: Parts) -> tuple[str, Parts]:
    parts, name = dict(parts), random.choice(list(parts))
    kind = random.choice([0, 1, 2, 3, 4, 4, 4, 5, 6, 6, 6, 6])
    if kind == 0:
        del parts[name]
    elif kind == 1:
        parts[name] = random.choice(list(parts.values()))
    elif kind == 2:
        root = name
    elif kind == 3:
        words = [
            b"Message",
            b"RecordDict",
            b"ArrayRecord",
            b"ConfigRecord",
            b"MetricRecord",
            b"Array",
            b"ArrayChunk",
            b"Context",
        ]
        parts[name] = random.choice(words) + b" " + parts[name].partition(b" ")[2]
    elif kind == 4 and parts[name].split(b" ")[0] in (b"RecordDict", b"ArrayRecord", b"Array"):
        parts[name] = _json(random, parts[name])
    elif kind == 5:
        parts[name] = (
            random.choice(list(parts.values())).partition(b" ")[0]
            + b" "
            + random.choice([name, root, "", "x"]).encode()
            + b" 0\0"
        )
    else:
        parts[name] = _bytes(random, parts[name])
    return root, parts


def mutated(seed: int, number: int, kinds: list[Honest]) -> tuple[Honest, str, Parts]:
    """One of them: from one to three changes."""
    random = Random(seed * 1_000_003 + number)
    base = random.choices(kinds, [6, 4, 2, 2, 1, 1, 6, 4, 4, 2])[0]
    said, changes = base.said, random.choice([1, 1, 1, 2, 3])
    spoken = changes if random.random() < 0.6 else random.randrange(changes + 1)
    for _ in range(spoken):
        said = _error(random, said) if isinstance(said, Error) else _said(random, said)
    try:
        root, parts = cut(said) if spoken else base.parts
    except Exception:  # more than Flower can write: nothing to send
        root, parts = base.parts
    for _ in range(changes - spoken):
        root, parts = _parts(random, root, parts) if parts else (root, parts)
    return base, root, parts
