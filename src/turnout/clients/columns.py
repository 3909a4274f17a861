"""Values of clients: one for all, one each, or drawn once a client and kept as a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from turnout.core.allowed import Range
from turnout.core.errors import UserError
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt

PerClient = float | FloatArray  # one value for everybody, or one a client
Shares = Annotated[PerClient, Range(least=0, most=1)]
Positives = Annotated[PerClient, Range(above=0, below=np.inf)]


def column(name: str, value: PerClient, ids: IntArray) -> FloatArray:
    """The value of each of `ids`."""
    values = np.asarray(value)
    if values.ndim == 0:
        return np.full(len(ids), values, np.float64)
    check_ids(name, len(values), ids)
    return np.asarray(values[ids], np.float64)  # of any kind of number: a large column is never copied


def option(owner: Spelt, name: str, ids: IntArray) -> FloatArray:
    """The value that an option of `owner` has for each of `ids`."""
    return column(f"{owner.section}.{name}", getattr(owner, name), ids)


def check_ids(name: str, clients: int, ids: IntArray) -> None:
    if len(ids) and np.max(ids) >= clients:
        raise UserError(f"{name} is given for {clients} clients; client {np.max(ids)} has none")


def check_members(name: str, given: Sequence[int], clients: int) -> IntArray:
    """The ids of some of so many clients, all of which there are."""
    ids = np.asarray(given, np.int64)
    if len(strangers := ids[(ids < 0) | (ids >= clients)]):
        raise UserError(f"{name}: {strangers[0]} is not one of the {clients} clients, 0 to {clients - 1}")
    return ids


def require(
    name: str, value: PerClient, good: NDArray[np.bool_] | np.bool_, rule: str, ids: IntArray | None = None
) -> None:
    """Raise unless the value is `good` for everybody, naming the first client for whom it is not."""
    if not good.all():
        wrong = np.flatnonzero(~np.atleast_1d(good))
        client = wrong[0] if ids is None else ids[wrong[0]]
        whose = f" of client {client}" if np.ndim(value) else ""
        raise UserError(f"{name}{whose} is {np.atleast_1d(value)[wrong[0]]}; it must be {rule}")


class Once:
    """`draw(seed, ids=...)`, a pure function, for all clients up to the last one ever asked for; of one seed at a time.

    Then a value is looked up, however few clients are asked for.
    """

    def __init__(self, draw: Callable[..., NDArray[Any]]) -> None:
        self._draw = draw
        self._seed: int | None = None
        self._column: NDArray[Any]  # what is known
        self._room: NDArray[Any]  # the array that it is the beginning of

    def __call__(self, seed: int, ids: IntArray) -> NDArray[Any]:
        if seed != self._seed:
            self._seed = seed
            self._column = self._room = self._draw(seed, ids=np.arange(0))
        try:
            return self._column[ids]
        except IndexError:
            self._reach(seed, int(ids.max()) + 1)
            return self._column[ids]

    def _reach(self, seed: int, clients: int) -> None:
        known = len(self._column)
        if clients > len(self._room):
            self._room = np.empty(max(clients, 2 * known), self._column.dtype)
            self._room[:known] = self._column
        self._room[known:clients] = self._draw(seed, ids=np.arange(known, clients))
        self._column = self._room[:clients]
