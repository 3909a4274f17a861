"""State as JSON and tensors: what a checkpoint holds of dataclasses, local works and jobs. No pickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.local.sgd import LocalSGD, Named
from turnout.server.updates import Job

Facts = dict[str, Any]

_NESTED = ("received", "work", "result", "state", "local")


def nest(prefix: str, tensors: Named) -> Named:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def unnest(prefix: str, tensors: Named) -> Named:
    return {name.removeprefix(f"{prefix}/"): value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


def save_state(thing: Any) -> tuple[Facts, Named]:
    """Fields with `init=False` of a dataclass, and of the dataclasses among its options."""
    facts: Facts = {}
    tensors: Named = {}
    for part in fields(thing):
        value = getattr(thing, part.name)
        if is_dataclass(value) and not isinstance(value, type):
            inner, inner_tensors = save_state(value)
            facts[part.name] = inner
            tensors |= nest(part.name, inner_tensors)
        elif part.init:
            continue
        elif isinstance(value, Tensor):
            tensors[part.name] = value
        elif isinstance(value, np.ndarray):
            tensors[f"{part.name}@numpy"] = torch.as_tensor(value)
        else:
            facts[part.name] = value
    return facts, tensors


def load_state(thing: Any, facts: Facts, tensors: Named, device: str) -> None:
    """The inverse of `save_state`, into an object built with the same options."""
    for part in fields(thing):
        value = getattr(thing, part.name)
        if is_dataclass(value) and not isinstance(value, type):
            load_state(value, facts[part.name], unnest(part.name, tensors), device)
        elif part.init:
            continue
        elif part.name in tensors:
            setattr(thing, part.name, tensors[part.name].to(device))
        elif f"{part.name}@numpy" in tensors:
            setattr(thing, part.name, tensors[f"{part.name}@numpy"].numpy().copy())
        else:
            setattr(thing, part.name, facts[part.name])


def _known_works(root: type[LocalSGD] = LocalSGD) -> dict[str, type[LocalSGD]]:
    """Every local work that has been imported, by qualified name: a checkpoint can name no other class."""
    known = {f"{root.__module__}.{root.__qualname__}": root}
    for child in root.__subclasses__():
        known |= _known_works(child)
    return known


def save_jobs(jobs: Sequence[Job]) -> tuple[Facts, Named]:
    """Jobs with the models they received and the results already computed."""
    models: dict[int, tuple[int, Tensor]] = {}
    works: dict[int, tuple[int, LocalSGD]] = {}
    rows: list[Facts] = []
    tensors: Named = {}
    vectors: dict[str, list[Tensor]] = {}
    for job in jobs:
        row: Facts = {part.name: getattr(job, part.name) for part in fields(job) if part.name not in _NESTED}
        row["received"] = models.setdefault(id(job.received), (len(models), job.received))[0]
        row["work"] = works.setdefault(id(job.work), (len(works), job.work))[0]
        for kind in ("result", "state"):
            block = getattr(job, kind)
            row[kind] = None if block is None else _append(vectors, kind, {n: v[block[1]] for n, v in block[0].items()})
        row["local"] = None if job.local is None else _append(vectors, "local", {"params": job.local[0][job.local[1]]})
        rows.append(row)
    saved_works = []
    for number, work in works.values():
        values = {part.name: getattr(work, part.name) for part in fields(work)}
        tensors |= nest(f"work{number}", {name: value for name, value in values.items() if isinstance(value, Tensor)})
        plain = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        saved_works.append([f"{type(work).__module__}.{type(work).__qualname__}", plain])
    if models:
        tensors["models"] = torch.stack([model for _, model in models.values()])
    tensors |= {name: torch.stack(values) for name, values in vectors.items()}
    return {"rows": rows, "works": saved_works}, tensors


def _append(vectors: dict[str, list[Tensor]], kind: str, named: Named) -> dict[str, int]:
    where = {}
    for name, value in named.items():
        column = vectors.setdefault(f"{kind}/{name}", [])
        where[name] = len(column)
        column.append(value)
    return where


def load_jobs(facts: Facts, tensors: Named, device: str) -> list[Job]:
    """The inverse of `save_jobs`."""
    tensors = {name: value.to(device) for name, value in tensors.items()}
    known, works = _known_works(), []
    for number, (name, values) in enumerate(facts["works"]):
        if name not in known:
            raise UserError(f"checkpoint: it holds jobs of {name}; import the module that defines it first")
        works.append(known[name](**values).bind(unnest(f"work{number}", tensors)))
    models = list(tensors["models"]) if "models" in tensors else []
    jobs = []
    for row in facts["rows"]:
        where = {kind: row.pop(kind) for kind in ("result", "state", "local")}
        received, work = models[row.pop("received")], works[row.pop("work")]
        row |= {name: tuple(row[name]) for name in ("seconds", "bytes")}
        job = Job(received=received, work=work, **row)
        job.result = _rows(tensors, "result", where["result"])
        job.state = _rows(tensors, "state", where["state"])
        local = _rows(tensors, "local", where["local"])
        job.local = None if local is None else (local[0]["params"], 0)
        jobs.append(job)
    return jobs


def _rows(tensors: Named, kind: str, where: dict[str, int] | None) -> tuple[Named, int] | None:
    if where is None:
        return None
    return {name: tensors[f"{kind}/{name}"][row : row + 1] for name, row in where.items()}, 0
