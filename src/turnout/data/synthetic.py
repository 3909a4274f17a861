"""LEAF's synthetic(alpha, beta), generated: every client has its own inputs and its own labelling rule.

Caldas et al. 2018 and Li et al. (FedProx), MLSys 2020, section 5.1; as in their generator alpha and beta are
standard deviations.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnout.core.allowed import Count, NotNegative, Range
from turnout.core.random import key, normal
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, lognormal_sizes, parted, room


@spelt
def load(
    *,
    alpha: NotNegative = 0.5,  # variance of the clients' models
    beta: NotNegative = 0.5,  # variance of the clients' inputs
    clients: Count = 100,  # that are generated
    dims: Count = 60,  # numbers of a sample
    classes: Annotated[int, Range(2)] = 10,  # of the labels
    iid: bool = False,  # whether everybody has the first client's law
    max_samples: Count | None = None,  # of a client at most; none: no limit
    test_fraction: Held = 0.2,  # share of a client's samples that goes to the test set
    seed: int = 0,  # of all that is generated
    sample_seed: int | None = None,  # other samples of the same clients; none: the seed
) -> Dataset:
    """Client k draws u ~ N(0, alpha), W and b ~ N(u, 1), B ~ N(0, beta), v ~ N(B, 1) and sees x_j ~ N(v_j, j^-1.2)
    with label argmax(W x + b).

    It has 50 + lognormal(4, 2) samples (at most `max_samples`), of which the last `test_fraction` go to the test
    set. `iid` gives everyone the first client's W, b and v. With another `sample_seed` the same clients, as large as
    before, have other samples. Facts: `weights` [clients, dims, classes], `biases`.
    """
    room("synthetic", clients * dims * (classes + 50), clients=clients, dims=dims, classes=classes)
    rule = np.zeros(clients, np.int64) if iid else np.arange(clients)
    u = alpha * normal(key(seed, "synthetic u", rule), 1)
    weights = (u + normal(key(seed, "synthetic W", rule), dims * classes)).reshape(clients, dims, classes)
    biases = u + normal(key(seed, "synthetic b", rule), classes)
    centres = beta * normal(key(seed, "synthetic B", rule), 1) + normal(key(seed, "synthetic v", rule), dims)
    spread = np.arange(1, dims + 1) ** -0.6

    drawn = seed if sample_seed is None else sample_seed
    sizes = lognormal_sizes(seed, clients, max_samples)
    room("synthetic", int(sizes.sum()) * dims, clients=clients, dims=dims, max_samples=max_samples)
    inputs, targets = np.empty((sizes.sum(), dims), np.float32), np.empty(sizes.sum(), np.int64)
    ends = np.cumsum(sizes)
    for client, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        x = centres[client] + spread * normal(key(drawn, "synthetic x", client, np.arange(size)), dims)
        inputs[end - size : end] = x
        targets[end - size : end] = np.argmax(x @ weights[client] + biases[client], axis=1)

    groups = np.repeat(np.arange(clients), sizes)
    held = np.rint(test_fraction * sizes).astype(np.int64)
    test = np.arange(len(groups)) >= (ends - np.minimum(held, sizes - 1))[groups]
    facts = {"weights": weights, "biases": biases}
    return parted("synthetic", inputs, targets, classes, ~test, test, groups, facts)
