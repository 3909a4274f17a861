"""Which edge each client belongs to: the regions of hierarchical training."""

from __future__ import annotations

import numpy as np

from turnout.core import random
from turnout.core.allowed import Finite
from turnout.core.errors import UserError
from turnout.core.random import IntArray
from turnout.core.spelling import spelt
from turnout.data._dealing import apportion


@spelt
def deal(clients: int, edges: int, seed: int = 0, *, relative_sd: Finite = 0.0) -> IntArray:
    """`[N]` regions: shuffled clients in `edges` regions of N_r ~ N(N/M, (relative_sd N/M)^2), at least 1 client each.

    >>> Population.of(data, clients=500, regions=deal(500, 10, relative_sd=0.3), links=Links(backhaul=1e9))

    Reference: Wu et al., HybridFL, IEEE TPDS 2021 (relative_sd = 0.3).
    """
    if not 1 <= edges <= clients:
        raise UserError(f"clients.regions: {edges} must be from 1 to the {clients} clients")
    draws = random.normal(random.key(seed, "region size", np.arange(edges)), 1)[:, 0]
    sizes = apportion(np.maximum(1 + relative_sd * draws, 1e-9), clients)
    region = np.empty(clients, np.int64)
    region[random.permutation(random.key(seed, "region"), clients)] = np.repeat(np.arange(edges), sizes)
    return region
