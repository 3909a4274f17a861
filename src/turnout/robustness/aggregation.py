"""Means that a few rows cannot drag far: pure functions of rows `[k, P]` and weights `[k]` that sum to 1.

Karimireddy, He, Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021 (centred clipping) and
"Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022; Pillutla, Kakade, Harchaoui, "Robust
aggregation for federated learning", IEEE Transactions on Signal Processing 2022 (the geometric median).
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.random import IntArray, permutation

_TINY = 1e-30


def centred_clipping(rows: Tensor, weights: Tensor, start: Tensor, radius: float, iterations: int = 1) -> Tensor:
    """`v <- v + sum_i w_i (row_i - v) min(1, radius / |row_i - v|)`, from v = `start`."""
    centre = start
    for _ in range(iterations):
        away = rows - centre
        kept = (radius / away.norm(dim=1).clamp(min=_TINY)).clamp(max=1)
        centre = centre + (weights * kept) @ away
    return centre


def geometric_median(rows: Tensor, weights: Tensor, smoothing: float = 1e-6, iterations: int = 8) -> Tensor:
    """The point v of least `sum_i w_i |v - row_i|`, by smoothed Weiszfeld steps from the mean: the mean of the rows
    with weights `w_i / max(smoothing, |v - row_i|)`."""
    centre = weights @ rows / weights.sum()
    for _ in range(iterations):
        pull = weights / (rows - centre).norm(dim=1).clamp(min=smoothing)
        centre = pull @ rows / pull.sum()
    return centre


def bucketed(rows: Tensor, weights: Tensor, buckets: int, key: IntArray) -> tuple[Tensor, Tensor]:
    """The rows dealt at random into `buckets` of equal size (up to one row): their weighted means, and the sums of
    their weights."""
    bucket = torch.as_tensor(permutation(key, len(rows)) % buckets, device=rows.device)
    total = weights.new_zeros(buckets).index_add(0, bucket, weights)
    sums = rows.new_zeros(buckets, rows.shape[1]).index_add(0, bucket, weights[:, None] * rows)
    return sums / total.clamp(min=_TINY)[:, None], total
