"""Choose how local work is computed, and say why: the only place that does.

| path | how |
|---|---|
| `chain` | all clients together, plain SGD whose backward pass is written out (`chain.py`); convolutions on a CPU in blocks of clients on threads |
| `vmap` | all clients together, gradients of automatic differentiation |
| `streams` | on CUDA: ordinary passes of several clients side by side, replayed as graphs (`graphs.py`) |
| `threads` | one client after another, on threads of one-thread kernels |
| `ray` | any of these, in workers elsewhere (`ray_pool.py`) |

On CUDA the steps of plain SGD by `chain` and `vmap` are graphs that are replayed (`graphs.py`).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from turnout.core.errors import UserError
from turnout.engine import plain_sgd
from turnout.engine.chain import Chain, NoChainError
from turnout.engine.plan import Plan
from turnout.local.optimisers import SGD
from turnout.local.python_work import PythonWork
from turnout.local.sgd import LocalSGD
from turnout.task.task import Task

CHAIN, VMAP, STREAMS, THREADS, RAY = "chain", "vmap", "streams", "threads", "ray"

# A CPU runs a grouped convolution or a fallback recurrent kernel slower than one client after another.
_SLOW_ON_CPU = {"convolutions": (nn.Conv1d, nn.Conv2d, nn.Conv3d), "recurrent layers": (nn.RNNBase,)}
# Nor does it gain by computing clients together whose values fill its caches one by one: numbers a sample.
_MANY_BETWEEN = 1 << 16


class Path(NamedTuple):
    """One way to compute a local work, and why it is this one."""

    name: str  # chain, vmap, streams, threads or ray
    why: str  # a sentence without its full stop
    whole: bool = False  # whether a job is nothing but steps of plain SGD, taken by many clients together

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def select_path(
    task: Task, local: LocalSGD, own: Collection[str], plan: Plan, chain: Chain | str | None = None
) -> Path:
    """Choose the path of a local work of which the numbers named in `own` differ between clients. The task has been
    examined; `chain` is what `chain_or_reason` says of it, where that is known already."""
    if isinstance(local, PythonWork):
        if plan.engine == "ray":
            raise UserError(f"engine.engine: ray does not carry out a Python function ({local.called}); take auto")
        return Path(THREADS, f"the work is a Python function, {local.called}")
    if plan.engine == "ray":
        there = select_path(task, local, own, replace(plan, engine="auto"), chain)
        return Path(RAY, f"engine.engine is ray; its workers take {there}")
    apart = reason_apart(task, plan)
    chain = chain_or_reason(task, plan) if chain is None else chain
    plain, ends_plainly = plain_sgd.applies(task, local, own), type(local).finish is LocalSGD.finish
    against = "" if plain else _reason_not_plain(local, own)
    if not against and isinstance(chain, str):
        against = chain
    elif not against and apart and local.report:
        against = f"clients report {local.report} beside their updates"
    elif not against and apart and not ends_plainly:
        against = f"{type(local).__name__} ends a job in its own way"
    graphs = "; CUDA graphs replay it" if plain and plan.device != "cpu" and plan.graphs else ""
    if isinstance(chain, Chain) and not against:
        blocks = "; blocks of clients on threads" if plan.device == "cpu" and chain.convolves else ""
        return Path(CHAIN, f"plain SGD through {chain.words}{blocks}{graphs}", ends_plainly)
    if apart and plain and ends_plainly and not local.report and runs_on_streams(task, plan):
        return Path(STREAMS, apart + graphs, True)
    if apart:
        return Path(THREADS, apart if task.alone else f"{apart}; {against}")
    return Path(VMAP, f"{against}{graphs}", plain and ends_plainly)


def reason_apart(task: Task, plan: Plan) -> str:
    """Say why clients cannot or should not be computed together; "": they are."""
    return task.alone or _slow_together(task, plan)


def runs_on_streams(task: Task, plan: Plan) -> bool:
    """Say whether ordinary passes of several clients can be captured as a graph: on CUDA, where nothing stands against
    computing clients together but that they cannot be mapped, or that the plan is against it."""
    captured = plan.device != "cpu" and plan.graphs and not task.recomputes and "control flow" not in task.alone
    return captured and (task.unmapped or not task.alone)


def falls_back(task: Task, plan: Plan) -> bool:
    """Say whether clients are computed one after another though the plan did not want that."""
    return (
        bool(task.alone)
        and not runs_on_streams(task, plan)
        and (plan.engine == "ray" or not _slow_together(task, plan))
    )


def chain_or_reason(task: Task, plan: Plan) -> Chain | str:
    """Write out the backward pass of a task's model, or say why it cannot or should not be."""
    if plan.kernels == "general":
        return "engine.kernels is general"
    try:
        return Chain.made(task, plan.convolution)
    except NoChainError as error:
        return str(error)


def _slow_together(task: Task, plan: Plan) -> str:
    """Say why clients should be computed one after another, as far as the plan and the layers say."""
    if plan.engine == "vectorised":
        return ""
    layers = list(task.module.modules()) if plan.device == "cpu" else []
    slow = [word for word, kinds in _SLOW_ON_CPU.items() if any(isinstance(layer, kinds) for layer in layers)]
    if slow:
        return f"the model has {' and '.join(slow)} and the device is a CPU"
    if layers and task.between >= _MANY_BETWEEN:
        return f"layers give {task.between:,} numbers a sample, and those of one client fill the caches of a CPU"
    return "engine.engine is sequential" if plan.engine == "sequential" else ""


def _reason_not_plain(local: LocalSGD, own: Collection[str]) -> str:
    """Say what makes a local work more than plain SGD."""
    if local.active:
        kinds = ", ".join(type(modifier).__name__ for modifier in local.active)
        return f"local.modifiers change the steps of plain SGD ({kinds})"
    if type(local.optimiser) is not SGD:
        return f"local.optimiser is {local.optimiser}, which takes no steps of plain SGD"
    if local.paces:
        return f"local.schedules change the learning rate in a job ({type(local.paces[0]).__name__})"
    for name in ("momentum", "weight_decay", "clip_norm"):
        if getattr(local, name) or name in own:
            return f"local.{name} changes the steps of plain SGD"
    return f"{type(local).__name__} is more than plain SGD"
