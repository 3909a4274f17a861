"""Data that change: how well a client is served while samples arrive, by what becomes of its memory.

Marfoq's thesis, section 3.6.3 (distribution shift). Half of a client's samples are in its memory. The other half
arrives in batches, then samples of another distribution do; after each batch the client is tested on the current one.
"""

from __future__ import annotations

import numpy as np
import torch

from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.random import FloatArray
from turnout.local.neighbours import KNN, mixed, score
from turnout.local.personaliser import Represented, memorise


def replay_shift(
    before: Represented,
    after: Represented,
    tests: tuple[Represented, Represented],
    policy: str,
    knn: KNN | None = None,
    batches: tuple[int, int] = (50, 50),
    seed: int = 0,
) -> FloatArray:
    """`[sum(batches)]` mean score after each batch: accuracy, or minus the squared error of a regression. `tests` are
    samples of both distributions. lambda is tuned on the first memory alone and stays."""
    knn = knn or KNN()
    if min(batches) < 1:
        raise UserError(f"batches: {batches} must be at least one before and one after the shift")
    order = random.permutation(random.key(seed, "before the shift"), len(before.keys))
    first, later = (torch.as_tensor(part, device=before.keys.device) for part in np.array_split(order, 2))
    store, held = memorise(before.rows(first), knn, seed=seed)
    interpolation = held.best(knn)
    scores = []
    for arriving, test, count in zip((before.rows(later), after), tests, batches, strict=True):
        for keys, values in zip(*(part.tensor_split(count) for part in (arriving.keys, arriving.values)), strict=True):
            store = store.update(keys, values, policy)
            local = store.vote(test.keys, knn, test.served.shape[1])
            scores.append(float(score(mixed(local, test.served, interpolation), test.values).mean()))
    return np.array(scores)
