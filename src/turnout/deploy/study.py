"""A study over sites whose data never meet, at the server: made from a schema, joined by enrolments, agreed on once.

server/        config.toml  schema.toml  invited.json  clients.toml  ca.pem  link.pem  link.key
               preprocess.json  agreement.json  refusals.json          (when it runs)
sites/berlin/  config.toml  schema.toml  ca.pem  policy.toml  invitation.json

No row of anybody's is read, written or sent to make them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid

from turnout.clients.origin import Origin
from turnout.clients.population import Population
from turnout.config.deployment import Deploy
from turnout.core.errors import UserError, unknown
from turnout.core.files import as_json_text, read_json, write_text
from turnout.core.ragged import Ragged
from turnout.data.dataset import Dataset
from turnout.data.preprocess import Preprocess, canonical
from turnout.data.schema import Schema
from turnout.deploy import keys
from turnout.deploy.agreement import RECORD, Agreement, reached
from turnout.deploy.folder import Enrolled, Enrolment, read_clients, write_clients
from turnout.deploy.measures import SUMMARIES
from turnout.deploy.policy import POLICY, TEMPLATE
from turnout.deploy.screen import Refused
from turnout.deploy.terms import Terms

SCHEMA, INVITED, INVITATION, REFUSALS = "schema.toml", "invited.json", "invitation.json", "refusals.json"
PREPROCESS, CLIENTS = "preprocess.json", "clients.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_MOST = 1 << 20  # bytes of an enrolment
_COUNTS = ("samples", "validation", "test")


def prepare(folder: Path, schema: Path, configuration: str, sites: Sequence[str], hosts: Sequence[str]) -> None:
    """Make the folders of a server and its sites."""
    known = Schema.read(schema)
    for site in sites:
        if not _NAME.fullmatch(site):
            raise UserError(f"--site: {site!r}: write small letters, digits and -, 32 at most, such as berlin")
    if not sites or len(set(sites)) < len(sites):
        raise UserError("--site: name each site once, such as --site berlin --site lyon")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"deploy: {folder} is not empty; give a new folder")
    server = folder / "server"
    keys.make_certificates(server, hosts)
    text = schema.read_text(encoding="utf-8")
    write_text(server / "config.toml", configuration)
    write_text(server / SCHEMA, text)
    write_text(server / INVITED, as_json_text({"study": known.name, "sites": [*sites]}))
    write_text(server / CLIENTS, "# A table for each site, which turnout deploy admit writes.\n")
    for site in sites:
        own = folder / "sites" / site
        own.mkdir(parents=True)
        shutil.copy(server / "ca.pem", own / "ca.pem")
        write_text(own / "config.toml", configuration)
        write_text(own / SCHEMA, text)
        write_text(own / POLICY, TEMPLATE)
        invitation = {"study": known.name, "version": known.version, "site": site, "schema": known.digest}
        write_text(own / INVITATION, as_json_text(invitation))


def check_measures(sets: Iterable[str]) -> None:
    """Raise if one of the measures is of a whole set: sites tell sums over samples."""
    for name in sets:
        raise UserError(
            f"task.metrics: {name} is of a whole set, and sites whose data never meet tell sums over samples; leave it "
            "out: deploy.summaries=scores gives F1 and the area under the curve over the rows of all sites"
        )


def outline(schema: Schema, fitted: Preprocess | None = None) -> tuple[Dataset, Tensors]:
    """What a sample looks like: one of zeros. Before anything is agreed on, a word stands for those of sites."""
    width = len(fitted.features) if fitted is not None else len(schema.features)
    inputs = torch.zeros(1, width)
    targets = torch.zeros(1, 1) if schema.classes is None else torch.zeros(1, dtype=torch.int64)
    return Dataset(schema.name, inputs, targets, schema.classes), (inputs, targets)


Tensors = tuple[torch.Tensor, torch.Tensor]


def people(schema: Schema, sizes: Sequence[int], fitted: Preprocess | None = None, **columns: Any) -> Any:
    """Make the dataset and the population as a server knows them: sites of those sizes, whose rows are elsewhere."""
    dataset, (inputs, targets) = outline(schema, fitted)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return dataset, Population(inputs, targets, Ragged(offsets, np.zeros(offsets[-1], np.int64)), **columns)


# -- who takes part ---------------------------------------------------------------------------------------------


def enrolment_of(folder: Path, enrolment: Path) -> Enrolled:
    """Read a site's enrolment, which somebody untrusted may have written."""
    if not (folder / INVITED).exists():
        raise UserError(f"deploy: {folder} is not a study's server folder; turnout deploy init --schema makes one")
    invited, schema = read_json(folder / INVITED)["sites"], Schema.read(folder / SCHEMA)
    found = _enrolment(enrolment)
    name, key = found["site"], found["key"]
    if name not in invited:
        raise unknown(f"{enrolment.name}: site", name, invited)
    if found["schema"] != schema.digest:
        raise UserError(f"{enrolment.name}: {name} has enrolled for another schema.toml; send it its folder again")
    for client in admitted(folder):
        if client.key == key and client.name != name:
            raise UserError(f"{enrolment.name}: {name} has the key of {client.name}; two sites need two keys")
        if client.name == name and client.key != key:
            remedy = f"delete its table from {folder / CLIENTS} first"
            raise UserError(f"{enrolment.name}: {name} was admitted with another key; {remedy}")
    counts = {part: found[part] for part in _COUNTS}
    return Enrolled(key, counts["samples"], None, True, counts["test"], counts["validation"], name)


