"""Clients with the loss c_i / 2 * |theta - theta_i|^2, whose optimum is known: a test bench, generated.

A sample is input c_i and target theta_i, for a model that is one vector theta.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from turnout.core.allowed import Count
from turnout.core.errors import UserError
from turnout.core.random import key, normal
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import room


@spelt
def load(
    *,
    optima: Sequence[float] | Sequence[Sequence[float]] | None = None,  # of each client; none: drawn
    curvatures: Sequence[float] | None = None,  # of each client; none: 1
    importance: Sequence[float] | None = None,  # of each client; none: equal
    clients: Count = 10,  # optima that are drawn
    dims: Count = 1,  # numbers of an optimum
    samples: Count = 1,  # equal rows of a client
    seed: int = 0,  # of the optima
) -> Dataset:
    """`[n, 1]` curvatures and `[n, dims]` optima, `samples` equal rows a client.

    Without `optima`, `clients` of them are drawn from N(0, 1)^dims; curvatures are 1 and importance p is equal
    unless given. Facts: `optimum` = sum p c theta / sum p c, the `optimal_loss` there, and what it was made of.
    """
    many, wide = (clients, dims) if optima is None else (len(optima), 1)
    room("quadratics", many * samples * (wide + 3), clients=many, dims=wide, samples=samples)
    if optima is None:
        theta = normal(key(seed, "quadratics optima", np.arange(clients)), dims)
    else:
        try:
            theta = np.array(optima, np.float64)
        except ValueError as error:
            raise UserError("dataset quadratics: option optima holds vectors of unequal length") from error
        theta = theta[:, None] if theta.ndim == 1 else theta
        if not theta.size or not np.isfinite(theta).all():
            raise UserError("dataset quadratics: option optima must hold at least one finite number")
    c = _weights("curvatures", curvatures, len(theta))
    p = _weights("importance", importance, len(theta))
    p = p / p.sum()
    optimum = (p * c) @ theta / (p @ c)
    groups = np.repeat(np.arange(len(theta)), samples)
    return Dataset(
        "quadratics",
        torch.from_numpy(c[groups, None].astype(np.float32)),
        torch.from_numpy(theta[groups].astype(np.float32)),
        None,
        groups=groups,
        facts={
            "optimum": optimum,
            "optimal_loss": float(p * c @ np.sum((theta - optimum) ** 2, axis=1) / 2),
            "optima": theta,
            "curvatures": c,
            "importance": p,
        },
    )


def _weights(option: str, given: Sequence[float] | None, clients: int) -> NDArray[np.float64]:
    values = np.ones(clients) if given is None else np.array(given, np.float64)
    if values.shape != (clients,) or not np.isfinite(values).all() or not (values > 0).all():
        raise UserError(f"dataset quadratics: option {option} must be {clients} positive numbers, one a client")
    return values
