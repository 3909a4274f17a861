"""Which form of convolution is fastest for a model on this device: tried once, and remembered.

The choice changes the last bits of a result, so it is written into the run (`plan.json`) and kept for later ones in the
user's cache (`$XDG_CACHE_HOME/turnout` or `~/.cache/turnout`): the same machine goes on making the same choice.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from turnout.core import trees
from turnout.core.errors import UserError
from turnout.core.files import write_text
from turnout.core.ragged import Ragged
from turnout.core.trees import Tree
from turnout.engine.batches import Jobs, Size
from turnout.engine.chain import Chain
from turnout.engine.convolutions import FORMS, HAS_TRITON, OURS
from turnout.engine.graphs import GraphedSGD
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.task.task import Task

CLIENTS, BATCH, STEPS, REPEATS = 32, 10, 8, 3  # of a trial: enough for the device to be what takes the time


class Trial(NamedTuple):
    """A form of convolution, and what was timed to choose it."""

    form: str
    seconds: dict[str, float]  # of every form that was tried, now or for an earlier run; empty where none was


def convolution(task: Task, inputs: Tree, targets: Tree, plan: Plan) -> Trial:
    """Take the plan's form of convolution; where it says `auto`, choose one."""
    if plan.convolution != "auto":
        return Trial(plan.convolution, {})
    convolves = any(isinstance(layer, nn.Conv2d) for layer in task.module.modules())
    if (
        plan.device == "cpu"
        or plan.kernels == "general"
        or not convolves
        or not isinstance(inputs, Tensor)
        or Chain.of(task, "patches") is None
    ):
        return Trial("client_by_client", {})
    device = torch.cuda.get_device_name(plan.device)
    about = f"{task.module} {tuple(inputs.shape[1:])} {plan.precision} {device} torch {torch.__version__}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnout"
    file = cache / f"convolution-{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["convolution"] in FORMS:
            return Trial(str(known["convolution"]), dict(known.get("seconds", {})))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    left = (
        {"client_by_client"}
        | (set() if HAS_TRITON else OURS)
        | ({"implicit"} if plan.dtype == torch.float64 else set())
    )
    forms = [form for form in FORMS if form not in left]
    seconds = {form: _seconds(task, inputs, targets, replace(plan, convolution=form)) for form in forms}
    fastest = min(seconds, key=seconds.__getitem__)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({"about": about, "convolution": fastest, "seconds": seconds}, indent=1))
    except OSError:
        pass  # a machine without a place for it tries again next time
    return Trial(fastest, seconds)


def _seconds(task: Task, inputs: Tensor, targets: Tensor, plan: Plan) -> float:
    """Time the training of a small cohort: the shortest of some repetitions, in seconds."""
    chain, clients = Chain.of(task, plan.convolution), np.arange(CLIENTS)
    inputs, targets = trees.batch(inputs, targets, slice(CLIENTS * BATCH), task.initial)
    sgd = GraphedSGD(task, inputs, targets, plan, chain)
    samples = Ragged(np.arange(CLIENTS + 1) * BATCH, np.arange(CLIENTS * BATCH) % len(inputs))
    times = []
    work, size = LocalSGD(0.0, steps=STEPS, batch_size=BATCH), Size(np.full(CLIENTS, STEPS))
    jobs = Jobs(work, clients, task.initial[None], np.zeros(CLIENTS, int), samples, {}, {})
    for _ in range(1 + REPEATS):  # once to capture
        torch.cuda.synchronize()
        begin = time.perf_counter()
        try:
            sgd.train(jobs, size)
            torch.cuda.synchronize()
        except (RuntimeError, UserError):  # no memory for it, or no such kernel
            return math.inf
        times.append(time.perf_counter() - begin)
    return min(times[1:])
