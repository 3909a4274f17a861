"""Passes over the samples of many clients without gradients: scores before training, and what clients predict from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from turnout.engine.plain_sgd import PlainSGD, take
from turnout.local.sgd import ClientData, Named

if TYPE_CHECKING:
    from turnout.engine.train import Cohort, Jobs


def scores(cohort: Cohort, jobs: Jobs, received: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Score every sample of C clients by the models received `[C, P]`: `[C, n, ...]`, 0 for padding.

    `index` `[C, n]` are rows of the pool, `weights` `[C, n]` are 0 for padding. Clients are sorted: in every chunk the
    ones that still have samples are a prefix, and only that is scored. A model that all have received is not copied.
    """
    shared = len(jobs.models) == 1
    score = vmap(partial(jobs.work.score, cohort.task), in_dims=(None if shared else 0, 0, 0))
    wide = 3 * jobs.work.batch_size  # without gradients there is room for that
    parts = []
    for start in range(0, index.shape[1], wide):
        active = int(np.flatnonzero(jobs.samples.counts > start).max(initial=0)) + 1
        rows = index[:active, start : start + wide]
        samples = (take(pool, rows) for pool in (cohort.inputs, cohort.targets))
        values = score(jobs.models[0] if shared else received[:active], *samples)
        parts.append(torch.cat([values, values.new_zeros(len(index) - active, *values.shape[1:])]))
    found = torch.cat(parts, 1)
    return torch.where(weights.view(*weights.shape, *(1,) * (found.ndim - 2)) > 0, found, 0.0)


@torch.no_grad()
def prepare(cohort: Cohort, jobs: Jobs, state: Named) -> Named:
    """Have each client's `prepare` make of its state `[k, ...]` and its samples what it predicts from; rows as the
    jobs."""
    with cohort.on_device():
        return _prepare(cohort, jobs, state)


def _prepare(cohort: Cohort, jobs: Jobs, state: Named) -> Named:
    counts, device, work = jobs.samples.counts, cohort.plan.device, jobs.work
    index = torch.as_tensor(jobs.samples.padded(int(counts.max())), device=device).long()
    weights = (torch.arange(index.shape[1], device=device) < torch.as_tensor(counts, device=device)[:, None]).to(
        cohort.plan.dtype
    )
    local = (index, weights, weights.sum(1), torch.as_tensor(jobs.keys, device=device))
    chunk = cohort.chunk(index.shape[1], work.batch_size)

    def one(received: Tensor, state: Named, local: tuple[Tensor, ...]) -> Named:
        rows, counts, count, key = local
        data = ClientData(cohort.inputs, cohort.targets, rows, counts, count, key, chunk)
        return work.prepare(cohort.task, received, state, data)

    prepared: Named
    if cohort.task.alone:
        all_of = PlainSGD.received(jobs.models, jobs.received), state, local
        rows = (tree_map(lambda values, i=i: values[i], all_of) for i in range(len(index)))
        prepared = tree_map(lambda *parts: torch.stack(parts), *(one(*row) for row in rows))
    elif len(jobs.models) == 1:  # layers that all share are not copied for each
        prepared = vmap(one, in_dims=(None, 0, 0))(jobs.models[0], state, local)
    else:
        prepared = vmap(one)(PlainSGD.received(jobs.models, jobs.received), state, local)
    return prepared
