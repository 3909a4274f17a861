"""The task of a configuration: `[task] loss = "cross_entropy"`, `[task.cross_entropy] smoothing = 0.1`.

The options of a loss, a metric, or a part of `prepare` and `augment` stand in a table of [task] that is called as it
is. Instead of a name, `module:function` is one of the user's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from turnout.config.options import Section, call, check, checked_value
from turnout.core.errors import UserError, unknown
from turnout.core.imports import dotted
from turnout.core.spelling import Spelt
from turnout.task.losses import LOSSES
from turnout.task.metrics import METRICS
from turnout.task.norms import BATCHNORM, Buffers
from turnout.task.samples import AUGMENT, PREPARE

PARTS: dict[str, Mapping[str, type[Any]]] = {
    "loss": LOSSES, "metrics": METRICS, "prepare": PREPARE, "augment": AUGMENT, "batchnorm": BATCHNORM
}  # fmt: skip
_ONE = ("loss", "batchnorm")  # options that are one name
_Names = str | list[str]


@dataclass(frozen=True)
class TaskSettings(Spelt):
    """What is trained for, what is measured, and how samples are shown to the model. Options of what is named here
    stand under its own name: `task.loss=focal task.focal.gamma=1`."""

    section: ClassVar[str] = "task"

    loss: str | None = None  # a name, `model`, or module:function; none: cross_entropy for classes, mse for numbers
    metrics: _Names | None = None  # names, or module:function; none: the accuracy, where the loss has one
    prepare: _Names | None = None  # what the model is given of samples: names, or module:function
    augment: _Names | None = None  # what changes samples in training: names, or module:function
    batchnorm: str | None = None  # what becomes of the running statistics of BatchNorm; none: the model has none
    buffers: Buffers | None = None  # what becomes of other buffers that change in training; none: nothing changes


def make_task(given: Section, usual: str) -> tuple[dict[str, Any], Section]:
    """The arguments of a task that a section says, and every option with the value it has; `usual` is the loss unless
    it says which."""
    tables = {name: dict(value) for name, value in given.items() if isinstance(value, dict)}
    for name in PARTS.keys() & tables:
        raise UserError(f"task.{name}: it is a name, not a table; options are in [task.NAME]")
    settings, every = call("task", TaskSettings, {n: v for n, v in given.items() if n not in tables}, {})
    every["loss"] = settings.loss or usual
    every |= {name: _names(name, every[name]) for name in PARTS if name not in _ONE}
    made: dict[str, list[Any]] = {option: [] for option in PARTS}
    for option, known in PARTS.items():
        for name in filter(None, [every[option]] if option in _ONE else every[option] or []):
            if name in every and name not in PARTS:
                raise UserError(f"task.{option}: {name} stands there twice")
            part, table = _made(option, name, known, tables)
            made[option].append(part)
            every |= {name: table} if table else {}
    for name in tables:
        place = next((option for option, known in PARTS.items() if name in known), None)
        known_as = f"write task.{place}={name}" if place else f"allowed: {', '.join(PARTS)}"
        raise UserError(f"task.{name}: options of something that [task] does not name; {known_as}")
    arguments = {"loss": made["loss"][0], "prepare": made["prepare"], "augment": made["augment"]}
    arguments |= {"batchnorm": next(iter(made["batchnorm"]), None), "buffers": settings.buffers}
    return arguments | {"metrics": None if every["metrics"] is None else made["metrics"]}, every


def _names(option: str, value: Any) -> list[str] | None:
    """`a,b`, or a list of names; for metrics nothing is another thing than none of them."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    names: list[str] | None = checked_value(f"task.{option}", value, list[str] | None)
    return names if names is not None or option == "metrics" else []


def _made(option: str, name: str, known: Mapping[str, type[Any]], tables: dict[str, Section]) -> tuple[Any, Section]:
    """Make what a name says, and the options it has."""
    if option == "loss" and name == "model":
        return name, {}
    if ":" in name:
        found = dotted(f"task.{option}", name)
        return (found() if inspect.isclass(found) else found), {}
    if name not in known:
        raise unknown(f"task.{option}", name, [*known, *(["model"] if option == "loss" else [])])
    return call(f"task.{name}", known[name], tables.pop(name, {}), {})


def as_before(complete: Section) -> Section:
    """The complete settings as they were written when a loss was an option of [model], where they say no more: a
    configuration keeps its fingerprint."""
    task = dict(complete.get("task") or {})
    loss = task.pop("loss", None)
    if not isinstance(loss, str):
        return complete
    table = task.pop(loss, {}) if loss in LOSSES else {}
    plain = not table or table == check("task", LOSSES[loss], {}, set())[1]
    if not plain or any(task.values()) or task.get("metrics") is not None:
        return complete
    kept = {section: options for section, options in complete.items() if section != "task"}
    return kept | {"model": complete.get("model", {}) | {"loss": loss}}
