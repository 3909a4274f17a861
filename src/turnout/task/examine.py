"""What a task does beyond mapping each sample to its values: found out once, on a few samples, before training.

In training mode and in evaluation mode, from the initial model slightly moved:

- a pass gives the same outputs when it is repeated;
- neither the model nor a measure draws from a global generator: torch's, NumPy's or Python's;
- no pass changes a buffer, or a parameter that is not trained;
- it is noted which measures look at the other samples of their batch, and whether clients can be computed together.

What a model does only with other samples, or only later, is not seen.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from turnout.core.errors import UserError

if TYPE_CHECKING:
    from turnout.task.task import Task

Measure = Callable[[Tensor, Tensor], Tensor]

PASSED = 4  # samples that the model is given
MEASURED = 64  # samples, spread over all, whose targets the measures are given
CLOSE = 1e-3, 1e-5  # values that differ by at most these shares of themselves and of the largest are the same
ROUGHLY = 5e-2, 5e-2  # where products may be rounded to few bits
_INSTEAD = "use nn.Dropout layers, set the dropout of attention and of functions to 0, and draw nothing else there"
EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


class Findings(NamedTuple):
    """How a task's measures are computed."""

    measures: dict[str, Measure]  # each gives one value a sample
    coupled: frozenset[str]  # those whose value of a sample depends on the others of its batch
    alone: str  # why clients are computed one after another; "": they need not be


@torch.no_grad()
def examine(task: Task, inputs: Tensor, targets: Tensor) -> Findings:
    """Examine a task on its samples `[n, ...]`, or refuse it."""
    with _put_back(task.module):
        return _examine(task, inputs, targets)


@contextmanager
def _put_back(module: nn.Module) -> Iterator[None]:
    """Leave a module with its own tensors: `functional_call` leaves its last ones in layers that come twice."""
    own = [(layer, dict(layer._parameters), dict(layer._buffers)) for layer in module.modules()]
    try:
        yield
    finally:
        for layer, parameters, buffers in own:
            layer._parameters.update(parameters)
            layer._buffers.update(buffers)


