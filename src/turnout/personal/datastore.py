"""A client's memory: representations of its samples as a frozen model sees them, and what each was.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; Marfoq's thesis
(section 3.6.3) for capacities and for how a memory follows data that change.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turnout import random
from turnout.errors import UserError, unknown
from turnout.personal.knn import KNN, nearest

POLICIES = ("growing", "fifo", "fixed")
KEEP = ("random", "balanced", "coreset")


def fingerprint(model: nn.Module, layer: str = "") -> str:
    """Of a model's weights and the layer that is looked at: keys of another cannot be compared."""
    digest = hashlib.blake2b(layer.encode(), digest_size=16)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_capacity(option: str, capacity: float | int | None) -> None:
    """Raise unless it is a share between 0 and 1 (a float), a number of samples (an int) or None."""
    if capacity is not None and not (capacity >= 0 and (isinstance(capacity, int) or capacity <= 1)):
        raise UserError(f"{option}: {capacity} must be a share from 0.0 to 1.0, or a whole number of samples")


def room(capacity: float | int | None, samples: int) -> int:
    """How many of a client's samples fit."""
    if capacity is None:
        return samples
    return min(capacity, samples) if isinstance(capacity, int) else round(capacity * samples)


@dataclass(frozen=True, eq=False)
class Datastore:
    """Keys and values in the order they came. `model` is the `fingerprint` of what made the keys; a query with those of
    another is refused. `index` is `exact`, `faiss`, or `faiss:FACTORY` with a string of `faiss.index_factory`
    (`faiss:HNSW32`)."""

    keys: Tensor  # [n, p]
    values: Tensor  # [n, ...] class labels, or the values of a regression
    model: str = ""
    index: str = "exact"

    def __post_init__(self) -> None:
        if self.keys.ndim != 2 or len(self.keys) != len(self.values):
            shapes = f"{tuple(self.keys.shape)} with {len(self.values)} values"
            raise UserError(f"datastore: keys of shape {shapes}; it needs [n, p] and n values")
        check_finite("datastore: the key of sample", self.keys)
        if self.index != "exact" and self.index.partition(":")[0] != "faiss":
            raise unknown("datastore.index", self.index, ("exact", "faiss", "faiss:FACTORY"))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Of keys and values in memory."""
        return self.keys.nbytes + self.values.nbytes

    def update(self, keys: Tensor, values: Tensor, policy: str = "growing") -> Datastore:
        """After samples have arrived: `growing` keeps all, `fifo` its size by dropping the oldest, `fixed` ignores
        them."""
        if policy not in POLICIES:
            raise unknown("datastore.policy", policy, POLICIES)
        if policy == "fixed":
            return self
        first = len(keys) if policy == "fifo" else 0
        keys, values = torch.cat([self.keys, keys]), torch.cat([self.values, values])
        return replace(self, keys=keys[first:], values=values[first:])

    def limited(self, count: int, keep: str = "random", seed: int = 0) -> Datastore:
        """With at most `count` entries, in their order: a `random` subset; a `balanced` one, as many of each class as
        there are; or a `coreset` of prototypes, k-means of the keys of each class in proportion."""
        if keep not in KEEP:
            raise unknown("datastore.keep", keep, KEEP)
        if count >= len(self):
            return self
        if keep != "random" and (self.values.is_floating_point() or self.values.ndim > 1):
            raise UserError(f"datastore.keep: {keep} needs class labels; a regression keeps random samples")
        if keep == "coreset":
            return self._prototypes(count, seed)
        order = random.permutation(random.key(seed, "capacity"), len(self))
        if keep == "balanced":
            order = order[np.argsort(_rank_in_class(self.values.cpu().numpy()[order]), kind="stable")]
        rows = torch.as_tensor(np.sort(order[:count]), device=self.keys.device)
        return replace(self, keys=self.keys[rows], values=self.values[rows])

    def _prototypes(self, count: int, seed: int) -> Datastore:
        from sklearn.cluster import KMeans

        keys, labels = self.keys.cpu().numpy(), self.values.cpu().numpy()
        shares = np.sort(labels)[((np.arange(count) + 0.5) * len(self) / count).astype(np.int64)]
        centres, classes = [keys[:0]], [labels[:0]]
        for label, number in zip(*np.unique(shares, return_counts=True), strict=True):
            start = int(random.key(seed, "prototypes", label)) & 0x7FFFFFFF
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # fewer distinct keys than prototypes: some come twice
                found = KMeans(number, n_init=1, random_state=start).fit(keys[labels == label])
            centres.append(found.cluster_centers_.astype(keys.dtype))
            classes.append(np.full(number, label))
        prototypes, values = (torch.as_tensor(np.concatenate(part)).to(self.keys.device) for part in (centres, classes))
        return replace(self, keys=prototypes, values=values)

    def search(self, queries: Tensor, k: int, model: str = "") -> tuple[Tensor, Tensor]:
        """`[B, k]` distances and positions of the nearest entries, in order; of fewer than k all of them."""
        if model != self.model:
            raise UserError("datastore: its keys come from another model or layer; build it again with this one")
        if queries.ndim != 2 or queries.shape[1] != self.keys.shape[1]:
            shape, size = tuple(queries.shape), self.keys.shape[1]
            raise UserError(f"datastore: queries of shape {shape} cannot be compared with keys of {size} numbers")
        check_finite("datastore: the representation of query", queries)
        return nearest(self.keys, queries, k) if self.index == "exact" else self._ask_faiss(queries, k)

    def vote(self, queries: Tensor, knn: KNN, outputs: int, model: str = "") -> Tensor:
        """`[B, outputs]` what the neighbours of the queries say."""
        distances, positions = self.search(queries, knn.k, model)
        return knn.vote(knn.weights(distances, queries.shape[1]), self.values[positions], outputs)

    def _ask_faiss(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        k = min(k, len(self))
        if not k:
            return queries.new_zeros(len(queries), 0), torch.zeros(len(queries), 0, dtype=torch.int64)
        _, found = self._faiss.search(queries.cpu().float().numpy(), k)
        positions = torch.as_tensor(found, device=queries.device).sort(1).values  # -1: none was found
        apart = (self.keys[positions.clamp(min=0)] - queries[:, None]).norm(dim=2)
        distances, order = torch.where(positions < 0, torch.inf, apart).sort(dim=1, stable=True)
        return distances, positions.gather(1, order).clamp(min=0)

    @cached_property
    def _faiss(self) -> Any:
        try:
            import faiss
        except ImportError as error:
            raise UserError("datastore.index: faiss is not installed; pip install 'turnout[faiss]'") from error
        keys = self.keys.cpu().float().contiguous().numpy()
        index = faiss.index_factory(keys.shape[1], self.index.partition(":")[2] or "Flat")
        index.train(keys)
        index.add(keys)
        return index


def check_finite(what: str, rows: Tensor) -> None:
    """Raise with the number of the first row that is not finite."""
    spoilt = ~rows.isfinite().all(1)
    if spoilt.any():
        raise UserError(f"{what} {int(spoilt.nonzero()[0])} is not finite; has the model diverged?")


def _rank_in_class(labels: random.IntArray) -> random.IntArray:
    """How many of the same label come before each."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order])
    rank = np.empty_like(order)
    rank[order] = np.arange(len(labels)) - starts
    return rank
