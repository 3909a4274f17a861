"""A user's Flower app, as it is: its ClientApp and ServerApp, its clients' contexts, its arrays as one vector.

An app is a folder whose `pyproject.toml` names a `clientapp` and a `serverapp`. Nothing of it is changed.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import random as python_random
import re
import sys
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import Tensor, nn

from turnout.core.errors import UserError
from turnout.core.flat import Layout
from turnout.deploy.flower_parts import (
    SUPERLINK_NODE_ID,
    ProtoRecordDict,
    SType,
    TaskIdentity,
    flatten_dict,
    recorddict_from_proto,
    recorddict_to_proto,
)
from turnout.deploy.older_ways import NETWORK, standing_in
from turnout.deploy.screen import RejectedError, Rejection, require
from turnout.deploy.wire import decode
from turnout.local.sgd import Named

RUN_ID = 1
_EXAMPLES = ("num-examples", "num_examples")  # as strategies weigh by, and as clients of the old style say it
_NUMBERS = "fiub"  # kinds of numpy types
_PREFIXES = ("eval_", "test_", "train_")  # of a metric's name: the column says which it is
_INSIDE = re.compile(r"\.<locals>\.<\w+>")  # of a function: a comprehension, a lambda
Part = TypeVar("Part", ClientApp, ServerApp)
Config = Mapping[str, bool | int | float | str]


def why(error: BaseException, folder: Path | None = None) -> str:
    """Say in one line what is wrong with a reply; or, in a user's code, what went wrong, and where: the file, the line
    and the function, those of the app in that folder if it got there."""
    if isinstance(error, RejectedError):
        return str(error)
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [at for at in frames if folder is not None and folder in Path(at[0].co_filename).parents]
    place = ""
    if frames:
        code, line = (own or frames)[-1]
        function = _INSIDE.sub("", code.co_qualname).replace("<locals>.", "")
        place = f" ({Path(code.co_filename).name}:{line}, in {function})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


@dataclass(frozen=True)
class App:
    """The two halves of an app, and the configuration of its run."""

    client: ClientApp
    server: ServerApp
    run_config: Config
    folder: Path

    @classmethod
    def load(cls, folder: Path, overrides: Config | None = None) -> App:
        """Import the app in a folder; `overrides` take the place of values of its `[tool.flwr.app.config]`."""
        path = folder / "pyproject.toml"
        try:
            about = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
            references = about["components"]["clientapp"], about["components"]["serverapp"]
        except OSError as error:
            raise UserError(
                f"flower.app: {folder} is not the folder of a Flower app ({path} cannot be read)"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"flower.app: {path} is not that of a Flower app; it must name clientapp and serverapp under "
                "[tool.flwr.app.components]"
            ) from error
        config = flatten_dict(about.get("config", {}))
        for name in overrides or {}:
            if name not in config:
                raise UserError(f"flower.run_config: the app has no {name!r}; it has {', '.join(sorted(config))}")
        folder = folder.resolve()
        _make_importable(folder)
        client, server = _part(references[0], ClientApp), _part(references[1], ServerApp)
        return cls(client, server, {**config, **(overrides or {})}, folder)

    @property
    def digest(self) -> str:
        """Of its source: a run goes on only with the app it began with."""
        digest = hashlib.sha256()
        names = (path.relative_to(self.folder) for path in self.folder.rglob("*.py"))
        for name in sorted(name for name in names if not any(part.startswith(".") for part in name.parts)):
            digest.update(str(name).encode() + (self.folder / name).read_bytes())
        return digest.hexdigest()[:16]

    def context(self, node: int, node_config: Config | None = None, state: RecordDict | None = None) -> Context:
        return Context(RUN_ID, node, dict(node_config or {}), state or RecordDict(), dict(self.run_config))


def _make_importable(folder: Path) -> None:
    """Put the folder first among those modules come from, and forget modules of the same names: apps like to be called
    alike, and what one remembers of an earlier run, as a strategy that has given its first model away, is not for this.
    """
    names = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in names and getattr(module, "__file__", None) is not None:
            del sys.modules[name]
    sys.path[:] = [str(folder), *(place for place in sys.path if place != str(folder))]
    importlib.invalidate_caches()


def _part(reference: str, kind: type[Part]) -> Part:
    module, _, attribute = reference.partition(":")
    try:
        with ExitStack() as stack:
            for value, name, owners in NETWORK:
                stack.enter_context(standing_in(value, name, *owners))
            part: Any = importlib.import_module(module)
        for name in attribute.split("."):
            part = getattr(part, name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"flower.app: {reference} cannot be imported ({why(error)})") from error
    if not isinstance(part, kind):
        raise UserError(f"flower.app: {reference} is a {type(part).__name__}, not a {kind.__name__}")
    return part


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """The global generators that an app may draw from, set by a key; afterwards they are what they were."""
    before = python_random.getstate(), np.random.get_state(), torch.get_rng_state()
    python_random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)  # torch.manual_seed also queues calls for devices that nobody uses
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(key)
    try:
        yield
    finally:
        python_random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@dataclass
class Clients:
    """The clients of an app: one ClientApp, and for each a partition and the state it keeps."""

    app: App
    count: int
    states: dict[int, RecordDict] = field(default_factory=dict, init=False)  # of those that keep something
    working: bool = field(default=False, init=False)
    sized: bool = True  # whether it is known how many samples they have

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, SUPERLINK_NODE_ID

    def answer(self, client: int, message: Message, key: int) -> tuple[Message, RecordDict]:
        """What a client replies, and its state after: `keep` makes it the client's own."""
        state = copy.deepcopy(self.states[client]) if client in self.states else RecordDict()
        context = self.app.context(client, {"partition-id": client, "num-partitions": self.count}, state)
        self.working = True
        try:
            with seeded(key), torch.enable_grad():
                reply = self.app.client(message, context)
        except SystemExit as error:
            raise RuntimeError(f"it leaves the process by sys.exit({error.code!r})") from error
        finally:
            self.working = False
        if not isinstance(reply, Message):
            raise RejectedError(Rejection.UNDECODABLE)
        if reply.has_error():
            raise RuntimeError(f"its reply is an error ({reply.error.reason})")
        return reply, context.state

    def keep(self, client: int, state: RecordDict) -> None:
        if len(state):
            self.states[client] = state
        else:
            self.states.pop(client, None)

    def save(self) -> Named:
        """States as bytes."""
        rows = {client: recorddict_to_proto(state).SerializeToString() for client, state in self.states.items()}
        return {
            "clients": torch.tensor(list(rows), dtype=torch.int64),
            "lengths": torch.tensor([len(row) for row in rows.values()], dtype=torch.int64),
            "bytes": torch.frombuffer(bytearray(b"".join(rows.values()) or b"\0"), dtype=torch.uint8),
        }

    def load(self, saved: Named) -> None:
        """The inverse of `save`."""
        every, start = saved["bytes"].numpy().tobytes(), 0
        self.states = {}
        for client, length in zip(saved["clients"].tolist(), saved["lengths"].tolist(), strict=True):
            proto = ProtoRecordDict.FromString(every[start : start + length])
            self.states[client], start = recorddict_from_proto(proto), start + length


