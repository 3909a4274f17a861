"""What is done at a site before it takes part: its keys and its split are made, its table is checked, and everything
is tried without a network."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from turnout.config.written import as_toml
from turnout.core.errors import UserError
from turnout.core.files import as_json_text, read_json, write_text
from turnout.data.preprocess import Preprocess
from turnout.data.schema import Schema
from turnout.data.sums import check_agreed
from turnout.deploy import keys
from turnout.deploy.client import Worker
from turnout.deploy.measures import SUMMARIES
from turnout.deploy.policy import OF_ALGORITHM, OF_MODEL, Policy, RefusedError, check_standing, digest_of
from turnout.deploy.rows import PLACE, Place, Rows
from turnout.deploy.site import PREPROCESS, SCHEMA, Site, alone
from turnout.deploy.wire import PAYLOAD, Request, fingerprint
from turnout.engine.evaluate import sample_measures
from turnout.server.state import unnest

INVITATION, SALT = "invitation.json", "salt"
_SALT = 32  # bytes
_CHUNK = 4096  # samples scored in one go


def enrol(folder: Path, table: Path, separator: str = ",", decimal: str = ".") -> tuple[Path, Rows, str]:
    """Check the table, make the keys, and write what is to be sent to the server; nothing is written of a table that
    does not fit."""
    invitation = _invitation(folder)
    schema = Schema.read(folder / SCHEMA)
    if invitation["schema"] != schema.digest:
        raise UserError(f"deploy: {folder / SCHEMA} was changed after the invitation; ask for the folder again")
    salt = (folder / SALT).read_bytes() if (folder / SALT).exists() else os.urandom(_SALT)
    place = Place(str(table.resolve()), separator, decimal)
    rows = Rows.read(schema, place, salt)
    if not (folder / SALT).exists():
        _write_secret(folder / SALT, salt)
    key = folder / "node.key"
    public = keys.public_of(key) if key.exists() else keys.make_node_key(key)
    place = replace(place, fingerprint=rows.fingerprint)
    write_text(folder / PLACE, as_toml({"table": vars(place)}).partition("\n")[2])
    found = folder / f"enrolment-{invitation['site']}.json"
    said = {"study": schema.name, "site": invitation["site"], "key": public, "schema": schema.digest, **rows.counts}
    write_text(found, as_json_text(said))
    return found, rows, public


def _invitation(folder: Path) -> dict[str, Any]:
    if not (folder / INVITATION).exists():
        raise UserError(f"deploy: {folder} is not a site's folder (no {INVITATION}); deploy init --schema makes it")
    found = read_json(folder / INVITATION)
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("site", "schema", "study")):
        raise UserError(f"deploy: {folder / INVITATION} is not as deploy init writes it; ask for the folder again")
    return found


def _write_secret(path: Path, secret: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)


# -- a trial without a network ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """What a site's folder would do."""

    schema: Schema
    rows: Rows
    policy: Policy
    refusal: RefusedError | None  # of any request at this moment
    agreed: bool  # whether the preprocessing is that of all
    statistics: str  # what would be told to agree on it
    digests: dict[str, str]  # of the algorithm and of the model, for the policy
    loss: float  # of one step on the site's own rows
    update: int  # bytes of a job's answer
    measures: list[str]


def try_out(folder: Path) -> Trial:
    """Check table, keys and policy, and train one step on the site's own rows; nothing leaves."""
    for name in ("node.key", SALT):
        if not (folder / name).exists():
            raise UserError(f"deploy: {folder} has no {name}; turnout deploy enrol {folder} --data TABLE makes it")
    site, policy = Site(folder), Policy.read(folder)
    try:
        rows = site.rows
    except RefusedError as error:
        raise UserError(str(error.__cause__)) from error
    refusal = None
    try:
        check_standing(policy, site.settings, site.now())
        site._check_data(policy)
    except RefusedError as error:
        refusal = error
    fitted, is_agreed = _fitted(site)
    worker = site.worker(fitted)
    loss, size = _one_step(worker)
    return Trial(
        site.schema,
        rows,
        policy,
        refusal,
        is_agreed,
        site.statistics(policy),
        {"algorithms": digest_of(site.settings, OF_ALGORITHM), "models": digest_of(site.settings, OF_MODEL)},
        loss,
        size,
        ["loss", *worker.task.metrics, *SUMMARIES[site.settings.get("deploy", {}).get("summaries", "none")]],
    )


def _fitted(site: Site) -> tuple[Preprocess, bool]:
    path = site.folder / PREPROCESS
    if not path.exists():
        return alone(site), False
    try:
        return check_agreed(site.schema, json.loads(path.read_text(encoding="utf-8"))), True
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: not of this schema ({error}); delete it") from error


def _one_step(worker: Worker) -> tuple[float, int]:
    """Train one step from the initial model; its loss afterwards, and the bytes of what would be sent."""
    work = getattr(worker.algorithm, "local", None)
    if work is None:
        raise UserError("deploy: this algorithm has no local work that could be tried")
    model = worker.task.initial
    request = Request(0, 0, 0, 1, replace(work, steps=1), {}, fingerprint(model), "", 0, False)
    found = worker._trained(request, model, worker._state(request) or {})
    payload = unnest(PAYLOAD, found)
    if not all(torch.isfinite(each).all() for each in payload.values()):
        raise UserError("deploy: one step on this table brings NaN or infinity; see the columns' ranges and local.lr")
    ended = model + payload["delta"][0].to(model) if "delta" in payload else model
    losses = sample_measures(worker.task, ended, *worker.cohort.stored, _CHUNK).get("loss")
    size = sum(each.numel() * each.element_size() for each in payload.values())
    return math.nan if losses is None else float(losses.mean()), size
