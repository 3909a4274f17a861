"""What is drawn once a client, kept as a column: a look-up, however few clients are asked for."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turnout.core.random import IntArray


class _Drawn(Protocol):
    """A pure function of seed and client."""

    def __call__(self, seed: int, *, ids: IntArray) -> NDArray[Any]: ...


class Once:
    """`draw(seed, ids=...)`, computed for all clients up to the last one ever asked for; of one seed at a time."""

    def __init__(self, draw: _Drawn) -> None:
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
