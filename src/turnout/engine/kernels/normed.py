"""Layer and group normalisation of many clients at once, each with weights of its own, in Triton kernels that read what
they normalise twice and write it once.

`rows` are `[C, N, W]` with weight and bias `[C, W]`; images are `[C, B, height, width, channels]`, weight and bias
`[C, channels]`. Sums are added up in one order, so that bits are the same every time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SLICES = 16  # parts of a client's rows whose gradients by weight and bias are added up one after another


@triton.jit
def _rows_forward(x, weight, bias, y, mean, deviation, rows, epsilon, W: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at, client = tl.arange(0, BLOCK), row // rows
    real = at < W
    value = tl.load(x + row * W + at, mask=real, other=0.0).to(tl.float32)
    middle = tl.sum(value, 0) / W
    apart = tl.where(real, value - middle, 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, 0) / W + epsilon)
    own, shift = tl.load(weight + client * W + at, mask=real), tl.load(bias + client * W + at, mask=real)
    tl.store(y + row * W + at, (apart * scale * own + shift).to(y.dtype.element_ty), mask=real)
    tl.store(mean + row, middle)
    tl.store(deviation + row, scale)


@triton.jit
def _rows_backward(
    dy, x, weight, mean, deviation, dx, by_weight, by_bias, rows,
    W: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    client, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    real = at < W
    own = tl.load(weight + client * W + at, mask=real, other=0.0).to(tl.float32)
    to_weight, to_bias = tl.zeros([BLOCK], dtype=tl.float32), tl.zeros([BLOCK], dtype=tl.float32)
    for number in range(part, rows, PARTS):
        row = client * rows + number
        middle, scale = tl.load(mean + row), tl.load(deviation + row)
        up = tl.load(dy + row * W + at, mask=real, other=0.0).to(tl.float32)
        value = tl.load(x + row * W + at, mask=real, other=0.0).to(tl.float32)
        apart = tl.where(real, (value - middle) * scale, 0.0)
        asked = up * own
        first, second = tl.sum(asked, 0) / W, tl.sum(asked * apart, 0) / W
        tl.store(dx + row * W + at, (scale * (asked - first - apart * second)).to(dx.dtype.element_ty), mask=real)
        to_weight += up * apart
        to_bias += up
    place = (client * PARTS + part) * W + at
    tl.store(by_weight + place, to_weight, mask=real)
    tl.store(by_bias + place, to_bias, mask=real)


@triton.jit
def _images_forward(
    x, weight, bias, y, mean, deviation, images, pixels, epsilon,
    CH: tl.constexpr, GROUPS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    at, channel = tl.arange(0, PIXELS), tl.arange(0, CH)
    x += image * pixels * CH
    y += image * pixels * CH
    EACH: tl.constexpr = CH // GROUPS
    plain, square = tl.zeros([CH], dtype=tl.float32), tl.zeros([CH], dtype=tl.float32)
    shift = tl.load(x + channel // EACH * EACH).to(tl.float32)  # one value of each group, near the others
    for first in range(0, pixels, PIXELS):
        real = (first + at < pixels)[:, None]
        value = tl.load(x + (first + at)[:, None] * CH + channel[None, :], mask=real, other=0.0).to(tl.float32)
        value = tl.where(real, value - shift[None, :], 0.0)
        plain += tl.sum(value, 0)
        square += tl.sum(value * value, 0)
    count = pixels * EACH
    middle = tl.sum(tl.reshape(plain, [GROUPS, EACH]), 1) / count
    spread = tl.sum(tl.reshape(square, [GROUPS, EACH]), 1) / count - middle * middle
    scale = 1 / tl.sqrt(tl.maximum(spread, 0.0) + epsilon)
    group = tl.arange(0, GROUPS)
    middle += tl.load(x + group * EACH).to(tl.float32)
    tl.store(mean + image * GROUPS + group, middle)
    tl.store(deviation + image * GROUPS + group, scale)
    centre = tl.reshape(tl.broadcast_to(middle[:, None], [GROUPS, EACH]), [CH])
    factor = tl.reshape(tl.broadcast_to(scale[:, None], [GROUPS, EACH]), [CH]) * tl.load(weight + client * CH + channel)
    added = tl.load(bias + client * CH + channel)
    for first in range(0, pixels, PIXELS):
        real = (first + at < pixels)[:, None]
        place = (first + at)[:, None] * CH + channel[None, :]
        value = tl.load(x + place, mask=real, other=0.0).to(tl.float32)
        out = (value - centre[None, :]) * factor[None, :] + added[None, :]
        tl.store(y + place, out.to(y.dtype.element_ty), mask=real)


@triton.jit
def _images_backward(
    dy, x, weight, mean, deviation, dx, by_weight, by_bias, images, pixels,
    CH: tl.constexpr, GROUPS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    at, channel = tl.arange(0, PIXELS), tl.arange(0, CH)
    x += image * pixels * CH
    dy += image * pixels * CH
    dx += image * pixels * CH
    EACH: tl.constexpr = CH // GROUPS
    centre = tl.load(mean + image * GROUPS + channel // EACH)
    scale = tl.load(deviation + image * GROUPS + channel // EACH)
    own = tl.load(weight + client * CH + channel).to(tl.float32)
    to_weight, to_bias = tl.zeros([CH], dtype=tl.float32), tl.zeros([CH], dtype=tl.float32)
    for first in range(0, pixels, PIXELS):
        real = (first + at < pixels)[:, None]
        place = (first + at)[:, None] * CH + channel[None, :]
        up = tl.load(dy + place, mask=real, other=0.0).to(tl.float32)
        value = tl.load(x + place, mask=real, other=0.0).to(tl.float32)
        apart = (value - centre[None, :]) * scale[None, :]
        to_weight += tl.sum(up * apart, 0)
        to_bias += tl.sum(up, 0)
    tl.store(by_weight + image * CH + channel, to_weight)
    tl.store(by_bias + image * CH + channel, to_bias)
    count = pixels * EACH
    one = tl.sum(tl.reshape(to_bias * own, [GROUPS, EACH]), 1) / count
    two = tl.sum(tl.reshape(to_weight * own, [GROUPS, EACH]), 1) / count
    one = tl.reshape(tl.broadcast_to(one[:, None], [GROUPS, EACH]), [CH])
    two = tl.reshape(tl.broadcast_to(two[:, None], [GROUPS, EACH]), [CH])
    for first in range(0, pixels, PIXELS):
        real = (first + at < pixels)[:, None]
        place = (first + at)[:, None] * CH + channel[None, :]
        up = tl.load(dy + place, mask=real, other=0.0).to(tl.float32)
        value = tl.load(x + place, mask=real, other=0.0).to(tl.float32)
        apart = (value - centre[None, :]) * scale[None, :]
        out = scale[None, :] * (up * own[None, :] - one[None, :] - apart * two[None, :])
        tl.store(dx + place, out.to(dx.dtype.element_ty), mask=real)


def rows_forward(
    x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise every row of `[C, N, W]`, as numbers of that type; with them the rows' means and inverse deviations
    `[C, N]`."""
    clients, rows, width = x.shape
    y, mean = torch.empty_like(x, dtype=dtype), x.new_empty(clients, rows, dtype=torch.float32)
    deviation, block = torch.empty_like(mean), triton.next_power_of_2(width)
    warps = 1 if block <= 256 else 4 if block <= 2048 else 8
    _rows_forward[(clients * rows,)](x, weight, bias, y, mean, deviation, rows, epsilon, width, block, num_warps=warps)
    return y, mean, deviation


