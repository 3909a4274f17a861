"""How a module is called: with tensors in the places of its parameters, with samples that are trees, and what of its
answer counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from turnout.core import trees
from turnout.core.errors import UserError
from turnout.core.trees import Tree
from turnout.task.draws import KeyedDraws

ANSWERS = "logits", "out", "output", "prediction"  # names under which models give what a loss compares


class Places:
    """Where the tensors that a pass is given lie in a module, by name: under several names where layers share them."""

    def __init__(self, module: nn.Module, parameters: Iterable[str], buffers: Iterable[str]) -> None:
        self.module = module
        shared = {id(module.get_parameter(name)): name for name in parameters}
        self._places: list[tuple[dict[str, Any], str, str]] = []
        for layer in module.modules():
            for own, parameter in layer._parameters.items():
                if id(parameter) in shared:
                    self._places.append((layer._parameters, own, shared[id(parameter)]))
        for name in buffers:
            holder, _, own = name.rpartition(".")
            self._places.append((module.get_submodule(holder)._buffers, own, name))

    @contextmanager
    def filled(self, named: Mapping[str, Tensor]) -> Iterator[None]:
        """Put tensors in their places; the module has its own again afterwards."""
        before = [place[own] for place, own, _ in self._places]
        try:
            for place, own, name in self._places:
                if name in named:
                    place[own] = named[name]
            yield
        finally:
            for (place, own, _), tensor in zip(self._places, before, strict=True):
                place[own] = tensor


class Passes:
    """Passes of samples through a module: what it is given, and what it draws.

    A model with gradient checkpointing is called again, part by part, while its gradient is computed. Within `held` a
    pass therefore goes on until then, and a part that is called again draws what it drew.
    """

    def __init__(self, places: Places) -> None:
        self.module, self._places = places.module, places
        self._open: ExitStack | None = None
        self._begun = False

    @contextmanager
    def one(self, named: Mapping[str, Tensor], draws: KeyedDraws | None) -> Iterator[None]:
        """Pass samples: with these tensors, and by these draws if there are any."""
        if self._open is None:
            with self._places.filled(named), draws or nullcontext():
                yield
            return
        if self._begun:
            raise UserError(
                "model: gradient checkpointing calls parts of it again, which works for one pass a gradient, and this "
                "local work takes several; switch checkpointing off"
            )
        self._begun = True
        self._open.enter_context(self._places.filled(named))
        if draws is not None:
            self._open.enter_context(_replaying(self.module, draws))
            self._open.enter_context(draws)
        yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the next pass go on until the end."""
        with ExitStack() as stack:
            self._open, self._begun = stack, False
            try:
                yield
            finally:
                self._open = None


def in_backward() -> bool:
    """Say whether a gradient is being computed on this thread."""
    return torch._C._current_graph_task_id() != -1


@contextmanager
def _replaying(module: nn.Module, draws: KeyedDraws) -> Iterator[None]:
    """Let a layer that is called again in the backward pass go back to the draw at which it began: the last call first,
    as gradients are computed."""
    began: dict[nn.Module, list[int]] = {}
    depth = 0

    def enter(layer: nn.Module, _inputs: object) -> None:
        nonlocal depth
        if not in_backward():
            began.setdefault(layer, []).append(draws.count)
        elif depth == 0:
            draws.count = began[layer].pop()
        depth += in_backward()

    def leave(_layer: nn.Module, _inputs: object, _outputs: object) -> None:
        nonlocal depth
        depth -= in_backward()

    with ExitStack() as hooks:
        for layer in module.modules():
            for handle in (
                layer.register_forward_pre_hook(enter),
                layer.register_forward_hook(leave, always_call=True),
            ):
                hooks.callback(handle.remove)
        yield


def invoke(module: nn.Module, inputs: Tree) -> Any:
    """Call a module on samples: a dictionary's entries are given by name where `forward` has these names, the parts of
    a tuple one after another where it takes so many; else the tree is the one argument."""
    if isinstance(inputs, Mapping):
        return module(**inputs) if _takes(module, (), dict(inputs)) else module(inputs)
    if type(inputs) in (tuple, list):
        return module(*inputs) if _takes(module, tuple(inputs), {}) else module(inputs)
    return module(inputs)


def _takes(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Say whether a module's `forward` can be called so. One that takes anything is taken at its word."""
    if not all(isinstance(name, str) for name in named):
        return False
    try:
        inspect.signature(module.forward).bind(*args, **named)
    except TypeError:
        return False
    except ValueError:  # it says nothing of its arguments
        return True
    return True


def hint(module: nn.Module, inputs: Tree) -> str:
    """Say why a dictionary was not given by names, where a model cannot process it."""
    if not isinstance(inputs, Mapping):
        return ""
    try:
        forward = inspect.signature(module.forward)
        forward.bind(**inputs)
    except TypeError as error:
        takes = ", ".join(forward.parameters)
        return f" (forward takes {takes}: {error}, and so it was given all entries as one)"
    except ValueError:  # it says nothing of its arguments
        pass
    return ""


def answer(outputs: Any) -> Any:
    """Pick the tensor that a loss compares with the targets out of what a model returns: the tensor itself; of a
    dictionary or a Hugging Face output its logits (or what is named likewise), else its first tensor; of a tuple or a
    dataclass the first tensor."""
    if isinstance(outputs, Mapping):
        named = next((outputs[name] for name in ANSWERS if outputs.get(name) is not None), None)
        outputs = named if named is not None else next(iter(outputs.values()), None)
    if not isinstance(outputs, Tensor):
        outputs = next(iter(trees.leaves(trees.known(outputs))), outputs)
    if not isinstance(outputs, Tensor) or not outputs.ndim:
        kind = "one number" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UserError(
            f"model: it returns {kind}, and the loss compares one tensor with a row a sample; "
            "give a loss of one's own (any function of what the model returns and the targets), or `task.loss` model "
            "where the model returns its own loss"
        )
    return outputs


def own_loss(outputs: Any, _targets: Tree) -> Tensor:
    """Take the loss that a model returns: named `loss`, or the one number that it is."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)
    loss = loss[0] if isinstance(loss, tuple) and loss else loss
    if not isinstance(loss, Tensor) or loss.ndim > 1:
        raise UserError(
            f"task.loss: model means that the model returns its loss (an entry `loss`, or one number or one a sample), "
            f"and it returns {type(outputs).__name__} without; do the inputs have the labels?"
        )
    return loss
