"""Neighbours found by an index of FAISS, which may be approximate, and compared exactly.

`faiss` searches everything, in single precision; `faiss:FACTORY` is a string of `faiss.index_factory` (`faiss:HNSW32`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turnout.core.errors import unknown
from turnout.core.imports import extra, optional

EXACT = "exact"
MORE = 8  # candidates beyond the k nearest: single precision may take neighbours as far as each other for one another


def check_index(option: str, index: str) -> None:
    """Raise unless it is the exact one, or one of FAISS, which must be installed."""
    if index == EXACT:
        return
    if index.partition(":")[0] != "faiss":
        raise unknown(option, index, (EXACT, "faiss", "faiss:FACTORY"))
    _faiss(option)


def index_of(option: str, index: str, keys: Tensor) -> Any:
    """The index of FAISS over keys `[n, p]`."""
    rows = keys.cpu().float().contiguous().numpy()
    made = _faiss(option).index_factory(rows.shape[1], index.partition(":")[2] or "Flat")
    made.train(rows)
    made.add(rows)
    return made


def candidates(index: str, keys: Tensor, queries: Tensor, stored: Tensor, count: int) -> Tensor:
    """`[B, count]` positions of keys near the queries, in rising order, -1 where none was found; under `vmap` there is
    an index for each client. Only keys that are `stored` `[n]` are searched."""
    found: Tensor = _Candidates.apply(index, keys, queries, stored, count)  # type: ignore[no-untyped-call]
    return found


class _Candidates(torch.autograd.Function):
    @staticmethod
    def forward(index: str, keys: Tensor, queries: Tensor, stored: Tensor, count: int) -> Tensor:
        rows = stored.nonzero()[:, 0]
        found = torch.full((len(queries), count), -1, device=queries.device)
        if len(rows):
            most = min(count, len(rows))
            _, near = index_of("algorithm.index", index, keys[rows]).search(queries.cpu().float().numpy(), most)
            places = torch.as_tensor(near, device=queries.device)
            found[:, :most] = torch.where(places < 0, -1, rows[places.clamp(min=0)])
        return found.sort(1).values

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, index: str, keys: Tensor, queries: Tensor, stored: Tensor, count: int
    ) -> tuple[Tensor, int]:
        parts = [
            part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in zip((keys, queries, stored), in_dims[1:4], strict=True)
        ]
        found = [candidates(index, own, asked, kept, count) for own, asked, kept in zip(*parts, strict=True)]
        return torch.stack(found), 0


def _faiss(option: str) -> Any:
    return optional(option, "faiss", extra("faiss"))
