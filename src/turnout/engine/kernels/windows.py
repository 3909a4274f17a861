"""Windows of images as rows and back, in one Triton kernel; images `[N, height, width, channels]`, contiguous."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _move(
    x,
    rows,
    total,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    BLOCK: tl.constexpr,
    INDEX: tl.constexpr,
    GATHER: tl.constexpr,
):
    place = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    real = place < total
    if GATHER:
        c, window = place % C, place // C
        j, window = window % KW, window // KW
        i, window = window % KH, window // KH
        w, window = window % OW, window // OW
        h, n = window % OH, window // OH
        value = tl.load(x + ((n * H + h * SH + i) * W + w * SW + j) * C + c, mask=real)
        tl.store(rows + place, value, mask=real)
    else:
        c, pixel = place % C, place // C
        w, pixel = pixel % W, pixel // W
        h, n = pixel % H, pixel // H
        value = tl.zeros([BLOCK], dtype=tl.float32)
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                oh, ow = (h - i) // SH, (w - j) // SW
                seen = real & (h >= i) & (w >= j) & (oh < OH) & (ow < OW) & (oh * SH + i == h) & (ow * SW + j == w)
                row = ((n * OH + oh) * OW + ow) * KH * KW + i * KW + j
                value += tl.load(rows + row * C + c, mask=seen, other=0.0)
        tl.store(x + place, value.to(x.dtype.element_ty), mask=real)


def gather(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Gather the window of every output pixel, `[N, oh, ow, kh * kw * channels]`."""
    n, height, width, channels = x.shape
    (kh, kw), (sh, sw) = kernel, stride
    oh, ow = (height - kh) // sh + 1, (width - kw) // sw + 1
    rows = x.new_empty(n, oh, ow, kh * kw * channels)
    shapes = (height, width, channels, oh, ow, kh, kw, sh, sw, BLOCK, _index(x, rows))
    _move[(triton.cdiv(rows.numel(), BLOCK),)](x, rows, rows.numel(), *shapes, GATHER=True)
    return rows


def scatter(rows: Tensor, shape: torch.Size, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Add all windows up where they lie in images of that shape."""
    _, height, width, channels = shape
    oh, ow = rows.shape[1:3]
    x = rows.new_empty(shape)
    shapes = (height, width, channels, oh, ow, *kernel, *stride, BLOCK, _index(x, rows))
    _move[(triton.cdiv(x.numel(), BLOCK),)](x, rows, x.numel(), *shapes, GATHER=False)
    return x


def _index(one: Tensor, two: Tensor) -> tl.dtype:
    """Choose the type of places in the larger of the two."""
    return tl.int32 if max(one.numel(), two.numel()) + BLOCK < 1 << 31 else tl.int64
