"""A client's memory: representations of its samples as a frozen model sees them, and what each was; with less room than
there are samples, which of them it keeps, or what stands for them.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; Marfoq's thesis
(section 3.6.3) for capacities and for how a memory follows data that change. It keeps a random subset, and learns
prototypes in another experiment; k-means of each class is the simplest form of those.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from turnout.core import random
from turnout.core.allowed import OneOf, Range
from turnout.core.errors import UserError, unknown
from turnout.local.neighbours import KNN, index_of, nearest

KEEP = ("random", "balanced", "coreset")
Keeping = Annotated[str, OneOf(KEEP)]  # which samples
Capacity = Annotated[float | int, Range(least=0)]  # a share of the samples (a float), or how many (an int)
PASSES = 10  # of k-means


def check_keep(option: str, keep: str, values: Tensor | None = None) -> None:
    """Raise unless it is a rule for samples with such values."""
    if keep not in KEEP:
        raise unknown(option, keep, KEEP)
    if keep != "random" and values is not None and (values.is_floating_point() or values.ndim > 1):
        raise UserError(f"{option}: {keep} needs class labels; a regression keeps random samples")


def subset(labels: Tensor, among: Tensor, rank: Tensor, number: Tensor | int, balanced: bool) -> Tensor:
    """Say `[n]` whether a sample is one of the `number` that are kept of those `among` which there are: the last of
    them by their `rank` in a shuffle; where `balanced`, the last of each class in turns."""
    order = torch.where(among, -rank, len(rank)).argsort(stable=True)  # in which they are taken
    if balanced:
        turn = torch.where(among[order], rank_in_class(labels[order]), len(rank))
        order = order[turn.argsort(stable=True)]
    return among & (order.argsort() < number)


def rank_in_class(labels: Tensor) -> Tensor:
    """Count `[n]` how many of the same label come before each."""
    order = labels.argsort(stable=True)
    ordered, place = labels[order], torch.arange(len(labels), device=labels.device)
    first = torch.where(ordered != ordered.roll(1), place, 0).cummax(0).values  # of its class
    return (place - first)[order.argsort()]


def prototypes(
    keys: Tensor, labels: Tensor, among: Tensor, number: Tensor | int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute keys `[most, p]` and labels of `number` prototypes, which come first, and whether a row is one: k-means
    of each class of the samples `among` `[n]`, begun at samples far apart, as many of a class as in proportion to its
    size."""
    place = torch.arange(most, device=keys.device)
    stored = place < number
    by_class = torch.where(among, labels, torch.iinfo(labels.dtype).max).argsort(stable=True)
    share = (place.double() + 0.5) * among.sum() / torch.where(stored, number, torch.inf)
    classes = labels[by_class[share.long()]]
    wide, far = keys.double(), torch.where(among, torch.inf, -1.0).double()
    norms, begun = wide.square().sum(1), []
    for own in classes.unbind():
        row = torch.where(labels == own, far, -torch.inf).argmax()
        centre = wide.index_select(0, row.view(1))
        apart = (norms - 2 * (wide @ centre[0]) + centre.square().sum()).clamp(min=0)
        far = torch.where(labels == own, torch.minimum(far, apart), far)
        begun.append(centre)
    centres = torch.cat([wide[:0], *begun])
    foreign = (labels[:, None] != classes) | ~stored
    for _ in range(PASSES if most else 0):
        apart = centres.square().sum(1) - 2 * wide @ centres.T
        nearest = torch.where(foreign, torch.inf, apart).argmin(1)
        members = ((nearest[:, None] == place) & among[:, None]).to(wide)
        sizes = members.sum(0)[:, None]
        centres = torch.where(sizes > 0, members.T @ wide / sizes.clamp(min=1), centres)
    return centres.to(keys), classes, stored


POLICIES = ("growing", "fifo", "fixed")


def fingerprint(model: nn.Module, layer: str = "") -> str:
    """Digest a model's weights and the layer that is looked at: keys of another cannot be compared."""
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
    """Count how many of a client's samples fit."""
    if capacity is None:
        return samples
    return min(capacity, samples) if isinstance(capacity, int) else round(capacity * samples)


