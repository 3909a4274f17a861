"""What a task does beyond mapping each sample to its values: found out once, on a few samples, before training.

In training mode and in evaluation mode, from the initial model slightly moved:

- a pass gives the same outputs when it is repeated, draws of the same key among them;
- neither the model nor a measure draws from a global generator: torch's where no key can take its place
  (`turnout.task.draws`), NumPy's or Python's;
- no pass changes a buffer, or a parameter that is not trained;
- it is noted whether the model draws by functions, whether it is called again for its gradient (checkpointing), which
  parameters get none, which measures look at the other samples of their batch, and whether clients can be computed
  together: one gradient of two clients is tried.

What a model does only with other samples, or only later, is not seen.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from turnout.core import trees
from turnout.core.errors import UserError, reason, renamed
from turnout.core.trees import Tree
from turnout.task import losses, samples
from turnout.task.metrics import ClassAccuracy, LabelAccuracy, fitting
from turnout.task.sets import Sets, is_number
from turnout.task.trial import Trial

if TYPE_CHECKING:
    from turnout.task.task import Task

Measure = Callable[[Any, Tree], Tensor]

PASSED = 4  # samples that the model is given
MEASURED = 64  # samples, spread over all, whose targets the measures are given
CLOSE = 1e-3, 1e-5  # values that differ by at most these shares of themselves and of the largest are the same
ROUGHLY = 5e-2, 5e-2  # where products may be rounded to few bits
LARGE = 16.0  # times what outputs are
_INSTEAD = "draw there with functions of torch alone (dropout, torch.rand and the like), in training mode"
EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


class Findings(NamedTuple):
    """How a task's measures are computed."""

    measures: dict[str, Measure]  # each gives one value a sample
    sets: Sets  # those of a whole set
    coupled: frozenset[str]  # those whose value of a sample depends on the others of its batch
    alone: str  # why clients are computed one after another; "": they need not be
    draws: bool  # whether the model's functions draw in training
    recomputes: bool  # whether parts of it are called again while gradients are computed
    idle: frozenset[str] = frozenset()  # parameters that get no gradient
    unmapped: bool = False  # whether nothing stands against computing clients together but that they cannot be mapped


@torch.no_grad()
def examine(task: Task, inputs: Tree, targets: Tree) -> Findings:
    """Examine a task on its samples `[n, ...]`, or refuse it."""
    halved, task.bfloat16 = task.bfloat16, False  # which would look like differences
    try:
        with _put_back(task.module):
            return _examine(task, inputs, targets, halved)
    finally:
        task.bfloat16 = halved


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


