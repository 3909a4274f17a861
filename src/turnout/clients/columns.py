"""Values of clients, one for all or one each: read and checked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turnout.core.errors import UserError, unknown
from turnout.core.random import FloatArray, IntArray

PerClient = float | FloatArray  # one value for everybody, or one a client


def column(name: str, value: PerClient, ids: IntArray) -> FloatArray:
    """The value of each of `ids`."""
    values = np.asarray(value)
    if values.ndim == 0:
        return np.full(len(ids), values, np.float64)
    check_ids(name, len(values), ids)
    return np.asarray(values[ids], np.float64)  # of any kind of number: a large column is never copied


def check_ids(name: str, clients: int, ids: IntArray) -> None:
    if len(ids) and np.max(ids) >= clients:
        raise UserError(f"{name} is given for {clients} clients; client {np.max(ids)} has none")


def require(
    name: str, value: PerClient, good: NDArray[np.bool_] | np.bool_, rule: str, ids: IntArray | None = None
) -> None:
    """Raise unless the value is `good` for everybody, naming the first client for whom it is not."""
    if not good.all():
        wrong = np.flatnonzero(~np.atleast_1d(good))
        client = wrong[0] if ids is None else ids[wrong[0]]
        whose = f" of client {client}" if np.ndim(value) else ""
        raise UserError(f"{name}{whose} is {np.atleast_1d(value)[wrong[0]]}; it must be {rule}")


def choose(name: str, value: str, *allowed: str) -> None:
    """Raise unless the value is one of those allowed."""
    if value not in allowed:
        raise unknown(name, value, allowed)


def positive(name: str, value: PerClient) -> None:
    values = np.asarray(value)
    if not values.size:
        raise UserError(f"{name} is an empty list; give one number, or one a client")
    require(name, values, (values > 0) & (values < np.inf), "positive and finite")
