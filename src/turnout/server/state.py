"""State as JSON and tensors: what a checkpoint holds of dataclasses, local works and jobs. No pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.engine.blocks import Block
from turnout.local import transforms
from turnout.local.modifiers import Modifier
from turnout.local.optimisers import Optimiser
from turnout.local.schedules import Schedule
from turnout.local.sgd import LocalSGD, Named
from turnout.server.jobs import Job

Facts = dict[str, Any]

_TRAINED = ("result", "state", "local")
_OF_WORK = ("modifiers", "optimiser", "schedules")  # its parts
_NESTED = ("received", "work", *_TRAINED)


def nest(prefix: str, tensors: Named) -> Named:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def unnest(prefix: str, tensors: Named) -> Named:
    return {name.removeprefix(f"{prefix}/"): value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


def reset_state(thing: Any) -> None:
    """Set what `save_state` saves to what it was when the thing was made: nothing of an earlier run is left."""
    for part in fields(thing):
        value = getattr(thing, part.name)
        if is_dataclass(value) and not isinstance(value, type):
            reset_state(value)
        elif not part.init and part.default_factory is not MISSING:
            setattr(thing, part.name, part.default_factory())
        elif not part.init and part.default is not MISSING:
            setattr(thing, part.name, part.default)


def save_state(thing: Any) -> tuple[Facts, Named]:
    """Save the fields with `init=False` of a dataclass, and of the dataclasses among its options."""
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
    """Undo `save_state`, into an object built with the same options."""
    tensors = tensors | {new: tensors[old] for old, new in getattr(thing, "FORMER", {}).items() if old in tensors}
    for part in fields(thing):
        value = getattr(thing, part.name)
        if is_dataclass(value) and not isinstance(value, type):
            load_state(value, facts.get(part.name, {}), unnest(part.name, tensors), device)
        elif part.init:
            continue
        elif part.name in tensors:
            setattr(thing, part.name, tensors[part.name].to(device))
        elif f"{part.name}@numpy" in tensors:
            setattr(thing, part.name, tensors[f"{part.name}@numpy"].numpy().copy())
        else:
            setattr(thing, part.name, facts[part.name])


def _known(place: str, root: type[Any], what: str, name: str) -> type[Any]:
    """Find the subclass of that name, one of those that have been imported: neither a checkpoint nor a message can name
    another class."""
    found = [kind for kind in _kinds(root) if kind.__name__ == name]
    if not found:
        raise UserError(f"{place}: it asks for the {what} {name}, which is not known here; import what defines it")
    if len(found) > 1:
        modules = " and ".join(sorted(kind.__module__ for kind in found))
        raise UserError(f"{place}: {modules} both define the {what} {name}; give one of them another name")
    return found[0]


def _kinds(root: type[Any]) -> Iterator[type[Any]]:
    yield root
    for child in root.__subclasses__():
        yield from _kinds(child)


def work_parts(work: LocalSGD) -> tuple[str, dict[str, Any], Named]:
    """Take a work apart: its class by name, numbers and words, and tensors, as a checkpoint or a message can hold.
    Modifiers and schedules are lists of names and numbers, an optimiser is one such pair; tensors of modifiers are
    called as in `LocalSGD.bind`."""
    values, tensors = _values(work)
    modifiers = []
    for before, part in list(work.parts.items())[1:]:
        plain, own = _values(part)
        modifiers.append([type(part).__name__, plain])
        tensors |= {before + name: value for name, value in own.items()}
    others: list[Optimiser | Schedule] = [work.stepper, *work.schedules]
    optimiser, *schedules = [[type(part).__name__, _values(part)[0]] for part in others]
    return (
        type(work).__name__,
        values | {"modifiers": modifiers, "optimiser": optimiser, "schedules": schedules},
        tensors,
    )


def _values(part: LocalSGD | Modifier | Optimiser | Schedule) -> tuple[dict[str, Any], Named]:
    """Separate numbers and words from tensors."""
    saved = (each.name for each in fields(part) if each.name not in _OF_WORK and each.metadata.get("saved", True))
    values = {name: getattr(part, name) for name in saved}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    plain = {name: value for name, value in values.items() if name not in tensors}
    for name, value in plain.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"local.{name}: the {type(value).__name__} that {type(part).__name__} has there can neither be saved "
                "nor sent; a local work holds numbers, text, lists of these, and tensors"
            ) from error
    return plain, tensors


def work_of(place: str, name: str, values: Mapping[str, Any], tensors: Named) -> LocalSGD:
    """Undo `work_parts`."""
    name, values, tensors = _former(name, dict(values), dict(tensors))
    modifiers = tuple(
        object.__new__(_known(place, Modifier, "modifier", kind)).bind(own) for kind, own in values.pop("modifiers", [])
    )
    work: LocalSGD = object.__new__(_known(place, LocalSGD, "local work", name))
    parts: Facts = {"modifiers": modifiers}
    if "optimiser" in values:
        parts["optimiser"] = _read(place, Optimiser, "optimiser", *values.pop("optimiser"))
        parts["schedules"] = tuple(_read(place, Schedule, "schedule", *each) for each in values.pop("schedules"))
    return work.bind(values | parts).bind(tensors)


def _read(place: str, root: type[Any], what: str, name: str, values: Mapping[str, Any]) -> Any:
    """Make a part again of its name and numbers."""
    part = object.__new__(_known(place, root, what, name))
    for option, value in values.items():
        object.__setattr__(part, option, value)
    return part


def _former(name: str, values: Facts, tensors: Named) -> tuple[str, Facts, Named]:
    """Read a work as version 0.1 wrote it: with its module, transforms as one text, and two modifiers as works."""
    short = name.rpartition(".")[2]
    if "transform" not in values:
        return short, values, tensors
    chain = transforms.former(values.pop("transform")).values()
    modifiers: list[list[Any]] = [[type(transform).__name__, vars(transform)] for transform in chain]
    if short == "ProximalSGD":
        modifiers.append(["Proximal", {"mu": values.pop("mu")}])
    if short == "ControlledSGD":
        tensors[f"modifiers.{len(modifiers)}.control"] = tensors.pop("control")
        modifiers.append(["ControlVariates", {}])
    own = {"ProximalSGD": "LocalSGD", "ControlledSGD": "LocalSGD"}
    return own.get(short, short), values | {"modifiers": modifiers}, tensors


class _Blocks:
    """Keep rows of trained blocks that jobs still refer to. Which rows were trained together, and their order, is kept:
    sums over them then have the same bits."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, Block, set[int]]] = {}

    def refer(self, block: tuple[Block, int] | None) -> list[int] | None:
        """Name a result by the numbers of its block and row."""
        if block is None:
            return None
        number, _, rows = self.blocks.setdefault(id(block[0]), (len(self.blocks), block[0], set()))
        rows.add(block[1])
        return [number, block[1]]

    def save(self, kind: str) -> Named:
        tensors = {}
        for number, block, rows in self.blocks.values():
            tensors[f"{kind}{number}@rows"] = torch.tensor(sorted(rows))
            tensors |= {f"{kind}{number}/{name}": block.some(name, sorted(rows)) for name in block}
        return tensors


