"""Four sites with tables of their own, and a network in one process on which every byte is kept."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fake_network import Clock, FakeGrid
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from typer.testing import CliRunner

from turnout.cli.commands import app
from turnout.deploy import keys, server
from turnout.deploy.folder import read_clients
from turnout.deploy.site import Site

SITES = ("berlin", "lyon", "porto", "oslo")
PLANTED = [f"{10 + i}.{7310625 + 9091 * i}" for i in range(20)]  # ages, each at one site and nowhere else
WORD, PERSON = "ZEBRA7", "PID-90210"
SCHEMA = """
[study]
name = "wards"
target = "died"
test_fraction = 0.25

[[column]]
name = "pid"
kind = "id"

[[column]]
name = "age"
kind = "number"
low = 0
high = 120
missing = "mean"

[[column]]
name = "sodium"
kind = "number"
low = 100
high = 180
missing = "flag"
outside = "missing"

[[column]]
name = "sex"
kind = "category"
values = ["F", "M"]
other = "own"

[[column]]
name = "unit"
kind = "category"
values = "agree"
other = "own"
missing = "flag"

[[column]]
name = "seen"
kind = "date"
origin = "2020-01-01"
low = 0
high = 3650

[[column]]
name = "note"
kind = "ignore"

[[column]]
name = "died"
kind = "category"
values = ["no", "yes"]
"""
CONFIGURATION = """
[run]
name = "wards"
rounds = 3
seed = 1

[model]
name = "mlp"
hidden = [6]

[local]
lr = 0.2
epochs = 2
batch_size = 8

[algorithm]
name = "fedavg"

[sampler]
name = "full"

[engine]
threads = 1

[deploy]
summaries = "scores"
"""
HEADER = ("pid", "age", "sodium", "sex", "unit", "seen", "note", "died")


def table(site: int) -> list[list[str]]:
    """Rows of a ward; some values stand at this site alone."""
    draw, rows = np.random.default_rng(site), []
    for row in range(30 + 10 * site):
        age = PLANTED[5 * site + row] if row < 5 else f"{draw.normal(60, 12):.7f}"
        unit = WORD if site == 2 and row == 0 else ("surgery", "medicine", f"ward {site}")[int(draw.integers(3))]
        sodium = "" if row % 7 == 3 else f"{draw.normal(140, 5):.1f}"
        died = "yes" if float(age) + 8 * draw.normal() > 60 else "no"
        person = PERSON if (site, row) == (1, 0) else f"PID-{site}-{row}"
        day = f"202{1 + row % 4}-0{1 + row % 9}-1{row % 9}"
        rows.append([person, age, sodium, "FM"[row % 2], unit, day, f"seen by {WORD}-{site}-{row}", died])
    return rows


def write_csv(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = HEADER, separator: str = ",") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([header, *rows])
    return path


def write_parquet(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    columns: dict[str, Any] = dict(zip(HEADER, map(list, zip(*rows, strict=True)), strict=True))
    for name in ("age", "sodium"):
        columns[name] = [float(word) if word else None for word in columns[name]]
    pq.write_table(pa.table(columns), path)
    return path


def turnout(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


class Tapped(FakeGrid):
    """Keeps every byte that is sent, either way."""

    def __init__(self, folder: Path, sites: Sequence[str], clock: Clock) -> None:
        self.heard: list[bytes] = []
        enrolled = {client.name: client.key for client in read_clients(folder / "server/clients.toml")}
        self.keys = [enrolled[site] for site in sites]
        workers: Any = [Site(folder / "sites" / site) for site in sites]
        super().__init__(workers, clock, tuple(1.0 + number for number in range(len(sites))))

    def get_nodes(self) -> Any:
        nodes = list(super().get_nodes())
        for number, node in zip([i for i, here in self.connected.items() if here], nodes, strict=True):
            node.public_key = keys.as_pem(self.keys[number])
        return nodes

    def _ask(self, client: int, message: Message) -> None:
        self.heard += [part.deflate() for part in get_all_nested_objects(message).values()]
        super()._ask(client, message)

    def deliver(self, reply: Message, at: float) -> None:
        self.heard += [part.deflate() for part in get_all_nested_objects(reply).values()]
        super().deliver(reply, at)


class World:
    """A folder made by the commands, with the tables beside it."""

    def __init__(self, folder: Path, configuration: str = CONFIGURATION, schema: str = SCHEMA) -> None:
        self.folder, self.tables, self.clock = folder / "all", folder / "tables", Clock()
        self.tables.mkdir()
        (folder / "schema.toml").write_text(schema)
        (folder / "study.toml").write_text(configuration)
        named = [word for site in SITES for word in ("--site", site)]
        made = turnout("deploy", "init", self.folder, folder / "study.toml", "--schema", folder / "schema.toml", *named)
        assert made.exit_code == 0, made.output
        self.run = folder / "run"

    def at(self, folder: Path) -> World:
        """Copy it to another folder."""
        shutil.copytree(self.folder, folder / "all")
        other = copy(self)
        other.folder, other.run, other.clock = folder / "all", folder / "run", Clock()
        return other

    def site(self, name: str) -> Path:
        return self.folder / "sites" / name

    @property
    def server(self) -> Path:
        return self.folder / "server"

    def write_tables(self) -> dict[str, Path]:
        found = {site: write_csv(self.tables / f"{site}.csv", table(i)) for i, site in enumerate(SITES)}
        found["lyon"] = write_parquet(self.tables / "lyon.parquet", table(1))
        return found

    def join(self, name: str, path: Path, *options: str) -> None:
        (self.site(name) / "salt").write_bytes(name.encode())  # the same rows are held out each time
        enrolled = turnout("deploy", "enrol", self.site(name), "--data", path, *options)
        assert enrolled.exit_code == 0, enrolled.output
        admitted = turnout("deploy", "admit", self.server, self.site(name) / f"enrolment-{name}.json", "--yes")
        assert admitted.exit_code == 0, admitted.output

    def join_all(self) -> None:
        for name, path in self.write_tables().items():
            self.join(name, path)

    def grid(self) -> Tapped:
        return Tapped(self.folder, SITES, self.clock)

    def serve(self, grid: Tapped, **options: Any) -> dict[str, Any]:
        server.serve(grid, self.server, self.run, clock=self.clock.read, sleep=self.clock.sleep, **options)
        summary: dict[str, Any] = json.loads((self.run / "result.json").read_text())
        return summary
