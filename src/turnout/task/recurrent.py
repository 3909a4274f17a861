"""Recurrent layers whose dropout between layers is drawn by somebody else: torch's kernels, a layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

KINDS = {"lstm", "gru", "rnn_tanh", "rnn_relu"}  # functions of torch


class Call(NamedTuple):
    """The arguments of such a function, of sequences as they are or packed."""

    data: tuple[Any, ...]  # the sequences; where packed, how many go on at each step
    hidden: Any  # [layers * ways, B, H], or two of them
    weights: Sequence[Tensor]
    bias: bool
    layers: int
    dropout: float
    training: bool
    both_ways: bool
    rest: tuple[Any, ...]  # batch_first, unless packed

    @classmethod
    def of(cls, args: Sequence[Any]) -> Call:
        start = 2 if isinstance(args[3], (list, tuple)) else 1  # packed
        hidden, weights, bias, layers, dropout, training, both_ways, *rest = args[start:]
        data = tuple(args[:start])
        return cls(data, hidden, weights, bias, layers, dropout, training, both_ways, tuple(rest))


def draws(args: Sequence[Any]) -> bool:
    """Say whether a call drops something."""
    call = Call.of(args)
    return call.training and call.dropout > 0 and call.layers > 1


def layer_by_layer(func: Callable[..., Any], args: Sequence[Any], drop: Callable[[Tensor, float], Tensor]) -> Any:
    """Call the function for each layer, with what `drop` leaves of the layer before."""
    call = Call.of(args)
    ways = 2 if call.both_ways else 1
    states = call.hidden if isinstance(call.hidden, (list, tuple)) else (call.hidden,)
    each = len(call.weights) // call.layers
    x, *sizes = call.data
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(call.layers):
        own = tuple(state[layer * ways : (layer + 1) * ways] for state in states)
        weights = list(call.weights[layer * each : (layer + 1) * each])
        hidden = own if len(own) > 1 else own[0]
        x = drop(x, call.dropout) if layer else x
        x, *end = func(x, *sizes, hidden, weights, call.bias, 1, 0.0, True, call.both_ways, *call.rest)
        ends.append(tuple(end))
    return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))
