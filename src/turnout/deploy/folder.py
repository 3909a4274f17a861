"""The folders of a deployment: one for the server, one for each client, to be carried to its machine and nowhere else.

server/      config.toml  clients.toml  outline.safetensors  ca.pem  link.pem  link.key
clients/0/   config.toml  shard.safetensors  ca.pem  node.key
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from turnout.clients.availability import Always
from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.files import write_text
from turnout.deploy import enrol, keys, shard
from turnout.deploy.enrol import Enrolled


def prepare(
    folder: Path, population: Population, classes: int | None, configuration: str, hosts: Sequence[str], data: bool
) -> None:
    """Make them all; without `data` clients write their own `shard.safetensors`."""
    _check(population)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"deploy: {folder} is not empty; give a new folder")
    server, enrolled = folder / "server", []
    keys.make_certificates(server, hosts)
    for client in range(population.size):
        own = folder / "clients" / str(client)
        region = None if population.regions is None else int(population.regions[client])
        splits = {name: getattr(population, name) for name in shard.SPLITS}
        counts = {name: int(rows.counts[client]) for name, rows in splits.items() if rows is not None}
        held_out = counts if data else {}  # who brings data has its own
        key, test, validation = keys.make_node_key(own / "node.key"), held_out.get("test"), held_out.get("validation")
        enrolled.append(Enrolled(key, counts["train"], region, True, test, validation))
        shutil.copy(server / "ca.pem", own / "ca.pem")
        write_text(own / "config.toml", configuration)
        if data:
            shard.write_shard(own / "shard.safetensors", population, client, classes)
    enrol.write(server / "clients.toml", enrolled)
    shard.write_outline(server / "outline.safetensors", population, classes)
    write_text(server / "config.toml", configuration)


def _check(population: Population) -> None:
    """Real clients come, go, fail and lie by themselves."""
    made_up = {
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
