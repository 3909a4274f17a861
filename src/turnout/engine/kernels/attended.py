"""Attention of short sequences for many clients and heads at once, in one Triton kernel each way: the scores of a head
never leave its program, and no two programs add to the same place, so that bits are the same every time.

Queries, keys and values are `[N, heads, T, D]` in any order of memory with D side by side; T at most `LONGEST`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from turnout.engine.kernels.implicit import precise

LONGEST, WIDEST = 128, 128


@triton.jit
def _scores(
    q, k, scale,
    T: tl.constexpr, S: tl.constexpr, CAUSAL: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    row, column = tl.arange(0, BT)[:, None], tl.arange(0, BS)[None, :]
    found = tl.dot(q, tl.trans(k), input_precision=PRECISE) * scale
    seen = (row < T) & (column < S)
    if CAUSAL:
        seen = seen & (column <= row)
    found = tl.where(seen, found, float("-inf"))
    top = tl.max(found, 1)
    share = tl.exp(found - tl.where(top > float("-inf"), top, 0.0)[:, None])
    total = tl.sum(share, 1)
    return share / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def _forward(
    q, k, v, y, scale, heads, qn, qh, qt, kn, kh, kt, vn, vh, vt, yn, yh, yt,
    T: tl.constexpr, S: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    n, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    d, t, s = tl.arange(0, BD), tl.arange(0, BT)[:, None], tl.arange(0, BS)[:, None]
    real, known = (t < T) & (d < D)[None, :], (s < S) & (d < D)[None, :]
    queries = tl.load(q + n * qn + head * qh + t * qt + d[None, :], mask=real, other=0.0)
    keys = tl.load(k + n * kn + head * kh + s * kt + d[None, :], mask=known, other=0.0)
    values = tl.load(v + n * vn + head * vh + s * vt + d[None, :], mask=known, other=0.0)
    share = _scores(queries, keys, scale, T, S, CAUSAL, BT, BS, PRECISE)
    out = tl.dot(share.to(values.dtype), values, input_precision=PRECISE)
    tl.store(y + n * yn + head * yh + t * yt + d[None, :], out.to(y.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    dy, q, k, v, dq, dk, dv, scale, heads, on, oh, ot, qn, qh, qt, kn, kh, kt, vn, vh, vt, an, ah, at, bn, bh, bt,
    T: tl.constexpr, S: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    n, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    d, t, s = tl.arange(0, BD), tl.arange(0, BT)[:, None], tl.arange(0, BS)[:, None]
    real, known = (t < T) & (d < D)[None, :], (s < S) & (d < D)[None, :]
    queries = tl.load(q + n * qn + head * qh + t * qt + d[None, :], mask=real, other=0.0)
    keys = tl.load(k + n * kn + head * kh + s * kt + d[None, :], mask=known, other=0.0)
    values = tl.load(v + n * vn + head * vh + s * vt + d[None, :], mask=known, other=0.0)
    asked = tl.load(dy + n * on + head * oh + t * ot + d[None, :], mask=real, other=0.0)
    share = _scores(queries, keys, scale, T, S, CAUSAL, BT, BS, PRECISE)
    rounded = share.to(values.dtype)
    to_values = tl.dot(tl.trans(rounded), asked, input_precision=PRECISE)
    tl.store(dv + n * bn + head * bh + s * bt + d[None, :], to_values.to(dv.dtype.element_ty), mask=known)
    up = tl.dot(asked, tl.trans(values), input_precision=PRECISE)
    up = (share * (up - tl.sum(up * share, 1)[:, None]) * scale).to(values.dtype)
    to_queries = tl.dot(up, keys, input_precision=PRECISE)
    tl.store(dq + n * an + head * ah + t * at + d[None, :], to_queries.to(dq.dtype.element_ty), mask=real)
    to_keys = tl.dot(tl.trans(up), queries, input_precision=PRECISE)
    tl.store(dk + n * bn + head * bh + s * bt + d[None, :], to_keys.to(dk.dtype.element_ty), mask=known)


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """Attend: `[N, heads, T, D]`, which lies in memory as `[N, T, heads, D]`."""
    n, heads, length, width = q.shape
    y = q.new_empty(n, length, heads, width).transpose(1, 2)
    places = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *y.stride()[:3])
    _forward[(n * heads,)](q, k, v, y, scale, heads, *places, **_sizes(q, k, causal))
    return y


def backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Take a gradient back to queries, keys and values."""
    n, heads, length, width = q.shape
    dq = q.new_empty(n, length, heads, width).transpose(1, 2)
    dk, dv = (k.new_empty(n, k.shape[2], heads, width).transpose(1, 2) for _ in range(2))
    dy = dy if dy.stride(3) == 1 else dy.contiguous()
    strides = [dy, q, k, v, dq, dk]
    places = [stride for tensor in strides for stride in tensor.stride()[:3]]
    _backward[(n * heads,)](dy, q, k, v, dq, dk, dv, scale, heads, *places, **_sizes(q, k, causal))
    return dq, dk, dv


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Say whether these kernels are for such tensors `[..., T, D]`."""
    short = q.shape[-2] <= LONGEST and k.shape[-2] <= LONGEST and q.shape[-1] <= WIDEST
    return short and v.shape == k.shape and q.shape[:-2] == k.shape[:-2] and q.shape[-1] == k.shape[-1]


def _sizes(q: Tensor, k: Tensor, causal: bool) -> dict[str, Any]:
    length, keys, width = q.shape[2], k.shape[2], q.shape[3]
    blocks = [max(16, triton.next_power_of_2(size)) for size in (length, keys, width)]
    named = dict(zip(("BT", "BS", "BD"), blocks, strict=True))
    return {
        "T": length,
        "S": keys,
        "D": width,
        "CAUSAL": causal,
        "PRECISE": precise(q),
        "num_warps": 8 if blocks[0] > 64 else 4,
    } | named
