"""Enrolment: which node key is which client, how many samples it declares, where it belongs, whether it takes part.

    [[client]]
    id = 0
    key = "MHYwEAYHKoZIzj0C..."
    samples = 120
    test = 30               # held-out samples, at most; if left out, whatever number it says is believed
    validation = 0
    region = 1              # if there are regions
    member = true           # false: a place that is not taken yet, or a client that has left

The server reads the file again whenever it has changed: clients join and leave while a run goes on. Places are given
when a run begins.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.errors import UserError
from turnout.core.files import write_text
from turnout.deploy.presence import Connected


@dataclass(frozen=True)
class Enrolled:
    """A client that may take part."""

    key: str
    samples: int
    region: int | None = None
    member: bool = True
    test: int | None = None
    validation: int | None = None

    @property
    def splits(self) -> dict[str, int | None]:
        """How many samples it has of each kind, where that is known."""
        return {"train": self.samples, "test": self.test, "validation": self.validation}


_TYPES = {"id": int, "key": str, "samples": int, "test": int, "validation": int, "region": int, "member": bool}


def write(path: Path, clients: list[Enrolled]) -> None:
    lines = []
    for number, client in enumerate(clients):
        lines += ["[[client]]", f"id = {number}", f'key = "{client.key}"', f"samples = {client.samples}"]
        optional = {"test": client.test, "validation": client.validation, "region": client.region}
        lines += [f"{name} = {value}" for name, value in optional.items() if value is not None]
        lines += [f"member = {'true' if client.member else 'false'}", ""]
    write_text(path, "\n".join(lines))


def read(path: Path) -> list[Enrolled]:
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("client", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"deploy: {path} cannot be read as a table of clients ({error})") from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"deploy: {path} names no clients; write a table [[client]] for each")
    return [_enrolled(path, number, row) for number, row in enumerate(rows)]


def _enrolled(path: Path, number: int, row: dict[str, Any]) -> Enrolled:
    for name, value in row.items():
        if name not in _TYPES or type(value) is not _TYPES[name]:
            raise UserError(f"{path.name}: client {number} has {name} = {value!r}; allowed: {', '.join(_TYPES)}")
    if row.get("id") != number:
        raise UserError(f"{path.name}: client {number} has id = {row.get('id')}; ids are 0, 1, 2, ... in this order")
    if min(row.get("test", 0), row.get("validation", 0)) < 0:
        raise UserError(f"{path.name}: client {number} has test or validation below 0; leave out what is not known")
    if row.get("samples", 0) < 1 or not row.get("key"):
        raise UserError(f"{path.name}: client {number} needs a key and at least one sample")
    return Enrolled(**{name: value for name, value in row.items() if name != "id"})


@dataclass
class Enrolment:
    """The file, as it was last read."""

    path: Path
    clients: list[Enrolled] = field(init=False)
    _stamp: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._stamp, self.clients = self.path.stat().st_mtime_ns if self.path.exists() else 0, read(self.path)

    def read_again(self) -> None:
        """If it has changed; raises if it cannot be used."""
        stamp = self.path.stat().st_mtime_ns
        if stamp == self._stamp:
            return
        self._stamp = stamp  # a wrong one is complained of once
        now = read(self.path)
        if len(now) != len(self.clients):
            raise UserError(f"{self.path.name}: {len(now)} clients; this run has {len(self.clients)} places")
        self.clients = now

    def columns(self) -> dict[str, Any]:
        """What a population takes from it; nobody is there yet."""
        regions = [client.region for client in self.clients]
        if None in regions and any(region is not None for region in regions):
            raise UserError(f"{self.path.name}: some clients have a region and some have none")
        nobody = {"joined_at": np.full(len(regions), np.inf), "left_at": np.full(len(regions), np.inf)}
        presence = {"availability": Connected(np.zeros(len(regions), bool))}
        return nobody | presence | ({} if None in regions else {"regions": np.array(regions, np.int64)})
