"""Models that are not torch: named arrays, and a function that predicts with them.

Of fixed shapes (`ArrayTask`) they are a model like any other: one vector, which clients change and the server averages.
Of an ensemble (`EnsembleTask`) members are added and none is ever averaged: the vector has room for so many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from turnout.core.allowed import Count
from turnout.core.errors import UserError, reason
from turnout.core.imports import name_of
from turnout.core.threads import one_thread
from turnout.task.losses import SampleFunction
from turnout.task.metrics import Given
from turnout.task.task import Task

Arrays = dict[str, NDArray[Any]]
Predict = Callable[[Arrays, Any], ArrayLike]  # (arrays, inputs [B, ...]) -> outputs [B, ...]
_THERE = "there"  # of an ensemble: 1 for every member that has been added


def numpy_of(tree: Any) -> Any:
    """Make NumPy arrays of tensors, of the same numbers in memory where that can be."""
    return tree_map(lambda value: value.detach().cpu().numpy() if isinstance(value, Tensor) else value, tree)


def _array_of(what: str, value: Any) -> NDArray[Any]:
    """Make an array of what is given for one; lists of different lengths are none."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{what}, which is no array: {reason(error)}") from error


def checked(what: str, arrays: Any, wanted: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Check that these are arrays of finite numbers with those names and shapes."""
    if not isinstance(arrays, Mapping) or arrays.keys() != wanted.keys():
        given = f"{', '.join(map(str, arrays)) or 'none'}" if isinstance(arrays, Mapping) else type(arrays).__name__
        raise UserError(f"{what} {given} in the place of a dict of the arrays {', '.join(wanted)}")
    found = {}
    for name, shape in wanted.items():
        array = _array_of(f"{what} {name!r}", arrays[name])
        if array.dtype.kind not in "fiub":
            raise UserError(f"{what} {name!r} of {array.dtype}; it must hold real numbers")
        if array.shape != shape:
            raise UserError(f"{what} {name!r} of shape {array.shape}; it must have shape {shape}")
        if not np.isfinite(array).all():
            raise UserError(f"{what} {name!r} with NaN or infinity; its numbers must be finite")
        found[name] = array
    return found


def difference(what: str, given: Arrays, returned: Any) -> NDArray[np.float64]:
    """Compute `[P]` what arrays that a client has returned differ by from those it was given."""
    found = checked(what, returned, {name: array.shape for name, array in given.items()})
    return np.concatenate([(found[name].astype(np.float64) - given[name]).reshape(-1) for name in given])


class _Predicting(nn.Module):
    """A module whose parameters are the arrays, and whose forward pass is the function."""

    def __init__(self, arrays: Arrays, predict: Predict, there: str = "") -> None:
        super().__init__()
        self.predict, self._marked_by = predict, there  # of an ensemble: the array that says which members there are
        for name, array in arrays.items():
            try:
                self.register_parameter(name, nn.Parameter(torch.tensor(array, dtype=torch.float64)))
            except (KeyError, TypeError) as error:
                raise UserError(f"task.initial: an array cannot be called {name!r}; choose another name") from error

    def arrays(self, named: Mapping[str, Tensor]) -> Arrays:
        """Make the arrays that functions are given, their own, of parameters by name."""
        found = {name: np.array(numpy_of(value)) for name, value in named.items()}
        if not self._marked_by:
            return found
        there = found.pop(self._marked_by) > 0.5
        return {name: array[there] for name, array in found.items()}

    def forward(self, inputs: Any) -> Tensor:
        """Predict, in one thread: the same bits everywhere."""
        named, name = dict(self.named_parameters()), name_of(self.predict)
        like = next(iter(named.values()))
        try:
            if like.requires_grad:
                raise RuntimeError("it has no gradient")
            arrays, given = self.arrays(named), numpy_of(inputs)
        except RuntimeError as error:  # of tensors that are not numbers but traced
            raise UserError(
                f"task.predict: {name} is a Python function, of which nobody knows a gradient; let clients train by a "
                "turnout.PythonWork, in a method that needs no gradients of its own"
            ) from error
        try:
            with one_thread("openmp", "blas"):
                outputs = np.asarray(self.predict(arrays, given))
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"task.predict: {name} failed: {type(error).__name__}: {reason(error)}") from error
        if outputs.dtype.kind not in "fiub":
            raise UserError(f"task.predict: {name} returned {outputs.dtype}; it must return an array of numbers")
        tensor = torch.tensor(outputs, device=like.device)
        return tensor.to(like.dtype) if tensor.is_floating_point() else tensor


class ArrayTask(Task):
    """A model of named arrays that a Python function predicts with; clients train by a `PythonWork`.

    >>> initial = {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}
    >>> task = ArrayTask(initial, lambda arrays, inputs: inputs @ arrays["coef"].T + arrays["intercept"])

    `initial` are the arrays that training begins with. `predict(arrays, inputs [B, ...]) -> outputs [B, ...]` is given
    NumPy arrays in the run's precision, arrays and samples alike (`Plan(precision="float64")`). `loss` and `metrics`
    are those of `Task`: of tensors, one value a sample.
    """

    has_gradients = False
    marks: ClassVar[str] = ""  # the array that says which members there are

    def __init__(
        self,
        initial: Mapping[str, ArrayLike],
        predict: Predict,
        loss: str | SampleFunction = "cross_entropy",
        metrics: Given = None,
    ) -> None:
        arrays = {name: _array_of(f"task.initial: there is {name!r}", value) for name, value in initial.items()}
        for name, array in arrays.items():
            if array.dtype.kind != "f":
                raise UserError(f"task.initial: {name!r} is of {array.dtype}; give floating-point numbers")
        arrays = checked("task.initial: there is", arrays, {name: array.shape for name, array in arrays.items()})
        self.predict = predict
        super().__init__(_Predicting(arrays, predict, self.marks), loss, metrics)

    def examine(self, inputs: Tensor, targets: Tensor) -> int:
        total = super().examine(inputs, targets)
        self.alone = f"the model is a Python function, {name_of(self.predict)}"
        return total

    def arrays(self, params: Tensor) -> Arrays:
        """Make arrays of a model, such as `result.model`, as functions are given them (of an ensemble: its members)."""
        return cast(_Predicting, self.module).arrays(self.layers(params))


class EnsembleTask(ArrayTask):
    """A model of members that are added and never averaged, such as boosted trees.

    >>> task = EnsembleTask({"trees": (31, 6)}, predict, capacity=500, loss="mse")

    `member` are the shapes of the arrays of one member. Functions are given `[m, *shape]` of each: the members there
    are, in the order in which the jobs that made them began; `predict` must know what none of them means. A job adds up
    to `a_job` members: its `PythonWork` returns `[added, *shape]` of each array, the new ones only. Every update that
    counts counts whole: bagging with any sampler, and boosting in turn with the sampler `cyclic`. There is room for
    `capacity` members, `a_job` for each job that begins, whatever becomes of it.
    """

    marks: ClassVar[str] = _THERE

    def __init__(
        self,
        member: Mapping[str, tuple[int, ...]],
        predict: Predict,
        capacity: Count,
        a_job: Count = 1,
        loss: str | SampleFunction = "cross_entropy",
        metrics: Given = None,
    ) -> None:
        if _THERE in member:
            raise UserError(f"task.member: an array cannot be called {_THERE!r}; choose another name")
        self.member, self.capacity, self.a_job = {name: tuple(shape) for name, shape in member.items()}, capacity, a_job
        rooms = {name: np.zeros((capacity, *shape)) for name, shape in self.member.items()}
        super().__init__({_THERE: np.zeros(capacity), **rooms}, predict, loss, metrics)

    @property
    def member_numbers(self) -> int:
        """Count the numbers of one member on the wire."""
        return self.size // self.capacity

    def members(self, params: Tensor) -> int:
        """Count the members of a model `[P]`."""
        return int((self.layers(params)[_THERE] > 0.5).sum())

    def adds_only(self, change: Tensor, place: int) -> bool:
        """Tell whether a difference `[P]` does nothing but to add members where that job may."""
        rest = change.clone()
        rooms = self.layers(rest)  # views of it
        there = rooms[_THERE][place : place + self.a_job].clone()
        for room in rooms.values():
            room[place : place + self.a_job] = 0
        return not rest.any() and bool(((there == 0) | (there == 1)).all())

    def added(self, what: str, returned: Any, place: int) -> NDArray[np.float64]:
        """Make a difference `[P]`: the members that a client has returned where its job may add them."""
        wanted, added = {name: (0, *shape) for name, shape in self.member.items()}, 0
        if isinstance(returned, Mapping) and returned.keys() == wanted.keys():
            first = next(iter(wanted))
            added = len(np.atleast_1d(_array_of(f"{what} {first!r}", returned[first])))
        if added > self.a_job:
            raise UserError(f"{what} {added} members, and a job adds {self.a_job}; raise EnsembleTask(a_job=...)")
        found = checked(what, returned, {name: (added, *shape) for name, shape in self.member.items()})
        found[_THERE] = np.ones(added)
        vector = np.zeros(self.size)
        rooms = numpy_of(self.layers(torch.from_numpy(vector)))  # views of it
        for name, array in found.items():
            rooms[name][place : place + added] = array
        return vector
