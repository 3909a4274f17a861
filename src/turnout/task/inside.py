"""Look inside a model while it is called: what its layers give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn

from turnout.core.errors import UserError
from turnout.task.models import LSTM

RECURRENT = (nn.RNNBase, LSTM)


def features_of(layer: nn.Module, output: Any) -> Tensor | None:
    """What a layer gives, `[B, ...]`; of a recurrent one the final hidden state of its last layer; else None."""
    if isinstance(layer, nn.RNNBase):
        state = output[1]
        return cast(Tensor, (state[0] if isinstance(state, tuple) else state)[-1])
    if isinstance(layer, LSTM):
        return cast(Tensor, output[:, -1])
    return output if isinstance(output, Tensor) and not output.is_nested else None  # rows of one length


def no_features(layer: str) -> UserError:
    return UserError(f"layer: {layer!r} gives no tensor when the model is called; choose another")


def find_layer(module: nn.Module, name: str) -> nn.Module:
    """The layer of that name; the empty name is the model itself."""
    layers: dict[str, nn.Module] = dict(module.named_modules())
    if name not in layers:
        raise UserError(f"layer: the model has no {name!r}; its layers: {', '.join(filter(None, layers))}")
    return layers[name]


def last_linear(module: nn.Module) -> nn.Linear:
    """The last fully connected layer."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise UserError("layer: the model has no fully connected layer; name the one whose output represents a sample")
    return layers[-1]


def look_inside(module: nn.Module, layer: str | None, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What a call of the model returns, and `[B, ...]` what a layer gives meanwhile (the last time it is asked) before
    what follows it; of a recurrent layer the final hidden state. Without a name: what the last fully connected layer is
    given."""
    seen: Tensor | None = None

    def look(watched: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        nonlocal seen
        features = inputs[0] if layer is None else features_of(watched, output)
        seen = None if features is None else features.clone()  # what follows may work in place

    hook = (last_linear(module) if layer is None else find_layer(module, layer)).register_forward_hook(look)
    try:
        outputs = call()
    finally:
        hook.remove()
    if seen is None:
        raise no_features(layer or "the last fully connected layer")
    return outputs, seen
