"""Clients whose labels come from mixtures of a few shared linear models, generated.

The synthetic data of Marfoq et al. (FedEM), NeurIPS 2021, with labels drawn as the paper says.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from turnout.core.allowed import Count, NotNegative, Positive, WholeNumber
from turnout.core.random import generator, integers, key, normal, uniform
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import lognormal_sizes, parted, room


@spelt
def load(
    *,
    clients: Count = 300,  # that are generated
    components: Count = 3,  # linear models behind the labels
    dims: Count = 150,  # numbers of a sample
    alpha: Positive = 0.4,  # of the Dirichlet law of a client's mixture
    hard: bool = False,  # whether a client has one component only
    noise: NotNegative = 0.1,  # standard deviation before the sigmoid
    max_samples: Count = 1000,  # that a client trains on at most
    test_samples: WholeNumber = 200,  # of each client
    seed: int = 0,  # of all that is generated
) -> Dataset:
    """Components theta ~ U[-1, 1]^dims; client weights pi ~ Dirichlet(alpha), or one component each if `hard`.

    A sample is x ~ U[-1, 1]^dims, z ~ pi, y ~ Bernoulli(sigmoid(<x, theta_z> + noise * N(0, 1))). A client has
    min(50 + lognormal(4, 2), max_samples) of them to train on and `test_samples` more (the paper: 5,000) to test.
    Facts: `components` [components, dims], `weights` [clients, components], `component_of` [n] of training samples.
    """
    samples, mixed = clients * (test_samples + min(max_samples, 50)), components * (clients + components)
    room("linear_mixture", dims * (samples + components), clients=clients, dims=dims, test_samples=test_samples)
    room("linear_mixture", mixed, clients=clients, components=components)
    theta = 2 * uniform(key(seed, "mixture theta", np.arange(components)), dims) - 1
    if hard:
        weights = np.eye(components)[integers(key(seed, "mixture pi", np.arange(clients)), 1, components)[:, 0]]
    else:
        draws = [generator(key(seed, "mixture pi", client)) for client in range(clients)]
        weights = np.stack([draw.dirichlet(np.full(components, alpha)) for draw in draws])

    sizes = lognormal_sizes(seed, clients, max_samples)
    inputs, targets, origin = [], [], []
    for client, size in enumerate(sizes + test_samples):
        sample = np.arange(size)
        x = 2 * uniform(key(seed, "mixture x", client, sample), dims) - 1
        luck = uniform(key(seed, "mixture z y", client, sample), 2)
        z = np.minimum(np.searchsorted(np.cumsum(weights[client]), luck[:, 0], side="right"), components - 1)
        score = np.sum(x * theta[z], axis=1) + noise * normal(key(seed, "mixture noise", client, sample), 1)[:, 0]
        inputs.append(x.astype(np.float32))
        targets.append((luck[:, 1] < expit(score)).astype(np.int64))
        origin.append(z)

    groups = np.repeat(np.arange(clients), sizes + test_samples)
    number = np.concatenate([np.arange(size) for size in sizes + test_samples])
    test = number >= sizes[groups]
    facts = {"components": theta, "weights": weights, "component_of": np.concatenate(origin)[~test]}
    return parted("linear_mixture", np.concatenate(inputs), np.concatenate(targets), 2, ~test, test, groups, facts)
