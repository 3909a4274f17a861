"""Optimisers of local work: what a client does with a gradient.

An optimiser is pure functions for *one* client. What it remembers is a tensor, or a dict of tensors; a job begins with

    state = start(work, params)

unless the client has kept it (`local.optimiser_state`), and `LocalSGD.descend` calls for every gradient, clipped and
with its decay,

    params, state = step(work, gradient, state, params)

`work` has the numbers that all share: lr, momentum, nesterov, weight_decay. A function of one's own will do, too: see
`Function`. Each of these steps as that of `torch.optim` does.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from turnout.core.allowed import Finite, Range
from turnout.core.errors import UserError, unknown
from turnout.core.spelling import Spelt

if TYPE_CHECKING:
    from turnout.local.sgd import LocalSGD

State = Any  # a tensor, or tensors in dicts, lists or tuples: numbers `[]`, or one for each parameter `[P]`
Update = Callable[[Tensor, State, Tensor], tuple[Tensor, State]]
Beta = Annotated[float, Range(least=0, below=1)]


def used(number: float | Tensor) -> bool:
    """Say whether an option matters: a client's own number (a tensor) always may."""
    return isinstance(number, Tensor) or number != 0


def moved(work: LocalSGD, params: Tensor, step: Tensor) -> Tensor:
    """Go back along a step, as far as the learning rate says."""
    lr = cast(float | Tensor, work.lr)  # a client's own: a tensor
    return params - lr * step if isinstance(lr, Tensor) else params.add(step, alpha=-lr)


@dataclass(frozen=True)
class Optimiser(Spelt):
    """Remember nothing and know no step: the base class."""

    decoupled: ClassVar[bool] = False  # whether weight decay is up to `step`; else it is in the gradient

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | list | tuple):
                raise UserError(f"{self.section}.{name}: {value} must be one number")

    def __str__(self) -> str:
        """Tell what a configuration calls it."""
        return next((name for name, kind in OPTIMISERS.items() if kind is type(self)), type(self).__name__)

    def check(self, work: LocalSGD) -> None:
        """Raise where that work cannot have the optimiser."""
        for name in ("momentum", "nesterov"):
            if np.any(getattr(work, name)):
                raise UserError(
                    f"local.{name}: it is that of sgd, and local.optimiser is {self}; leave one of them out"
                )

    def start(self, work: LocalSGD, params: Tensor) -> State:
        """Make what is remembered before the first step."""
        return params.new_zeros(())

    def step(self, work: LocalSGD, gradient: Tensor, state: State, params: Tensor) -> tuple[Tensor, State]:
        """Take one step: parameters `[P]`, and what is remembered."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Optimiser):
    """Step along the gradient, or along a speed (`local.momentum`).

    That is `v <- momentum v + g`; with `local.nesterov` the step is `g + momentum v`."""

    def check(self, work: LocalSGD) -> None:
        still = not np.any(work.momentum)
        if work.nesterov and still:
            raise UserError("local.nesterov: it looks ahead along a speed; give local.momentum, too")
        if work.optimiser_state == "kept" and still:
            raise UserError("local.optimiser_state: sgd without local.momentum has no state to be kept; leave it out")

    def start(self, work: LocalSGD, params: Tensor) -> Tensor:
        return torch.zeros_like(params) if used(work.momentum) else params.new_zeros(())

    def step(self, work: LocalSGD, gradient: Tensor, state: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
        if used(work.momentum):
            state = state.mul(work.momentum).add(gradient)
            gradient = gradient + work.momentum * state if work.nesterov else state
        return moved(work, params, gradient), state


@dataclass(frozen=True)
class Adam(Optimiser):
    """Step along the mean gradient over the root of the mean squared one.

    It is `m / (sqrt(v) + eps)` with `m <- beta1 m + (1 - beta1) g`, `v <- beta2 v + (1 - beta2) g^2`, both corrected
    for having begun at 0.

    Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    section: ClassVar[str] = "local.adam"

    beta1: Beta = 0.9  # share that the mean of the gradients keeps
    beta2: Beta = 0.999  # share that the mean of the squared gradients keeps
    eps: Finite = 1e-8  # what keeps the denominator from 0

    def start(self, work: LocalSGD, params: Tensor) -> State:
        return {"steps": params.new_zeros(()), "mean": torch.zeros_like(params), "square": torch.zeros_like(params)}

    def step(self, work: LocalSGD, gradient: Tensor, state: State, params: Tensor) -> tuple[Tensor, State]:
        steps = state["steps"] + 1
        mean = state["mean"].lerp(gradient, 1 - self.beta1)
        square = state["square"].mul(self.beta2).add(gradient.square(), alpha=1 - self.beta2)
        root = square.sqrt() / _corrected(self.beta2, steps).sqrt()
        step = mean / _corrected(self.beta1, steps) / (root + self.eps)
        return moved(work, params, step), {"steps": steps, "mean": mean, "square": square}