def admit(folder: Path, new: Enrolled) -> None:
    """Write a site into `clients.toml`; one that was admitted before may have other rows now."""
    clients = admitted(folder)
    known = [client.name for client in clients]
    if new.name in known:
        clients[known.index(new.name)] = replace(new, member=clients[known.index(new.name)].member)
    else:
        clients.append(new)
    write_clients(folder / CLIENTS, clients)


def status(folder: Path) -> list[dict[str, Any]]:
    """Say of each site that is invited what has become of it."""
    if not (folder / INVITED).exists():
        raise UserError(f"deploy: {folder} is not a study's server folder; turnout deploy init --schema makes one")
    clients = {client.name: client for client in admitted(folder)}
    agreement = read_json(folder / RECORD) if (folder / RECORD).exists() else {"missing": {}}
    refusals = read_json(folder / REFUSALS) if (folder / REFUSALS).exists() else {}
    rows = []
    for site in read_json(folder / INVITED)["sites"]:
        client, said = clients.get(site), []
        state = "not enrolled" if client is None else f"admitted, {client.samples} rows" if client.member else "left"
        if site in agreement["missing"]:
            said.append(f"not in the preprocessing: {agreement['missing'][site]}")
        if site in refusals:
            own = refusals[site]
            said.append(f"refused to {own['asked']}, {own['code']}: {own['why']} ({own['times']} times)")
        rows.append({"site": site, "state": state, "said": said})
    return rows


def admitted(folder: Path) -> list[Enrolled]:
    """List the sites in `clients.toml`; none at first."""
    path = folder / CLIENTS
    return read_clients(path) if "[[client]]" in path.read_text(encoding="utf-8") else []


def _enrolment(path: Path) -> dict[str, Any]:
    if path.is_file() and path.stat().st_size > _MOST:
        raise UserError(f"{path.name} is no enrolment: it is larger than any")
    found = read_json(path)
    names = {"study", "site", "key", "schema", *_COUNTS}
    if not isinstance(found, dict) or found.keys() != names:
        raise UserError(f"{path.name} is no enrolment; turnout deploy enrol writes one")
    for name in names:
        if type(found[name]) is not (int if name in _COUNTS else str):
            raise UserError(f"{path.name}: {name} = {str(found[name])[:60]!r} is none; take the file as enrol wrote it")
    if found["samples"] < 1 or min(found[name] for name in _COUNTS) < 0 or max(found[n] for n in _COUNTS) >= 1 << 23:
        raise UserError(f"{path.name}: samples must be 1 to {1 << 23}, validation and test not below 0")
    if not keys.is_node_key(found["key"]):
        raise UserError(f"{path.name}: key is no public key on the curve P-384; take the file as enrol wrote it")
    return found


# -- while it runs ----------------------------------------------------------------------------------------------


@dataclass
class Study:
    """What a server says of a study in every message, and what sites have refused."""

    folder: Path
    schema: Schema
    fitted: Preprocess
    summaries: Sequence[str] = ()
    refusals: dict[str, dict[str, Any]] = field(default_factory=dict)  # by site: the last, and how many

    def __post_init__(self) -> None:
        self._text = canonical(self.fitted.document())

    def terms(self, members: int) -> Terms:
        return Terms(self.schema.digest, members, self._text, self.summaries)

    def refused(self, site: str, asked: str, refusal: Refused) -> None:
        """Note it where the server's folder shows it."""
        times = self.refusals.get(site, {"times": 0})["times"] + 1
        self.refusals[site] = {"asked": asked, "code": refusal.code, "why": refusal.why, "times": times}
        write_text(self.folder / REFUSALS, as_json_text(self.refusals))


def is_study(folder: Path) -> bool:
    return (folder / SCHEMA).exists()


def begin(
    grid: Grid, folder: Path, enrolment: Enrolment, settings: Deploy, columns: dict[str, Any], **clocks: Any
) -> tuple[Study, Any]:
    """Agree on the preprocessing, unless that was done before; give the study and what the server knows of the data."""
    schema = Schema.read(folder / SCHEMA)
    if settings.evaluate == "server":
        raise UserError("deploy.evaluate: server, but a study has no rows there; let the sites evaluate")
    if settings.summaries != "none" and schema.classes is None:
        raise UserError(f"deploy.summaries: {settings.summaries} is of classes, and the target is a number; take none")
    if settings.summaries == "scores" and schema.classes != 2:
        raise UserError(f"deploy.summaries: scores is for two classes, and there are {schema.classes}; take confusion")
    (folder / REFUSALS).unlink(missing_ok=True)
    path = folder / PREPROCESS
    if path.exists():
        fitted = Preprocess.load(json.loads(path.read_text(encoding="utf-8")))
    else:
        members = {str(client.name): client for client in enrolment.clients if client.member}
        fitted = reached(Agreement(grid, schema, members, settings, **clocks), folder)
    names = [str(client.name) for client in enrolment.clients]
    columns["origin"] = Origin(np.array(names, np.str_), fitted.document(), fitted.said)
    sizes = [client.samples for client in enrolment.clients]
    return Study(folder, schema, fitted, SUMMARIES[settings.summaries]), people(schema, sizes, fitted, **columns)
