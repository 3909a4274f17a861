"""Weighted sums of rows on CUDA, wherever the rows are, and the models that a server has after each of several such
sums: one Triton kernel that adds up in order, so that a sum has the same bits alone and among others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

GOES_ON, BEGINS = 0, 1  # what a row does: it is added to its part, or begins another part of the sum


@triton.jit(do_not_specialize=["count", "sums"])
def _sum(
    table, model, out, size, count, sums,
    KIND: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < size
    bounds, weights = table + 2 * count, (table + 2 * count + sums + 1).to(tl.pointer_type(KIND))
    now = tl.load(model + at, mask=real) if STEP else tl.zeros([BLOCK], dtype=KIND)
    lr = tl.load(weights + count)
    for number in range(sums):
        total, part, parts = tl.zeros([BLOCK], dtype=KIND), tl.zeros([BLOCK], dtype=KIND), 0
        for k in range(tl.load(bounds + number), tl.load(bounds + number + 1)):
            row = tl.load(table + k).to(tl.pointer_type(KIND))
            weight, begins = tl.load(weights + k), tl.load(table + count + k)
            value = tl.load(row + at, mask=real)
            if begins == 1:
                total = tl.where(parts > 1, total + part, part)
                part = value * weight
                parts += 1
            else:
                part = tl.fma(value, tl.broadcast_to(weight, [BLOCK]), part)
        total = tl.where(parts > 1, total + part, part)
        if STEP:
            now = tl.fma(total, tl.broadcast_to(lr, [BLOCK]), now)
            total = now
        tl.store(out + tl.cast(number, tl.int64) * size + at, total, mask=real)


def weighted_sum(values: Tensor, rows: Sequence[int], weights: NDArray[np.float64]) -> Tensor:
    """Compute `sum_i weights[i] * values[rows[i]]`, of contiguous `values` `[k, ...]`."""
    addresses = _addresses(values, rows)
    begins = np.full(len(rows), GOES_ON)
    begins[0] = BEGINS
    out = values.new_empty(values.shape[1:])
    _launch(out, addresses, begins, weights, np.array([0, len(rows)]), None, 0.0)
    return out


def models(
    model: Tensor,
    rows: Sequence[tuple[Tensor, int]],
    begins: NDArray[np.int64],
    weights: NDArray[np.float64],
    bounds: NDArray[np.int64],
    lr: float,
) -> Tensor:
    """Compute the models `[n, P]` after n sums of rows, each of contiguous `[k, P]`: `model + lr * sum`, one after
    another. Rows `bounds[i]` to `bounds[i + 1]` are of sum i; `begins` says where parts begin that are added up by
    themselves first."""
    out = model.new_empty(len(bounds) - 1, len(model))
    addresses = np.array([values.data_ptr() + row * values.stride(0) * values.element_size() for values, row in rows])
    _launch(out, addresses, begins, weights, bounds, model, lr)
    return out


def _addresses(values: Tensor, rows: Sequence[int]) -> NDArray[np.int64]:
    return values.data_ptr() + np.asarray(rows, np.int64) * (values.stride(0) * values.element_size())


def _launch(
    out: Tensor,
    addresses: NDArray[np.int64],
    begins: NDArray[np.int64],
    weights: NDArray[np.float64],
    bounds: NDArray[np.int64],
    model: Tensor | None,
    lr: float,
) -> None:
    """Send what there is to add up, in one message, and add it up."""
    count, sums, double = len(addresses), len(bounds) - 1, out.dtype == torch.float64
    numbers = np.append(weights, [lr, 0.0][: 1 + (count + 1) % 2])
    numbers = numbers if double else numbers.astype(np.float32)
    message = np.concatenate([addresses, begins, bounds, numbers.view(np.int64)])
    table = _sent(message.tobytes(), out.device)
    size = out.numel() if model is None else len(model)
    block = 1024 if size >= 1 << 19 else 256
    sent = table, out if model is None else model, out, size, count, sums
    kind = tl.float64 if double else tl.float32
    _sum[(triton.cdiv(size, block),)](*sent, kind, model is not None, block, num_warps=4)


@lru_cache(maxsize=8)
def _sent(message: bytes, device: torch.device) -> Tensor:
    """Send a message to a device without waiting for its work; rounds of equal clients send the same again."""
    return torch.tensor(np.frombuffer(message, np.int64)).pin_memory().to(device, non_blocking=True)


def fits(values: Tensor) -> bool:
    """Say whether this kernel is for such rows `[k, ...]`."""
    return values.is_cuda and values.is_contiguous() and values.dtype in (torch.float32, torch.float64)