class Arrays(Layout):
    """Where each array of an app's model lies in the flat vector."""

    def __init__(self, record: ArrayRecord) -> None:
        super().__init__(nn.Module())
        arrays = {name: _numbers_of(array) for name, array in record.items()}
        self.names = list(arrays)
        self.dtypes = [array.dtype for array in arrays.values()]
        self.shapes = [torch.Size(array.shape) for array in arrays.values()]
        self.sizes = [array.size for array in arrays.values()]
        self.size = sum(self.sizes)
        self.ends = np.cumsum(self.sizes).tolist()
        odd = [name for name, dtype in zip(self.names, self.dtypes, strict=True) if dtype.kind not in _NUMBERS]
        if odd:
            raise UserError(f"flower.app: its model must be arrays of numbers; {', '.join(odd)} holds none")
        self.dtype = np.dtype(np.float64 if np.dtype(np.float64) in self.dtypes else np.float32)
        self.sent = self.dtypes[0] if len(set(self.dtypes)) == 1 else self.dtype  # what its bytes are counted in
        zeros = (np.zeros(array.shape, array.dtype) for array in arrays.values())
        headers = [(data := Array(zero).data)[: len(data) - zero.nbytes] for zero in zeros]  # of a serialised one
        places = [slice(end - size, end) for size, end in zip(self.sizes, self.ends, strict=True)]
        self._parts = list(zip(self.names, self.dtypes, self.shapes, places, headers, strict=True))

    def values(self, vector: Tensor) -> dict[str, np.ndarray[Any, Any]]:
        """Every array by name, with its own shape and type."""
        numbers, values = vector.detach().cpu().numpy(), {}
        for name, dtype, shape, place, _ in self._parts:
            part = numbers[place]
            if part.dtype != dtype:
                part = (part if dtype.kind == "f" else np.rint(part)).astype(dtype)
            values[name] = part.reshape(shape)
        return values

    def record(self, vector: Tensor) -> ArrayRecord:
        """The arrays of a vector, to be sent."""
        values, arrays = self.values(vector), {}
        for name, dtype, shape, _, header in self._parts:
            arrays[name] = Array(str(dtype), tuple(shape), SType.NUMPY, header + values[name].tobytes())
        return ArrayRecord(arrays)

    def vector(self, record: ArrayRecord) -> Tensor:
        """`[P]` of arrays that have come back; raises `RejectedError` if they are not those of this model."""
        require(set(self.names) <= set(record), Rejection.MISSING_ARRAY)
        require(len(record) == len(self.names), Rejection.EXTRA_ARRAY)
        numbers = np.empty(self.size, self.dtype)
        for name, dtype, shape, place, header in self._parts:
            numbers[place] = self._decoded(record[name], dtype, shape, header)
        require(bool(np.isfinite(numbers).all()), Rejection.NOT_FINITE)
        return torch.from_numpy(numbers)

    def rounds(self, record: ArrayRecord) -> bool:
        """Say whether this is a model of whole numbers alone, and the same arrays now hold others."""
        if any(dtype.kind == "f" for dtype in self.dtypes):  # what is whole among those, as a counter, stays so
            return False
        return any(numbers_in(record[name]).dtype.kind == "f" for name in self.names)

    @staticmethod
    def _decoded(array: Array, dtype: np.dtype[Any], shape: torch.Size, header: bytes) -> np.ndarray[Any, Any]:
        """Its numbers in a row: what has the header of the one sent needs no reading."""
        if len(array.data) == len(header) + shape.numel() * dtype.itemsize and array.data.startswith(header):
            return np.frombuffer(array.data, dtype, offset=len(header))
        values = numbers_in(array)
        require(values.shape == tuple(shape), Rejection.WRONG_SHAPE)
        return values.reshape(-1)


