"""Representation profiles: a client's data as a layer of the received model sees it, as means and variances.

Wu, He, Lin, Mao, "FedProf: selective federated learning based on distributional representation profiling", IEEE
Transactions on Parallel and Distributed Systems 2023; Wu's thesis (Warwick), section 5.3. Outputs of a layer before
its activation are close to Gaussian, element by element; a profile is the q pairs

    (mean_i, var_i)         of element i over the samples; population variance; 8 q bytes on the wire

Elements are the units of a dense layer, the channels of a convolution or of any `[B, C, H, W]` output (summed over H
and W), one number for a recurrent layer (the sum over its final state), and every entry of anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from turnout.core.random import FloatArray
from turnout.task.inside import RECURRENT, no_features
from turnout.task.task import Task

if TYPE_CHECKING:
    from turnout.local.sgd import ClientData

Moments = tuple[Any, Any, Any]  # count, mean and sum of squared deviations, of arrays or tensors


def merge(one: Moments, other: Moments) -> Moments:
    """Merge moments of two sets of samples (Chan, Golub, LeVeque 1979): no difference of large sums."""
    count = one[0] + other[0]
    apart = other[1] - one[1]
    share = other[0] / count
    return count, one[1] + apart * share, one[2] + other[2] + apart * apart * (one[0] * share)


def profile_of(task: Task, params: Tensor, inputs: Tensor, layer: str, batch: int = 1024) -> FloatArray:
    """Profile these samples, looked at `batch` at a time: `[2, q]` means and variances."""
    parts = ((elements(task, params, part, layer), None) for part in torch.split(inputs, batch))
    with torch.no_grad():
        return np.stack([part.cpu().numpy() for part in _moments(parts)])


def client_profile(task: Task, received: Tensor, data: ClientData, layer: str) -> Tensor:
    """Compute `[2, q]` the profile of one client's samples."""

    def parts() -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, _, weights in data.chunks():
            yield elements(task, received, inputs, layer), weights

    return torch.stack(_moments(parts())).to(received.dtype)


def profile_shape(task: Task, layer: str) -> tuple[int, int]:
    """Tell (2, q), for a model that has seen a sample."""
    module = task.layer(layer)
    if layer not in task.layer_shapes:
        raise no_features(layer)
    shape = task.layer_shapes[layer]
    if isinstance(module, RECURRENT):
        return 2, 1
    return 2, shape[0] if _has_channels(module, len(shape)) else torch.Size(shape).numel()


def elements(task: Task, params: Tensor, inputs: Tensor, layer: str) -> Tensor:
    """Compute `[B, q]` what is profiled of each sample."""
    module, outputs = task.layer(layer), task.features(params, inputs, layer)
    if isinstance(module, RECURRENT):
        return outputs.sum(1, keepdim=True)
    if _has_channels(module, outputs.ndim - 1):
        return outputs.flatten(2).sum(2)
    return outputs.reshape(len(outputs), -1)


def _has_channels(module: torch.nn.Module, ndim: int) -> bool:
    return isinstance(module, _ConvNd) or ndim == 3


def _moments(parts: Iterable[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor]:
    """Compute `[q]` mean and variance in float64 of rows `[B, q]`; those of weight 0 do not count."""
    found: Moments | None = None
    for rows, weights in parts:
        rows = rows.double()
        counts = rows.new_ones(len(rows)) if weights is None else weights.to(rows.dtype)
        count = counts.sum()
        mean = (counts @ rows) / count.clamp(min=1)
        part = count, mean, counts @ (rows - mean).square()
        found = part if found is None else merge(found, part)
    assert found is not None
    return found[1], found[2] / found[0]