@dataclass(frozen=True)
class AdamW(Adam):
    """Step as Adam, with a weight decay that is no part of the gradient.

    Before each step `theta <- theta - lr weight_decay theta` (`local.weight_decay`).

    Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    section: ClassVar[str] = "local.adamw"
    decoupled: ClassVar[bool] = True

    def step(self, work: LocalSGD, gradient: Tensor, state: State, params: Tensor) -> tuple[Tensor, State]:
        shrunk = params * (1 - work.lr * work.weight_decay) if used(work.weight_decay) else params
        return super().step(work, gradient, state, shrunk)


@dataclass(frozen=True)
class Adagrad(Optimiser):
    """Step along `g / (sqrt(v) + eps)` with `v <- v + g^2`.

    Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic optimization", JMLR 2011.
    """

    section: ClassVar[str] = "local.adagrad"

    eps: Finite = 1e-10  # what keeps the denominator from 0

    def start(self, work: LocalSGD, params: Tensor) -> State:
        return {"square": torch.zeros_like(params)}

    def step(self, work: LocalSGD, gradient: Tensor, state: State, params: Tensor) -> tuple[Tensor, State]:
        square = state["square"] + gradient.square()
        return moved(work, params, gradient / (square.sqrt() + self.eps)), {"square": square}


@dataclass(frozen=True)
class RMSprop(Optimiser):
    """Step along the gradient over the root of the mean squared one.

    It is `u <- momentum u + g / (sqrt(v) + eps)` with `v <- alpha v + (1 - alpha) g^2`; `centred`: less the square of
    the mean gradient.

    Tieleman, Hinton, lecture 6.5 of "Neural networks for machine learning", 2012; centred: Graves, "Generating
    sequences with recurrent neural networks", 2013.
    """

    section: ClassVar[str] = "local.rmsprop"

    alpha: Beta = 0.99  # share that the mean of the squared gradients keeps
    eps: Finite = 1e-8  # what keeps the denominator from 0
    momentum: Finite = 0.0  # share of its speed that a step keeps
    centred: bool = False  # whether the mean of the gradients is taken off before squares are averaged

    def start(self, work: LocalSGD, params: Tensor) -> State:
        names = ["square", *(["mean"] if self.centred else []), *(["speed"] if self.momentum else [])]
        return {name: torch.zeros_like(params) for name in names}

    def step(self, work: LocalSGD, gradient: Tensor, state: State, params: Tensor) -> tuple[Tensor, State]:
        square = state["square"].mul(self.alpha).add(gradient.square(), alpha=1 - self.alpha)
        kept, spread = {"square": square}, square
        if self.centred:
            kept["mean"] = state["mean"].lerp(gradient, 1 - self.alpha)
            spread = square - kept["mean"].square()
        step = gradient / (spread.sqrt() + self.eps)
        if self.momentum:
            kept["speed"] = step = state["speed"].mul(self.momentum).add(step)
        return moved(work, params, step), kept


@dataclass(frozen=True)
class Function(Optimiser):
    """Step along what a function says: `step, state = function(gradient, state, params)`, then `theta <- theta - lr
    step`. It is asked once with the state None, to see what it remembers; a job begins with zeros of that."""

    function: ClassVar[Any]  # of a class for each, in a `staticmethod`

    @property
    def own(self) -> Update:
        """Give the function."""
        return cast(Update, self.function)

    def __reduce__(self) -> tuple[Any, ...]:
        return of_function, (self.own,)

    def start(self, work: LocalSGD, params: Tensor) -> State:
        tree, shapes = _remembered(self.own, params.shape[-1])
        return tree_unflatten([params.new_zeros(shape) for shape in shapes], tree)

    def step(self, work: LocalSGD, gradient: Tensor, state: State, params: Tensor) -> tuple[Tensor, State]:
        step, after = self.own(gradient, state, params)
        return moved(work, params, step), _in_order(state, after)


_KINDS = WeakValueDictionary[int, type[Function]]()  # of functions by identity: as long as it is there, so are they


def name_of(function: Update) -> str:
    """Tell what a function, or something else that can be called, is called."""
    return str(getattr(function, "__name__", type(function).__name__))


def of_function(function: Update) -> Optimiser:
    """Make an optimiser of a function, called as that is: the same kind each time."""
    kind = _KINDS.get(id(function))
    if kind is None:
        own = {"function": staticmethod(function), "__module__": function.__module__}
        _KINDS[id(function)] = kind = type(name_of(function), (Function,), own)
    return kind()


@lru_cache(maxsize=64)
def _remembered(function: Update, size: int) -> tuple[TreeSpec, list[torch.Size]]:
    """Find out what a function remembers of so many parameters: the tree, and the shape of each tensor in it."""
    where = f"local.optimiser: {name_of(function)}"
    nothing, params = torch.zeros(size, dtype=torch.float64), torch.full((size,), 0.5, dtype=torch.float64)
    try:
        step, state = function(nothing, None, params)
        leaves, tree = tree_flatten(state)
        known = all(isinstance(leaf, Tensor) and leaf.shape in ((), (size,)) for leaf in leaves)
        again = function(nothing, tree_map(torch.zeros_like, state), params) if known else None
        alike = again is not None and _same((step, state), (again[0], _in_order(state, again[1])))
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        why = str(error).split("\n")[0][:120]
        raise UserError(
            f"{where} is to be a function of (gradient, state, params) that gives (step, state), and fails with the "
            f"state None ({why})"
        ) from error
    if again is None or not isinstance(step, Tensor) or step.shape != nothing.shape:
        raise UserError(f"{where} gives no step [{size}] and a state of tensors, each a number [] or [{size}]")
    if not alike:
        raise UserError(
            f"{where} begins with another state than zeros, which it would not have; derive a class from "
            "turnout.local.Optimiser, whose `start` makes it"
        )
    return tree, [leaf.shape for leaf in leaves]


def _in_order(before: State, after: State) -> State:
    """The same state with the keys of its dicts in the order of before."""
    return tree_map(lambda _, new: new, before, after)


def _same(one: State, other: State) -> bool:
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _corrected(beta: float, steps: Tensor) -> Tensor:
    """Compute 1 - beta^steps without losing digits where beta is close to 1."""
    return -torch.expm1(steps * (math.log(beta) if beta else -math.inf))


def chosen(given: Any) -> Optimiser:
    """Make an optimiser of what is given for one: itself, a name, or a function."""
    if isinstance(given, str):
        if given not in OPTIMISERS:
            raise unknown("local.optimiser", given, OPTIMISERS)
        return OPTIMISERS[given]()
    if inspect.isclass(given):
        raise UserError(f"local.optimiser: {given.__name__} is a class; write {given.__name__}()")
    if isinstance(given, Optimiser):
        return given
    if not callable(given) or isinstance(given, Mapping | Spelt):
        raise UserError(
            f"local.optimiser: {given!r} is none; write for example Adam(), or a function of (gradient, state, params)"
        )
    return of_function(given)


OPTIMISERS: dict[str, type[Optimiser]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
}