def _load_blocks(kind: str, tensors: Named) -> dict[int, tuple[Block, dict[int, int]]]:
    """Read blocks by number: their rows, and where each original row is now."""
    blocks = {}
    for name in tensors:
        if name.startswith(kind) and name.endswith("@rows"):
            block = name.removesuffix("@rows")
            places = {row: place for place, row in enumerate(tensors[name].tolist())}
            blocks[int(block.removeprefix(kind))] = Block(unnest(block, tensors)), places
    return blocks


def save_jobs(jobs: Sequence[Job]) -> tuple[Facts, Named]:
    """Save jobs with the models they received and the results already computed."""
    models: dict[int, tuple[int, Tensor]] = {}
    works: dict[int, tuple[int, LocalSGD]] = {}
    blocks = {kind: _Blocks() for kind in _TRAINED}
    rows: list[Facts] = []
    tensors: Named = {}
    for job in jobs:
        row: Facts = {part.name: getattr(job, part.name) for part in fields(job) if part.name not in _NESTED}
        row["received"] = models.setdefault(id(job.received), (len(models), job.received))[0]
        row["work"] = works.setdefault(id(job.work), (len(works), job.work))[0]
        row |= {kind: blocks[kind].refer(getattr(job, kind)) for kind in _TRAINED}
        rows.append(row)
    saved_works = []
    for number, work in works.values():
        kind, plain, own = work_parts(work)
        tensors |= nest(f"work{number}", own)
        saved_works.append([kind, plain])
    if models:
        tensors["models"] = torch.stack([model for _, model in models.values()])
    for kind in _TRAINED:
        tensors |= blocks[kind].save(kind)
    return {"rows": rows, "works": saved_works}, tensors


def load_jobs(facts: Facts, tensors: Named, device: str) -> list[Job]:
    """Undo `save_jobs`."""
    tensors = {name: value.to(device) for name, value in tensors.items()}
    works = []
    for number, (name, values) in enumerate(facts["works"]):
        works.append(work_of("checkpoint", name, values, unnest(f"work{number}", tensors)))
    models = [model.clone() for model in tensors["models"]] if "models" in tensors else []  # each begins where it did
    blocks = {kind: _load_blocks(kind, tensors) for kind in _TRAINED}
    jobs = []
    for row in facts["rows"]:
        for kind in _TRAINED:
            if row[kind] is not None:
                block, places = blocks[kind][row[kind][0]]
                row[kind] = block, places[row[kind][1]]
        if "heard" in row:  # what version 0.1 called it
            row["learnt"] = row.pop("heard")
        row |= {"received": models[row["received"]], "work": works[row["work"]]}
        row |= {name: tuple(row[name]) for name in ("seconds", "bytes")}
        jobs.append(Job(**row))
    return jobs


def share_tensors(jobs: Sequence[Job], known: Sequence[Tensor]) -> None:
    """Make one tensor again of what was one before the checkpoint: jobs are grouped by the tensors they share. Works
    share with `known`, received models with the first of them."""
    works = {id(job.work): job.work for job in jobs}
    for work in works.values():
        for part in work.parts.values():
            for name, value in vars(part).items():
                if isinstance(value, Tensor):
                    twin = next((tensor for tensor in known if torch.equal(tensor, value)), value)
                    object.__setattr__(part, name, twin)
    for job in jobs:
        if torch.equal(job.received, known[0]):
            job.received = known[0]