def layout_of(record: ArrayRecord) -> Arrays | None:
    """Where the numbers of a record lie; None if it holds something else."""
    try:
        return Arrays(record)
    except UserError:
        return None


def _numbers_of(array: Array) -> np.ndarray[Any, Any]:
    """What an array of the app's own server holds; an empty one of no numbers, if that is not for NumPy to read."""
    try:
        return array.numpy()
    except Exception:
        return np.empty(0, np.void)


def numbers_in(array: Array) -> np.ndarray[Any, Any]:
    """What an untrusted array holds."""
    try:
        return decode(array)
    except Exception as error:
        raise RejectedError(Rejection.UNDECODABLE) from error


def model_in(content: RecordDict) -> ArrayRecord | None:
    """The one record of arrays, where there is one."""
    records = list(content.array_records.values())
    return records[0] if len(records) == 1 else None


def examples(content: RecordDict) -> int:
    """How many samples a reply stands for."""
    records = content.metric_records.values()
    for count in (record[name] for record in records for name in _EXAMPLES if name in record):
        if isinstance(count, int | float) and 0 < count < 2**53:
            return max(1, round(count))
    raise RejectedError(Rejection.BAD_COUNTS)


def metrics(content: RecordDict) -> dict[str, float]:
    """Every other number a reply says, by name."""
    said: list[tuple[str, Any]] = [item for record in content.metric_records.values() for item in record.items()]
    for name, record in content.config_records.items():
        said += record.items() if name.endswith("res.metrics") else ()  # of the old style
    found: dict[str, float] = {}
    for name, value in said:
        if name not in _EXAMPLES and isinstance(value, int | float) and not isinstance(value, bool):
            name = name.replace("-", "_")
            for prefix in _PREFIXES:
                name = name.removeprefix(prefix)
            found[name] = float(value)
    return found
