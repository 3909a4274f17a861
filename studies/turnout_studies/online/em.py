"""Federated EM on one step's samples, and the gradient of the loss by the weights.

Marfoq's thesis (2023), section 4.4, equations (4.26) to (4.28) and (4.34) to (4.36): shared sources omega, weights pi_c
of each client's own.

    w[c, i, j]  =  pi[c, j] p_j(z_i) / sum over l of the same                      (E-step)
    a[c, j]     =  sum_i w[c, i, j],    pi[c, j] = a[c, j] / n_c                   (M-step of the weights)
    omega[j]    =  sum_c a[c, j] omega[c, j] / sum_c a[c, j]                       (M-step of the sources, synchronised)
    g[c, j]     =  -E p_j(Z) / sum_l pi[c, l] p_l(Z),    pi[c, j] g[c, j] = -E w[c, Z, j]
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.local.mixture import mixture_loss, responsibilities
from turnout_studies.online.components import Components
from turnout_studies.online.samples import Samples

NEGLIGIBLE = 1e-8  # samples: a source that makes up fewer keeps its parameters


def mixture_log_prob(log_prob: Tensor, weights: Tensor) -> Tensor:
    """`[C, ...]` log sum_j pi[c, j] p_j, from `[C, ..., m]` and `[C, m]`."""
    return -mixture_loss(-log_prob, _over_samples(weights, log_prob))


def weights_step(log_prob: Tensor, weights: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """`[C, n, m]` responsibilities, 0 for padding, and `[C, m]` their mean; a client without samples keeps its own."""
    shares = responsibilities(-log_prob, _over_samples(weights, log_prob)) * counted[..., None]
    counts = counted.sum(1, keepdim=True)
    return shares, torch.where(counts > 0, shares.sum(1) / counts, weights)


def synchronise(totals: Tensor, masses: Tensor, previous: Tensor) -> Tensor:
    """`[m, P]` from sums over the clients: `totals` `[m, P]` of a[c, j] omega[c, j] and `masses` `[m]` of a[c, j]."""
    known = masses[:, None] >= NEGLIGIBLE
    return torch.where(known, totals / torch.where(known, masses[:, None], 1), previous)


def em_step(family: Components, components: Tensor, weights: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
    """Components and weights after one E-step and one synchronised M-step."""
    shares, weights = weights_step(family.log_prob(components, samples), weights, samples.counted)
    totals = family.totals(components, samples, shares)
    return synchronise(totals, shares.sum((0, 1)), components), weights


def federated_em(
    family: Components, components: Tensor, samples: Samples, steps: int, splitting: bool = False
) -> tuple[Tensor, Tensor]:
    """The same `steps` times from equal weights: they may have jumped. With `splitting` each step has samples of its
    own, so that no two depend on each other."""
    weights = components.new_full((len(samples.inputs), len(components)), 1 / len(components))
    for number in range(steps):
        own = samples.part(number, steps) if splitting else samples
        components, weights = em_step(family, components, weights, own)
    return components, weights


def weight_gradient(log_prob: Tensor, weights: Tensor, counted: Tensor) -> Tensor:
    """`[C, m]` g at `weights`, with the expectation over points `[C, n]` that count so much."""
    ratios = (log_prob - mixture_log_prob(log_prob, weights)[..., None]).exp()
    counts = counted.sum(1, keepdim=True)
    return -(ratios * counted[..., None]).sum(1) / torch.where(counts > 0, counts, 1)


def _over_samples(weights: Tensor, log_prob: Tensor) -> Tensor:
    return weights.view(len(weights), *(1 for _ in log_prob.shape[1:-1]), -1)