def rows_backward(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, ...]:
    """Take a gradient back to the rows, to the weight and to the bias."""
    clients, rows, width = x.shape
    parts = max(1, min(SLICES, rows // 8) if clients >= 32 else min(16 * SLICES, rows // 8))
    parts, dx = triton.next_power_of_2(parts), torch.empty_like(x)
    by_weight, by_bias = (x.new_empty(clients, parts, width, dtype=torch.float32) for _ in range(2))
    block = triton.next_power_of_2(width)
    warps = 1 if block <= 256 else 4 if block <= 2048 else 8
    sent = dy, x, weight, mean, deviation, dx, by_weight, by_bias, rows
    _rows_backward[(clients, parts)](*sent, width, block, parts, num_warps=warps)
    return dx, by_weight.sum(1), by_bias.sum(1)


def images_forward(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise groups of channels of every image `[C, B, H, W, channels]`, as numbers of that type; with them means
    and inverse deviations `[C, B, groups]`."""
    clients, images, height, width, channels = x.shape
    y, mean = torch.empty_like(x, dtype=dtype), x.new_empty(clients, images, groups, dtype=torch.float32)
    deviation, pixels = torch.empty_like(mean), height * width
    sent = x, weight, bias, y, mean, deviation, images, pixels, epsilon
    _images_forward[(clients * images,)](*sent, channels, groups, _pixels(channels), num_warps=8)
    return y, mean, deviation


def images_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, deviation: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a gradient back to the images, to the weight and to the bias."""
    clients, images, height, width, channels = x.shape
    dx = torch.empty_like(x)
    by_weight, by_bias = (x.new_empty(clients, images, channels, dtype=torch.float32) for _ in range(2))
    sent = dy, x, weight, mean, deviation, dx, by_weight, by_bias, images, height * width
    _images_backward[(clients * images,)](*sent, channels, groups, _pixels(channels), num_warps=8)
    return dx, by_weight.sum(1), by_bias.sum(1)


def _pixels(channels: int) -> int:
    """Choose how many pixels a program has before it at a time."""
    return max(4, 8192 // channels)
