"""A run that begins with the model of another: a warm start."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.record.run_folder import MANIFEST, examine
from turnout.task.task import Task

KEPT = "start.safetensors"  # in a run's folder: what it began with
_MODEL = "model.safetensors"  # what a finished run leaves


def started(task: Task, source: str, folder: Path | None) -> tuple[Task, str]:
    """Make the same task, whose training begins with the model of `source`, a run's folder or a file of tensors; and
    name that model. A run that goes on in its `folder` begins with the one it has kept there."""
    kept = None if folder is None else folder / KEPT
    state = _read(source, kept if kept is not None and kept.exists() else _found(source))
    for name, shape in zip(task.layout.names, task.layout.shapes, strict=True):
        if name not in state:
            raise UserError(f"run.start: {source} has no {name}, which this model has; give the model that it is of")
        if state[name].shape != shape:
            there, here = list(state[name].shape), list(shape)
            raise UserError(f"run.start: {name} is {there} in {source} and {here} in this model; give the one it is of")
        if not torch.isfinite(state[name]).all():
            raise UserError(f"run.start: {name} of {source} holds NaN or infinity; begin with another model")
    model = task.from_state_dict(state)
    return task.starting_from(model), hashlib.sha256(model.numpy().tobytes()).hexdigest()[:16]


def _found(source: str) -> Path:
    """Find the file of tensors."""
    path = Path(source)
    if not path.is_dir():
        return path
    if (path / MANIFEST).exists():
        examine("run.start", path, (_MODEL,))
    if not (path / _MODEL).exists():
        raise UserError(f"run.start: {source} has no {_MODEL}; give the folder of a finished run")
    return path / _MODEL


def _read(source: str, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(
            f"run.start: {source} cannot be read ({why}); give a run's folder, or a file of tensors"
        ) from error
    return state
