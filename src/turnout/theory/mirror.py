"""Online mirror descent on the simplex: multiplicative weights, kept away from its border.

Hazan, "Introduction to online convex optimization", 2016, section 5.4; Marfoq's thesis (2023), algorithm 16. With the
negative entropy R(pi) = sum_j pi[j] log pi[j] Bregman projections are nearest in KL: on the simplex they normalise, on
the part of it where no weight is below beta they also lift the lowest.

    grad R(y) = grad R(pi) - eta g,    pi'[j] = pi[j] exp(-eta g[j]) / sum over l of the same
    pi''[j] = max(beta, s pi'[j]),     s such that they sum to 1

Weights near 0 have gradients near -pi*[j] / pi[j]: without a floor they jump from corner to corner. Mixing with equal
weights at every step would be a floor as well, but its pull does not fade as eta does: in time all weights are equal.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mirror_step(weights: Tensor, gradient: Tensor, lr: float | Tensor) -> Tensor:
    """`[..., m]` the step from `weights` against `gradient`, both `[..., m]`."""
    return torch.softmax(weights.log() - lr * gradient, -1)


def floored(weights: Tensor, floor: float) -> Tensor:
    """`[..., m]` the distributions nearest to `weights` of which none falls below `floor`."""
    low, scaled = torch.zeros_like(weights, dtype=torch.bool), weights
    for _ in range(weights.shape[-1] - 1):  # a weight that is lifted stays so, and makes others lower
        low = low | (scaled < floor)
        room = 1 - floor * low.sum(-1, keepdim=True)
        scaled = torch.where(low, floor, weights * (room / torch.where(low, 0, weights).sum(-1, keepdim=True)))
    return scaled