def _examine(task: Task, inputs: Tree, targets: Tree, halved: bool) -> Findings:
    device = task.initial.device
    samples.check_aligned(task.augmenting, inputs, targets)
    rows = _telling(targets, device)
    few = rows[torch.arange(PASSED, device=device) * len(rows) // PASSED]
    x, y = trees.batch(inputs, targets, few, task.initial)
    params = task.initial + 0.01 * torch.arange(task.size, device=device).to(task.initial).cos()
    exact = device.type == "cpu" or task.initial.dtype == torch.float64
    close = CLOSE if exact else ROUGHLY
    outputs, couples, alone = _pass_twice(task, params, x, close)
    if all(leaf.ndim and len(leaf) == PASSED for leaf in _tensors_of(outputs)):
        repeated = torch.arange(len(rows), device=device) % PASSED
        outputs, seen = trees.at(outputs, repeated), trees.batch((), targets, rows, task.initial)[1]
    else:
        seen, couples = y, "the model's outputs have no row for each sample"
    losses.check_counted(task.loss, seen)
    measures, coupled = dict[str, Measure](), set[str]()
    metrics, functions = fitting(task.metrics, outputs, seen) if task.may_not_fit else task.metrics, {}
    for name, measure in {"loss": task.loss, **metrics}.items():
        option = "task.loss" if name == "loss" else f"task.metrics: {name}"
        with draws_nothing(f"{option}: it", device):
            if name != "loss" and _measures_sets(measure, outputs, seen):
                functions[name] = measure
                continue
            uneven = losses.divides_by_what_counts(measure, targets)
            measures[name], depends = _by_sample(option, measure, outputs, seen, uneven)
        if depends or couples:
            coupled.add(name)
    if "loss" in coupled:
        couples = couples or "the loss looks at the other samples of a batch"
    sets = replace(task.sets, functions={**task.sets.functions, **functions})
    if sets:
        importlib.import_module("sklearn.metrics")  # which itself draws something when it is imported
        with draws_nothing("task.metrics: those of a whole set", device):
            sets = sets.checked(outputs, seen)
    if not task.has_gradients:
        return Findings(measures, sets, frozenset(coupled), couples or alone, False, False)
    trial = Trial(task, measures["loss"], params, x, y, close)
    with draws_nothing("model: its gradient", device):
        recomputes, idle = trial.tried()
        together = couples or alone  # why a sample's gradient depends on the others of its batch
        alone = together or trial.cannot_map() or (trial.cannot_map_halved() if halved else "")
    unmapped = bool(alone) and not together
    return Findings(measures, sets, frozenset(coupled), alone, trial.draws(), recomputes, idle, unmapped)


def _pass_twice(task: Task, params: Tensor, x: Tree, close: tuple[float, float]) -> tuple[Any, str, str]:
    """Pass samples in both modes: what comes out, and why samples of a batch depend on each other, if they do: always,
    and in training alone."""
    couples = {"training": "", "evaluation": ""}
    for mode, key in (("training", torch.ones((), dtype=torch.int64, device=params.device)), ("evaluation", None)):
        with draws_nothing(f"model: its forward pass in {mode} mode", params.device), _changes_nothing(task):
            passes = [_passed(task, params, part, key) for part in (x, x, trees.at(x, slice(2)))]
        once, again, fewer = (_tensors_of(outputs) for outputs in passes)
        if _differ(once, again, close):
            raise UserError(
                f"model: the same samples give other outputs when they are passed again in {mode} mode; "
                "a pass must depend on its inputs and the parameters alone"
            )
        if all(leaf.ndim and len(leaf) == PASSED for leaf in once) and _differ([o[:2] for o in once], fewer, close):
            couples[mode] = "the model looks at the other samples of a batch"
    if task.tail is not None:
        norms = "BatchNorm normalises by the samples of a batch"
        couples["training"] = norms if task.tail.norms else "buffers of the model change in training"
    return passes[0], couples["evaluation"], couples["training"]


def _tensors_of(outputs: Any) -> list[Tensor]:
    """List what a model returns."""
    return trees.leaves(trees.known(outputs))


def _telling(targets: Tree, device: torch.device) -> Tensor:
    """At least two rows, spread over all samples, and those of the smallest and the largest of each target: a rare
    event is among them."""
    count = trees.rows(targets)
    chosen = [torch.arange(min(count, MEASURED), device=device) * count // min(count, MEASURED)]
    for leaf in trees.leaves(targets):
        flat = leaf.reshape(count, -1)
        if 0 < flat.shape[1] <= MEASURED:
            flat = flat.to(trees.comparable(leaf.dtype))
            chosen += [end.to(device) for end in (flat.argmin(0), flat.argmax(0))]
        elif (
            flat.shape[1] and leaf.dtype != torch.bool
        ):  # of many, the smallest and the largest of all: a target that is to be ignored
            smallest, biggest = trees.edges_of_rows(flat)
            chosen += [end.view(1).to(device) for end in (smallest.argmin(), biggest.argmax())]
    rows: Tensor = torch.cat(chosen).unique()  # type: ignore[no-untyped-call]
    return rows if len(rows) > 1 else rows.repeat(2)


@torch.no_grad()
def examine_test(task: Task, inputs: Tree, targets: Tree) -> None:
    """Refuse test samples that an examined task cannot be measured on: a class that its model does not know."""
    rows = _telling(targets, task.initial.device)
    x, y = trees.batch(inputs, targets, rows, task.initial)
    with renamed({"": "central test set: "}):
        outputs = _passed(task, task.initial, x, None)
        for name, measure in {"loss": task.loss, **task.metrics}.items():
            _measured("task.loss" if name == "loss" else f"task.metrics: {name}", measure, outputs, y)
        if task.sets:
            task.sets.checked(outputs, y)


def largest(samples: Tree) -> Tree:
    """`[1, ...]` one row: of tokens or classes the one with the largest, which a model may not know."""
    numbers = torch.bool, torch.uint8
    whole = [leaf for leaf in trees.leaves(samples) if not leaf.is_floating_point() and leaf.dtype not in numbers]
    first = whole[0] if whole else None
    place = 0 if first is None else int(trees.edges_of_rows(first)[1].argmax())
    return trees.at(samples, slice(place, place + 1))


def _passed(task: Task, params: Tensor, x: Tree, key: Tensor | None) -> Any:
    try:
        return task.outputs(params, x, key)
    except UserError:
        raise
    except Exception as error:
        mode, shape = "evaluation" if key is None else "training", trees.shapes_whole(x)
        why = task.why_not(error, x)
        raise UserError(f"model: it cannot process a batch of shape {shape} in {mode} mode: {why}") from error


def _differ(some: Sequence[Tensor], others: Sequence[Tensor], close: tuple[float, float] = CLOSE) -> bool:
    return len(some) != len(others) or any(
        _unlike(one.double(), other.double(), close)
        for one, other in zip(some, others, strict=True)
        if not one.is_complex()
    )


def _unlike(one: Tensor, other: Tensor, close: tuple[float, float]) -> bool:
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
                f"model: {name} changes in a forward pass; say with task.buffers whether such buffers are frozen "
                "(every pass begins with the first values), averaged over clients, or kept by each of them"
            )


def _held(task: Task) -> dict[str, Tensor]:
    """Parameters that are not trained and buffers, but for what a pass is given."""
    held: dict[str, Tensor] = dict(task.module.named_parameters()) | dict(task.module.named_buffers())
    return {name: value for name, value in held.items() if name not in task.given}


# -- what is noted ----------------------------------------------------------------------------------------------


def _by_sample(
    option: str, measure: Measure, outputs: Any, targets: Tree, uneven: bool = False
) -> tuple[Measure, bool]:
    """A measure that gives one value a sample, and whether that depends on the other samples. One that gives a number
    for a whole batch is asked for each sample alone, where that number is the mean of those; else, and where it is
    known to be `uneven`, all have it."""
    values = _measured(option, measure, outputs, targets)
    try:
        parts = [measure(trees.at(outputs, part), trees.at(targets, part)) for part in (EVEN, ODD)]
        if values.ndim:
            padded = measure(*(trees.join([tree, trees.at(tree, slice(1))]) for tree in (outputs, targets)))
            alike = [(values[EVEN], parts[0]), (values[ODD], parts[1]), (values, padded[:-1])]
        else:
            single = _of_each(measure, outputs, targets)
            alike = [(values, single.mean()), (parts[0], single[EVEN].mean()), *_wide(measure, outputs, targets)]
        depends = uneven or any(_differ([one], [other]) for one, other in alike)
    except Exception:  # it cannot do with fewer samples
        depends = True
    if values.ndim:
        return measure, depends
    return partial(_of_all if depends else _of_each, measure), depends


def _measures_sets(measure: Measure, outputs: Any, targets: Tree) -> bool:
    """Say whether a metric measures a whole set: it returns a number, and no tensor."""
    if isinstance(measure, (ClassAccuracy, LabelAccuracy)):
        return False
    try:
        return is_number(measure(outputs, targets))
    except Exception:  # what is wrong with it is said where it is asked again
        return False


def _wide(measure: Measure, outputs: Any, targets: Tree) -> list[tuple[Tensor, Tensor]]:
    """A number for a whole batch and the mean of those of its samples, where outputs are so large that losses differ
    much: whether samples count the same is hard to see where all have nearly the same loss."""
    try:
        large = trees.map_leaves(lambda leaf: leaf * LARGE if leaf.is_floating_point() else leaf, outputs)
        return [(measure(large, targets), _of_each(measure, large, targets).mean())]
    except Exception:  # it is for outputs of a range
        return []


def _measured(option: str, measure: Measure, outputs: Any, targets: Tree) -> Tensor:
    try:
        values = measure(outputs, targets)
    except UserError:
        raise
    except Exception as error:
        given = trees.shapes(outputs) if _tensors_of(outputs) else type(outputs).__name__
        compared = f"outputs of shape {given} with targets of shape {trees.shapes(targets)}"
        raise UserError(f"{option}: it cannot compare {compared}: {reason(error)}") from error
    if not isinstance(values, Tensor) or (values.ndim and values.shape != (trees.rows(targets),)):
        given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        whole = "" if option == "task.loss" else "; or a number, of all samples together"
        raise UserError(f"{option}: it must return one value a sample, not shape {given}{whole}")
    return values


def _of_each(measure: Measure, outputs: Any, targets: Tree) -> Tensor:
    """`[B]` of every sample as a batch of its own; what in the outputs is no tensor is the same for all."""
    rows = trees.leaves(outputs)

    def one(row: list[Tensor], target: Tree) -> Tensor:
        place = iter(row)
        output = trees.map_leaves(lambda _: next(place)[None], outputs)
        return measure(output, trees.at(target, None))

    values: Tensor = vmap(one)(rows, targets)
    return values


def _of_all(measure: Measure, outputs: Any, targets: Tree) -> Tensor:
    """`[B]` the number of the whole batch, for every sample."""
    return measure(outputs, targets).expand(trees.rows(targets))