def _examine(task: Task, inputs: Tensor, targets: Tensor) -> Findings:
    rows, device = _telling(targets), inputs.device
    few = rows[torch.arange(PASSED, device=device) * len(rows) // PASSED]
    x, params = inputs[few], task.initial + 0.01 * torch.arange(task.size, device=device).to(task.initial).cos()
    close, couples = CLOSE if device.type == "cpu" and not task.bfloat16 else ROUGHLY, ""
    for mode, key in (("training", torch.ones((), dtype=torch.int64, device=device)), ("evaluation", None)):
        with draws_nothing(f"model: its forward pass in {mode} mode", device), _changes_nothing(task):
            once, again, fewer = (_passed(task, params, part, key) for part in (x, x, x[:2]))
        if _differ(once, again, close):
            raise UserError(
                f"model: the same samples give other outputs when they are passed again in {mode} mode; "
                "a pass must depend on its inputs and the parameters alone"
            )
        if _differ(once[:2], fewer, close):
            couples = "the model looks at the other samples of a batch"
    if len(once) == PASSED:
        outputs, seen = once[torch.arange(len(rows), device=device) % PASSED], targets[rows]
    else:
        outputs, seen, couples = once, targets[few], "the model's outputs have no row for each sample"
    measures, coupled = dict[str, Measure](), set[str]()
    for name, measure in {"loss": task.loss, **task.metrics}.items():
        option = "task.loss" if name == "loss" else f"task.metrics: {name}"
        with draws_nothing(f"{option}: it", device):
            measures[name], depends = _by_sample(option, measure, outputs, seen)
        if depends or couples:
            coupled.add(name)
    if "loss" in coupled:
        couples = couples or "the loss looks at the other samples of a batch"
    why = couples or _cannot_map(task, measures["loss"], params, x, targets[few])
    return Findings(measures, frozenset(coupled), why)


def _telling(targets: Tensor) -> Tensor:
    """At least two rows, spread over all samples, and those of the smallest and the largest of each target: a rare
    event is among them."""
    count = len(targets)
    spread = torch.arange(min(count, MEASURED), device=targets.device) * count // min(count, MEASURED)
    flat = targets.reshape(count, -1).to(torch.int8 if targets.dtype == torch.bool else targets.dtype)
    ends = [flat.argmin(0), flat.argmax(0)] if flat.shape[1] <= MEASURED else []
    rows: Tensor = torch.cat([spread, *ends]).unique()  # type: ignore[no-untyped-call]
    return rows if len(rows) > 1 else rows.repeat(2)


def largest(rows: Tensor) -> Tensor:
    """`[1, ...]` one row: of tokens or classes the one with the largest, which a model may not know."""
    place = 0 if rows.is_floating_point() else int(rows.reshape(len(rows), -1).amax(1).argmax())
    return rows[place : place + 1]


def _passed(task: Task, params: Tensor, x: Tensor, key: Tensor | None) -> Tensor:
    try:
        return task.outputs(params, x, key)
    except UserError:
        raise
    except Exception as error:
        mode, shape = "evaluation" if key is None else "training", tuple(x.shape)
        raise UserError(f"model: it cannot process a batch of shape {shape} in {mode} mode: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The first sentence of what an exception says."""
    return (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]


def _differ(one: Tensor, other: Tensor, close: tuple[float, float] = CLOSE) -> bool:
    one, other = one.double(), other.double()
    within = close[1] * float(one.nan_to_num(0, 0, 0).abs().max()) if one.numel() else 0.0
    return one.shape != other.shape or not torch.allclose(one, other, rtol=close[0], atol=within, equal_nan=True)


# -- what is refused --------------------------------------------------------------------------------------------


@contextmanager
def draws_nothing(what: str, device: torch.device, instead: str = _INSTEAD) -> Iterator[None]:
    """Refuse what draws from a global generator, and say what to do; all of them are left as they were."""
    before = _generators(device)
    try:
        yield
        now = _generators(device)
    finally:
        torch.set_rng_state(before["torch"])
        np.random.set_state(before["NumPy"])
        random.setstate(before["Python"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(before["CUDA"], device)
    for name, state in before.items():
        if not _same(state, now[name]):
            raise UserError(f"{what} draws from {name}'s generator, which cannot be replayed; {instead}")


def _generators(device: torch.device) -> dict[str, Any]:
    states = {"torch": torch.get_rng_state(), "NumPy": np.random.get_state(), "Python": random.getstate()}
    return states | ({"CUDA": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return bool(one.equal(other))
    numbers = [state[1].tobytes() if isinstance(state[1], np.ndarray) else state[1] for state in (one, other)]
    return numbers[0] == numbers[1] and bool(one[2:] == other[2:])


@contextmanager
def _changes_nothing(task: Task) -> Iterator[None]:
    """Refuse a model that changes what it holds beside the trained parameters."""
    before = {name: (held, held._version) for name, held in _held(task).items()}
    values = {name: buffer.clone() for name, buffer in task.module.named_buffers()}
    yield
    for name, held in _held(task).items():
        known, version = before.get(name, (None, 0))
        if held is not known or held._version != version or not _same(held, values.get(name, held)):
            raise UserError(
                f"model: {name} changes in a forward pass, and only trained parameters are averaged over clients; "
                "use layers that keep no statistics (track_running_stats=False)"
            )


def _held(task: Task) -> dict[str, Tensor]:
    """Parameters that are not trained and buffers, but for what a pass is given."""
    held: dict[str, Tensor] = dict(task.module.named_parameters()) | dict(task.module.named_buffers())
    return {name: value for name, value in held.items() if name not in task.given}


# -- what is noted ----------------------------------------------------------------------------------------------


def _by_sample(option: str, measure: Measure, outputs: Tensor, targets: Tensor) -> tuple[Measure, bool]:
    """A measure that gives one value a sample, and whether that depends on the other samples. One that gives a number
    for a whole batch is asked for each sample alone, where that number is the mean of those; else all have it."""
    try:
        values = measure(outputs, targets)
    except Exception as error:
        compared = f"outputs of shape {tuple(outputs.shape[1:])} with targets of shape {tuple(targets.shape[1:])}"
        raise UserError(f"{option}: it cannot compare {compared}: {reason(error)}") from error
    if values.ndim and values.shape != targets.shape[:1]:
        raise UserError(f"{option}: it must return one value a sample, not shape {tuple(values.shape)}")
    try:
        parts = [measure(outputs[part], targets[part]) for part in (EVEN, ODD)]
        if values.ndim:
            padded = measure(torch.cat([outputs, outputs[:1]]), torch.cat([targets, targets[:1]]))
            alike = [(values[EVEN], parts[0]), (values[ODD], parts[1]), (values, padded[:-1])]
        else:
            single = _of_each(measure, outputs, targets)
            alike = [(values, single.mean()), (parts[0], single[EVEN].mean())]
        depends = any(_differ(*pair) for pair in alike)
    except Exception:  # it cannot do with fewer samples
        depends = True
    if values.ndim:
        return measure, depends
    return partial(_of_all if depends else _of_each, measure), depends


def _of_each(measure: Measure, outputs: Tensor, targets: Tensor) -> Tensor:
    """`[B]` of every sample as a batch of its own."""
    values: Tensor = vmap(lambda output, target: measure(output[None], target[None]))(outputs, targets)
    return values


def _of_all(measure: Measure, outputs: Tensor, targets: Tensor) -> Tensor:
    """`[B]` the number of the whole batch, for every sample."""
    return measure(outputs, targets).expand(len(targets))


def _cannot_map(task: Task, loss: Measure, params: Tensor, inputs: Tensor, targets: Tensor) -> str:
    """Why two clients cannot be computed together; "": they can."""
    keys = torch.arange(2, device=inputs.device)
    x, y = (part.view(2, -1, *part.shape[1:]) for part in (inputs, targets))

    def objective(own: Tensor, x: Tensor, y: Tensor, key: Tensor) -> Tensor:
        return loss(task.outputs(own, x, key), y).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it takes a slower way
        try:
            vmap(objective)(params.expand(2, -1).contiguous(), x, y, keys)
        except Exception as error:
            return f"the model or the loss cannot be mapped over clients ({reason(error)})"
    return ""