def check_growth(capacity: float | int | None, kept: int, arrived: int) -> None:
    """Raise where not all that has arrived fits beside what is kept; a share below all samples never has room."""
    if capacity is None or not arrived:
        return
    if kept + arrived > capacity if isinstance(capacity, int) else capacity < 1:
        raise UserError(f"policy: growing keeps {arrived} samples beside {kept}, past capacity {capacity}; use fifo")


@dataclass(frozen=True, eq=False)
class Datastore:
    """Keep keys and values in the order they came. `model` is the `fingerprint` of what made the keys; a query with
    those of another is refused. `index` is `exact`, `faiss`, or `faiss:FACTORY` with a string of `faiss.index_factory`
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
        """Count the bytes of keys and values in memory."""
        return self.keys.nbytes + self.values.nbytes

    def update(self, keys: Tensor, values: Tensor, policy: str = "growing") -> Datastore:
        """Add samples that have arrived: `growing` keeps all, `fifo` its size by dropping the oldest, `fixed` ignores
        them."""
        if policy not in POLICIES:
            raise unknown("datastore.policy", policy, POLICIES)
        if policy == "fixed":
            return self
        self._check_size("new keys", keys)
        first = len(keys) if policy == "fifo" else 0
        keys, values = torch.cat([self.keys, keys]), torch.cat([self.values, values])
        return replace(self, keys=keys[first:], values=values[first:])

    def limited(self, count: int, keep: str = "random", seed: int = 0) -> Datastore:
        """Keep at most `count` entries, in their order: a `random` subset; a `balanced` one, as many of each class as
        there are; or a `coreset` of prototypes, k-means of the keys of each class in proportion."""
        check_keep("datastore.keep", keep, self.values)
        if count >= len(self):
            return self
        everybody = torch.ones(len(self), dtype=torch.bool, device=self.keys.device)
        if keep == "coreset":
            keys, values, _ = prototypes(self.keys, self.values, everybody, count, count)
            return replace(self, keys=keys, values=values)
        order = torch.as_tensor(random.permutation(random.key(seed, "capacity"), len(self)), device=self.keys.device)
        kept = subset(self.values, everybody, len(self) - 1 - order.argsort(), count, keep == "balanced")
        return replace(self, keys=self.keys[kept], values=self.values[kept])

    def search(self, queries: Tensor, k: int, model: str = "") -> tuple[Tensor, Tensor]:
        """Find `[B, k]` distances and positions of the nearest entries, in order; of fewer than k all of them."""
        if model != self.model:
            raise UserError("datastore: its keys come from another model or layer; build it again with this one")
        self._check_size("queries", queries)
        check_finite("datastore: the representation of query", queries)
        return nearest(self.keys, queries, k) if self.index == "exact" else self._ask_faiss(queries, k)

    def _check_size(self, what: str, rows: Tensor) -> None:
        size = self.keys.shape[1]
        if rows.ndim != 2 or rows.shape[1] != size:
            shape = tuple(rows.shape)
            raise UserError(f"datastore: {what} of shape {shape} cannot be compared with keys of {size} numbers")

    def vote(self, queries: Tensor, knn: KNN, outputs: int, model: str = "") -> Tensor:
        """Ask `[B, outputs]` what the neighbours of the queries say."""
        distances, positions = self.search(queries, knn.k, model)
        return knn.vote(knn.weights(distances, queries.shape[1]), self.values[positions], outputs)

    def _ask_faiss(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        k = min(k, len(self))
        if not k:
            return queries.new_zeros(len(queries), 0), queries.new_zeros(len(queries), 0, dtype=torch.int64)
        _, found = self._faiss.search(queries.cpu().float().numpy(), k)
        positions = torch.as_tensor(found, device=queries.device).sort(1).values  # -1: none was found
        apart = (self.keys[positions.clamp(min=0)] - queries[:, None]).norm(dim=2)
        distances, order = torch.where(positions < 0, torch.inf, apart).sort(dim=1, stable=True)
        return distances, positions.gather(1, order).clamp(min=0)

    @cached_property
    def _faiss(self) -> Any:
        return index_of("datastore.index", self.index, self.keys)


def check_finite(what: str, rows: Tensor) -> None:
    """Raise with the number of the first row that is not finite."""
    spoilt = ~rows.isfinite().all(1)
    if spoilt.any():
        raise UserError(f"{what} {int(spoilt.nonzero()[0])} is not finite; has the model diverged?")
