"""The folders of a deployment: one for the server, one for each client, to be carried to its machine and nowhere else.

server/      config.toml  clients.toml  outline.safetensors  ca.pem  link.pem  link.key
clients/0/   config.toml  shard.safetensors  ca.pem  node.key

`clients.toml` is the enrolment: which node key is which client, how many samples it declares, where it belongs, whether
it takes part.

    [[client]]
    id = 0
    key = "MHYwEAYHKoZIzj0C..."
    samples = 120
    test = 30               # held-out samples, at most; if left out, whatever number it says is believed
    validation = 0
    region = 1              # if there are regions
    member = true           # false: a place that is not taken yet, or a client that has left

The server reads that file again whenever it has changed: clients join and leave while a run goes on. Places are given
when a run begins. The safetensors files are what a machine knows of the data: a client its own samples, the server
their shape and its own central test set.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from turnout.clients.availability import Always
from turnout.clients.origin import Origin
from turnout.clients.population import Population
from turnout.config.written import quoted
from turnout.core import trees
from turnout.core.errors import UserError
from turnout.core.files import write_tensors, write_text
from turnout.core.ragged import Ragged
from turnout.core.random import IntArray
from turnout.core.trees import Tree
from turnout.data.dataset import Dataset
from turnout.deploy import keys
from turnout.deploy.presence import nobody

SPLITS = ("train", "test", "validation")


def prepare(
    folder: Path, population: Population, classes: int | None, configuration: str, hosts: Sequence[str], data: bool
) -> None:
    """Make them all; without `data` clients write their own `shard.safetensors`."""
    made_up = {  # real clients come, go, fail and lie by themselves
        "availability": not isinstance(population.availability, Always),
        "crashes": bool(population.crashes.probability),
        "adversary": population.adversary is not None,
        "behaviour": population.behaviour is not None,
        "stream": population.stream is not None,
        "clients.joined_at": population.changes,
    }
    for section, given in made_up.items():
        if given:
            raise UserError(f"{section}: it is for simulated clients; real ones have their own, so leave it out")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"deploy: {folder} is not empty; give a new folder")
    server, enrolled = folder / "server", []
    keys.make_certificates(server, hosts)
    for client in range(population.size):
        own = folder / "clients" / str(client)
        region = None if population.regions is None else int(population.regions[client])
        counts = {name: len(rows) for name, rows in _rows(population, client).items()}
        held_out = counts if data else {}  # who brings data has its own
        key, test, validation = keys.make_node_key(own / "node.key"), held_out.get("test"), held_out.get("validation")
        name = None if population.names is None else str(population.names[client])
        enrolled.append(Enrolled(key, counts["train"], region, True, test, validation, name))
        shutil.copy(server / "ca.pem", own / "ca.pem")
        write_text(own / "config.toml", configuration)
        if data:
            write_shard(own / "shard.safetensors", population, client, classes)
    write_clients(server / "clients.toml", enrolled)
    write_outline(server / "outline.safetensors", population, classes)
    write_text(server / "config.toml", configuration)


# -- who may take part ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enrolled:
    """A client that may take part."""

    key: str
    samples: int
    region: int | None = None
    member: bool = True
    test: int | None = None
    validation: int | None = None
    name: str | None = None  # what the data call it

    @property
    def splits(self) -> dict[str, int | None]:
        """How many samples it has of each kind, where that is known."""
        return {"train": self.samples, "test": self.test, "validation": self.validation}


_TYPES = {"id": int, "name": str, "key": str, "member": bool}
_TYPES |= dict.fromkeys(("samples", "test", "validation", "region"), int)


def write_clients(path: Path, clients: list[Enrolled]) -> None:
    lines = []
    for number, client in enumerate(clients):
        lines += ["[[client]]", f"id = {number}", f'key = "{client.key}"', f"samples = {client.samples}"]
        lines += [] if client.name is None else [f"name = {quoted(client.name)}"]
        optional = {"test": client.test, "validation": client.validation, "region": client.region}
        lines += [f"{name} = {value}" for name, value in optional.items() if value is not None]
        lines += [f"member = {'true' if client.member else 'false'}", ""]
    write_text(path, "\n".join(lines))


def read_clients(path: Path) -> list[Enrolled]:
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
        self._stamp, self.clients = self.path.stat().st_mtime_ns if self.path.exists() else 0, read_clients(self.path)

    def read_again(self) -> None:
        """If it has changed; raises if it cannot be used."""
        stamp = self.path.stat().st_mtime_ns
        if stamp == self._stamp:
            return
        self._stamp = stamp  # a wrong one is complained of once
        now = read_clients(self.path)
        if len(now) != len(self.clients):
            raise UserError(f"{self.path.name}: {len(now)} clients; this run has {len(self.clients)} places")
        self.clients = now

    def columns(self) -> dict[str, Any]:
        """What a population takes from it; nobody is there yet."""
        regions = [client.region for client in self.clients]
        if None in regions and any(region is not None for region in regions):
            raise UserError(f"{self.path.name}: some clients have a region and some have none")
        names = [client.name for client in self.clients]
        known = {} if None in names else {"origin": Origin(np.array(names, np.str_))}
        return nobody(len(regions)) | known | ({} if None in regions else {"regions": np.array(regions, np.int64)})


# -- data -------------------------------------------------------------------------------------------------------


def _write(path: Path, pools: dict[str, Tree], classes: int | None) -> None:
    """Write tensors and trees of them; how these are built is JSON beside them."""
    found = {name: trees.described(name, pool) for name, pool in pools.items()}
    whole = {name: value.contiguous().clone() for _, own in found.values() for name, value in own.items()}
    metadata = {"classes": "" if classes is None else str(classes)}
    if built := {name: description for name, (description, _) in found.items() if description != name}:
        metadata["trees"] = json.dumps(built)
    write_tensors(path, whole, metadata)


def _read(path: Path) -> tuple[dict[str, Any], int | None]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            built = json.loads(metadata.get("trees", "{}"))
            pools = {name: trees.rebuilt(description, tensors) for name, description in built.items()}
            classes = metadata.get("classes", "")
            return tensors | pools, int(classes) if classes else None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"deploy: {path} cannot be read ({error}); turnout deploy init writes it") from error


def _rows(population: Population, client: int) -> dict[str, IntArray]:
    """Find the rows of a client's samples, by split."""
    splits = {name: getattr(population, name) for name in SPLITS}
    return {name: index.row(client) for name, index in splits.items() if index is not None}


