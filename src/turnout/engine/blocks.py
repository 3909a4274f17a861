"""Rows trained together: what jobs have brought back, here or on another machine.

A block is asked, not taken apart: sums and norms are computed where its rows are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.memory import room_like
from turnout.engine.background import Late
from turnout.engine.convolutions import HAS_TRITON
from turnout.local.sgd import Named

Answer = Callable[[], Tensor]
_AHEAD = 8  # answers on their way at once


class Block(Mapping[str, Tensor]):
    """Vectors by name, `[k, ...]`, a row a job. Rows may be late: whoever asks for them waits."""

    def __init__(self, vectors: Named, late: Late | None = None) -> None:
        self._vectors, self._late = vectors, late

    def __getitem__(self, name: str) -> Tensor:
        return self._with(name)

    def _with(self, name: str, rows: Sequence[int] | None = None) -> Tensor:
        """Give all rows of a vector once these rows are there, or all."""
        if self._late is not None:
            self._late.wait(rows)
        return self._vectors[name]

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)  # without waiting for its rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def rows(self) -> int:
        return max((len(values) for values in self._vectors.values()), default=0)

    @property
    def late(self) -> bool:
        """Tell whether rows may not be there yet, or are elsewhere."""
        return self._late is not None

    def ask(self, method: str, *arguments: object) -> Answer:
        """Ask for what a method of this class returns; another machine begins at once."""
        return partial(getattr(self, method), *arguments)

    def some(self, name: str, rows: Sequence[int]) -> Tensor:
        """Give rows `[len(rows), ...]`, without a copy if they are all."""
        values = self._with(name, rows)
        everybody = range(len(values))
        return values if rows == everybody or list(rows) == list(everybody) else values[list(rows)]

    def weighted_sum(self, name: str, rows: Sequence[int], weights: NDArray[np.float64]) -> Tensor:
        """Compute `sum_i weights[i] * row_i` over these rows."""
        if len(rows) == 1:
            row = _real(self._with(name, rows)[rows[0]])
            return torch.mul(row, float(weights[0]), out=room_like(row))
        if self.sums_in_order(name):
            from turnout.engine.kernels import sums

            return sums.weighted_sum(self._with(name, rows), rows, weights)
        values = _real(self.some(name, rows))
        if values.is_cuda:
            row = _sent(weights.tobytes(), values.dtype, values.device)
        else:
            row = torch.as_tensor(weights, dtype=values.dtype)[None]
        matrix = values if values.ndim == 2 else values.reshape(len(values), -1)
        return torch.mm(row, matrix).view(values.shape[1:])

    def sums_in_order(self, name: str) -> bool:
        """Tell whether a kernel of ours adds rows up where they are, one after another."""
        if self.late or not HAS_TRITON or not self._vectors[name].is_cuda:
            return False
        from turnout.engine.kernels import sums

        return sums.fits(self._vectors[name])

    def norms(self, name: str, rows: Sequence[int]) -> Tensor:
        """Compute Euclidean norms `[len(rows)]`."""
        norms: Tensor = self.some(name, rows).flatten(1).norm(dim=1)
        return norms

    def finite(self, name: str, rows: Sequence[int]) -> Tensor:
        """Say of each row whether all its numbers are finite, `[len(rows)]`."""
        return torch.isfinite(self.some(name, rows)).flatten(1).all(dim=1)

    def put(self, name: str, rows: Sequence[int], values: Tensor) -> Block:
        """Replace these rows, for all who refer to them."""
        here = self[name]
        self._vectors[name] = here.index_copy(0, torch.tensor(list(rows), device=here.device), values.to(here))
        return self

    def take(self, rows: Sequence[int]) -> Block:
        """Make a block of these rows alone."""
        return Block({name: self._with(name, rows)[list(rows)] for name in self._vectors})


NOTHING = Block({})


def _real(values: Tensor) -> Tensor:
    """Convert numbers to a type that can be weighed."""
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())


@lru_cache(maxsize=8)
def _sent(weights: bytes, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Send weights `[1, k]` to a device without waiting for its work; rounds of equal clients send the same once."""
    return torch.tensor(np.frombuffer(weights)[None], dtype=dtype).pin_memory().to(device, non_blocking=True)


def in_order(answers: Iterable[Answer]) -> Iterator[Tensor]:
    """Yield answers in the order in which blocks were asked, with a few asked ahead."""
    asked: deque[Answer] = deque()
    for answer in answers:
        asked.append(answer)
        if len(asked) == _AHEAD:
            yield asked.popleft()()
    while asked:
        yield asked.popleft()()
