"""All steps of a cohort that trains one linear layer by cross entropy, in one Triton kernel and with tf32: a client's
weights never leave the processor that trains it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from turnout.engine.plain_sgd import Course


@triton.jit
def _train(
    head,
    inputs,
    targets,
    rows,
    weights,
    rates,
    D: tl.constexpr,
    K: tl.constexpr,
    SIZE: tl.constexpr,
    STEPS: tl.constexpr,
    STORED: tl.constexpr,
    B: tl.constexpr,
    WIDE: tl.constexpr,
    CLASSES: tl.constexpr,
    BATCH: tl.constexpr,
    BIAS: tl.constexpr,
    SHARED: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    start = tl.load(head + 1).to(tl.pointer_type(tl.float32))
    moved = tl.load(head + 2).to(tl.pointer_type(tl.float32))
    d, k, b = tl.arange(0, WIDE), tl.arange(0, CLASSES), tl.arange(0, BATCH)
    received = start if SHARED else start + client * SIZE
    place, real = k[:, None] * D + d[None, :], (k[:, None] < K) & (d[None, :] < D)
    before = tl.load(received + place, mask=real, other=0.0)
    bias_before = tl.load(received + K * D + k, mask=k < K, other=0.0) if BIAS else tl.zeros([CLASSES], tl.float32)
    weight, bias, lr = before, bias_before, tl.load(rates + client)
    for step in range(STEPS):
        batch = (client * STORED + (step if STORED > 1 else 0)) * B + b
        row = tl.load(rows + batch, mask=b < B, other=0)
        counts = tl.load(weights + batch, mask=b < B, other=0.0) * lr
        x = tl.load(inputs + row[:, None] * D + d[None, :], mask=(b[:, None] < B) & (d[None, :] < D), other=0.0)
        outputs = tl.dot(x, tl.trans(weight), input_precision="tf32") + bias[None, :]
        outputs = tl.where(k[None, :] < K, outputs, float("-inf"))
        chances = tl.exp(outputs - tl.max(outputs, 1)[:, None])
        chances = chances / tl.sum(chances, 1)[:, None]
        hit = (k[None, :] == tl.load(targets + row)[:, None]).to(tl.float32)
        asked = (chances - hit) * counts[:, None]
        weight -= tl.dot(tl.trans(asked), x, input_precision="tf32")
        bias -= tl.sum(asked, 0)
    tl.store(moved + client * SIZE + place, weight - before, mask=real)
    if BIAS:
        tl.store(moved + client * SIZE + K * D + k, bias - bias_before, mask=k < K)


def train(
    head: Tensor,
    shared: bool,
    inputs: Tensor,
    targets: Tensor,
    course: Course,
    rates: Tensor,
    classes: int,
    parameters: int,
) -> None:
    """Take all steps of C clients. `head` says where the models received are, `[C, P]` or one that all have, and where
    to leave `[C, P]` what the parameters have moved by: one graph serves any."""
    width, (clients, stored, size) = inputs[0].numel(), course.rows.shape
    wide, padded, batch = (max(16, triton.next_power_of_2(number)) for number in (width, classes, size))
    _train[(clients,)](
        head,
        inputs,
        targets,
        course.rows.contiguous(),
        course.weights.contiguous(),
        rates,
        *(width, classes, parameters, course.keys.shape[1], stored, size, wide, padded, batch),
        BIAS=parameters > classes * width,
        SHARED=shared,
        num_warps=8,
        num_stages=1,
    )


def fits(width: int, classes: int, batch: int) -> bool:
    """Say whether a client's weights and a mini-batch have room on a processor."""
    return width <= 1024 and classes <= 16 and batch <= 16
