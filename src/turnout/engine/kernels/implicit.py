"""Convolutions of many clients at once, each with kernels of its own, as products whose windows are never written down.

Images are `[C, B, height, width, channels]`, kernels `[C, out, kh, kw, in]`, all contiguous. Three Triton kernels: the
convolution, its gradient by the images, and that by the kernels. A program makes one tile of one client's result and
adds up in one order, whatever else runs, so that bits are the same every time. Sizes are no constants of the kernels:
a model with many has few of them to compile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[int, int]


class Sizes(NamedTuple):
    """The sizes of a convolution."""

    H: int
    W: int
    IN: int
    OH: int
    OW: int
    OUT: int
    KH: int
    KW: int
    SH: int
    SW: int
    PH: int
    PW: int


@triton.jit
def _product(a, b, total, PRECISE: tl.constexpr):
    """Add a product; `split` adds those of two halves of each number, which tensor cores read in either order."""
    if PRECISE == "split":
        high, top = a.to(tl.bfloat16), b.to(tl.bfloat16)
        low, rest = (a - high.to(tl.float32)).to(tl.bfloat16), (b - top.to(tl.float32)).to(tl.bfloat16)
        total = tl.dot(low, top, total)
        total = tl.dot(high, rest, total)
        total = tl.dot(high, top, total)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISE)
    return total


@triton.jit
def _forward(
    x, w, bias, y, rows,
    H, W, IN, OH, OW, OUT, KH, KW, SH, SW, PH, PW,
    BIAS: tl.constexpr, ALIGNED: tl.constexpr, PRECISE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    x += client * (rows // (OH * OW)) * H * W * IN
    w += client * OUT * KH * KW * IN
    y += client * rows * OUT
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    top, left = (m // OW) % OH * SH - PH, m % OW * SW - PW
    image = m // (OH * OW) * H * W
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for part in range(tl.cdiv(KH * KW * IN, BK)):
        if ALIGNED:  # a block of channels of one place of the window
            k = part * BK % IN + tl.arange(0, BK)
            tap = part * BK // IN
            h, v = top + tap // KW, left + tap % KW
            seen = (m < rows) & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            a = tl.load(x + ((image + h * W + v) * IN)[:, None] + k[None, :], mask=seen[:, None], other=0.0)
        else:
            k = part * BK + tl.arange(0, BK)
            tap = k // IN
            h, v = top[:, None] + (tap // KW)[None, :], left[:, None] + (tap % KW)[None, :]
            seen = (m < rows)[:, None] & (k < KH * KW * IN)[None, :] & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            a = tl.load(x + (image[:, None] + h * W + v) * IN + (k % IN)[None, :], mask=seen, other=0.0)
        at = part * BK + tl.arange(0, BK)
        known = (n < OUT)[None, :] if ALIGNED else (at < KH * KW * IN)[:, None] & (n < OUT)[None, :]
        b = tl.load(w + n[None, :] * (KH * KW * IN) + at[:, None], mask=known, other=0.0)
        total = _product(a, b, total, PRECISE)
    if BIAS:
        total += tl.load(bias + client * OUT + n, mask=n < OUT, other=0.0)[None, :].to(tl.float32)
    real = (m < rows)[:, None] & (n < OUT)[None, :]
    tl.store(y + m[:, None].to(tl.int64) * OUT + n[None, :], total.to(y.dtype.element_ty), mask=real)


@triton.jit
def _by_images(
    dy, w, dx, rows,
    H, W, IN, OH, OW, OUT, KH, KW, SH, SW, PH, PW,
    ALIGNED: tl.constexpr, PRECISE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    dy += client * (rows // (H * W)) * OH * OW * OUT
    w += client * OUT * KH * KW * IN
    dx += client * rows * IN
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    below, right = (m // W) % H + PH, m % W + PW
    image = m // (H * W) * OH * OW
    total = tl.zeros([BM, BN], dtype=tl.float32)
    deep = tl.cdiv(OUT, BK)
    for part in range(KH * KW * deep):
        tap, k = part // deep, part % deep * BK + tl.arange(0, BK)
        h, v = below - tap // KW, right - tap % KW  # of the output, times the stride
        seen = (m < rows) & (h >= 0) & (v >= 0) & (h % SH == 0) & (v % SW == 0) & (h // SH < OH) & (v // SW < OW)
        asked = seen[:, None] if ALIGNED else seen[:, None] & (k < OUT)[None, :]
        a = tl.load(dy + ((image + h // SH * OW + v // SW) * OUT)[:, None] + k[None, :], mask=asked, other=0.0)
        known = (n < IN)[None, :] if ALIGNED else (k < OUT)[:, None] & (n < IN)[None, :]
        b = tl.load(w + (k * KH * KW * IN)[:, None] + (tap * IN + n)[None, :], mask=known, other=0.0)
        total = _product(a, b, total, PRECISE)
    real = (m < rows)[:, None] & (n < IN)[None, :]
    tl.store(dx + m[:, None].to(tl.int64) * IN + n[None, :], total.to(dx.dtype.element_ty), mask=real)


@triton.jit
def _by_kernels(
    dy, x, dw, rows,
    H, W, IN, OH, OW, OUT, KH, KW, SH, SW, PH, PW,
    STEP: tl.constexpr, ALIGNED: tl.constexpr, PRECISE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    dy += client * rows * OUT
    x += client * (rows // (OH * OW)) * H * W * IN
    dw += client * OUT * KH * KW * IN
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    tap = tl.program_id(1) * BN // IN if ALIGNED else n // IN
    down, along = tap // KW - PH, tap % KW - PW
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for first in range(0, rows, BK):
        k = first + tl.arange(0, BK)
        known = (m < OUT)[:, None] & (k < rows)[None, :]
        a = tl.load(dy + k[None, :] * OUT + m[:, None], mask=known, other=0.0)
        top, left, image = (k // OW) % OH * SH, k % OW * SW, k // (OH * OW) * H * W
        if ALIGNED:  # the block is channels of one place of the window
            h, v = top + down, left + along
            seen = (k < rows) & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            b = tl.load(x + ((image + h * W + v) * IN)[:, None] + (n % IN)[None, :], mask=seen[:, None], other=0.0)
        else:
            h, v = top[:, None] + down[None, :], left[:, None] + along[None, :]
            seen = (k < rows)[:, None] & (n < KH * KW * IN)[None, :] & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            b = tl.load(x + (image[:, None] + h * W + v) * IN + (n % IN)[None, :], mask=seen, other=0.0)
        total = _product(a, b, total, PRECISE)
    place = m[:, None] * (KH * KW * IN) + n[None, :]
    real = (m < OUT)[:, None] & (n < KH * KW * IN)[None, :]
    if STEP:
        total = tl.load(dw + place, mask=real, other=0.0).to(tl.float32) - total
    tl.store(dw + place, total.to(dw.dtype.element_ty), mask=real)


def sizes(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Sizes:
    """Know the sizes of a convolution of images `[C, B, H, W, in]` with kernels `[C, out, kh, kw, in]`."""
    (height, width, into), (out, kh, kw) = x.shape[2:], weight.shape[1:4]
    oh, ow = (height + 2 * padding[0] - kh) // stride[0] + 1, (width + 2 * padding[1] - kw) // stride[1] + 1
    return Sizes(height, width, into, oh, ow, out, kh, kw, *stride, *padding)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, size: Sizes) -> Tensor:
    """Convolve: `[C, B, oh, ow, out]`; `bias` `[C, out]` is added."""
    clients, images = x.shape[:2]
    y, rows = x.new_empty(clients, images, size.OH, size.OW, size.OUT), images * size.OH * size.OW
    blocks = _blocks(rows, size.OUT, size.IN, x, first=True)
    grid = triton.cdiv(rows, blocks["BM"]), triton.cdiv(size.OUT, blocks["BN"]), clients
    _forward[grid](
        x, weight, x if bias is None else bias, y, rows, *size, bias is not None, size.IN % blocks["BK"] == 0, **blocks
    )
    return y


def by_images(dy: Tensor, weight: Tensor, size: Sizes) -> Tensor:
    """Take the gradient `[C, B, oh, ow, out]` back to the images, `[C, B, H, W, in]`."""
    clients, images = dy.shape[:2]
    dx, rows = dy.new_empty(clients, images, size.H, size.W, size.IN), images * size.H * size.W
    blocks = _blocks(rows, size.IN, size.OUT, dy)
    grid = triton.cdiv(rows, blocks["BM"]), triton.cdiv(size.IN, blocks["BN"]), clients
    _by_images[grid](dy, weight, dx, rows, *size, size.OUT % blocks["BK"] == 0, **blocks)
    return dx


def by_kernels(dy: Tensor, x: Tensor, size: Sizes, step: Tensor | None = None) -> Tensor:
    """Take the gradient to the kernels, `[C, out, kh, kw, in]` in single precision; or subtract it from these and
    return them."""
    clients, images = dy.shape[:2]
    rows, wide = images * size.OH * size.OW, size.KH * size.KW * size.IN
    shape = clients, size.OUT, size.KH, size.KW, size.IN
    dw = dy.new_empty(shape, dtype=torch.float32) if step is None else step
    blocks = _blocks(size.OUT, size.IN if size.IN >= 32 else wide, rows, x)
    grid = triton.cdiv(size.OUT, blocks["BM"]), triton.cdiv(wide, blocks["BN"]), clients
    _by_kernels[grid](dy, x, dw, rows, *size, step is not None, size.IN % blocks["BN"] == 0, **blocks)
    return dw


def precise(x: Tensor) -> str:
    """Choose how tensor cores multiply such numbers: three products of shorter ones for single precision."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 or x.dtype != torch.float32 else "tf32x3"


def _blocks(rows: int, columns: int, deep: int, x: Tensor, first: bool = False) -> dict[str, Any]:
    """Choose the tile of a product from its sizes, so that the same sizes have the same tile: those that were fastest
    for the layers of a ResNet-18 on an H200. Backward, numbers lie otherwise than tensor cores read tf32."""
    halves, how = x.dtype == torch.bfloat16, precise(x)
    bk = 64 if halves and deep % 64 == 0 else 32 if deep > 16 else 16
    bm, bn, warps = (128 if rows > 192 else 64 if rows > 32 else 32), (64 if columns > 32 else 32), 4
    if how == "tf32x3" or (how == "tf32" and not halves and (first or rows <= 64)):
        bm = min(bm, 64)
        bn = 128 if first and how == "tf32" and columns >= 128 else bn
    elif rows > 64 and columns >= 128 and not first:
        bn, warps = 128, 8
    how = "split" if how == "tf32" and not halves and not first else how
    return {"PRECISE": how, "BM": bm, "BN": bn, "BK": bk, "num_warps": warps, "num_stages": 3}