def write_shard(path: Path, population: Population, client: int, classes: int | None) -> None:
    """One client's samples: `inputs`, `targets`, and the rows of each split."""
    rows = _rows(population, client)
    own = np.unique(np.concatenate(list(rows.values())))
    index = torch.as_tensor(own.astype(np.int64))
    tensors: dict[str, Tree] = {
        "inputs": trees.at(population.inputs, index),
        "targets": trees.at(population.targets, index),
    }
    tensors |= {name: torch.as_tensor(np.searchsorted(own, row)) for name, row in rows.items()}
    _write(path, tensors, classes)


def read_shard(path: Path) -> tuple[Dataset, Population]:
    """The population of one client."""
    tensors, classes = _read(path)
    splits: dict[str, Any] = {name: Ragged.from_rows([tensors[name].numpy()]) for name in SPLITS if name in tensors}
    dataset = Dataset(path.stem, tensors["inputs"], tensors["targets"], classes)
    return dataset, Population(dataset.inputs, dataset.targets, **splits)


def write_outline(path: Path, population: Population, classes: int | None) -> None:
    """What the server may know: what a sample looks like, and the central test set."""
    pools = {"inputs": population.inputs, "targets": population.targets}
    tensors = {name: trees.map_leaves(lambda leaf: torch.zeros_like(leaf[:1]), pool) for name, pool in pools.items()}
    if population.central is not None:
        tensors |= {"central_inputs": population.central[0], "central_targets": population.central[1]}
    _write(path, tensors, classes)


def read_outline(path: Path, sizes: list[int], **columns: Any) -> tuple[Dataset, Population]:
    """The population as the server knows it: clients of those sizes, whose samples are elsewhere."""
    tensors, classes = _read(path)
    dataset = Dataset(path.stem, tensors["inputs"], tensors["targets"], classes)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    elsewhere = Ragged(offsets, np.zeros(offsets[-1], np.int64))
    central = (tensors["central_inputs"], tensors["central_targets"]) if "central_inputs" in tensors else None
    return dataset, Population(dataset.inputs, dataset.targets, elsewhere, central=central, **columns)
