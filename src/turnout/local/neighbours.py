"""Prediction by a client's own most similar samples, mixed with what the global model says.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022. Over the k
stored samples whose representations z are nearest to the query's, at distances d:

    local(x)[y]  =  sum over neighbours with label y of w  /  sum over all k of w
    h(x)         =  lambda local(x) + (1 - lambda) global(x)                           of probabilities, never of logits

with w = exp(-d / scale) (`laplace`, as printed), exp(-d^2 / (scale p)) for keys of p numbers (`gaussian`, as in the
authors' experiments) or 1 (`uniform`). For a regression the vote is the mean of the neighbours' values under the same
weights. The functions here are for one client and work under `vmap`.

Neighbours may be found by an index of FAISS, which may be approximate, and are compared exactly: `faiss` searches
everything, in single precision; `faiss:FACTORY` is a string of `faiss.index_factory` (`faiss:HNSW32`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from turnout.core.allowed import Count, OneOf, Positive, Range, Share
from turnout.core.errors import UserError, unknown
from turnout.core.imports import extra, optional
from turnout.core.spelling import Spelt

EXACT = "exact"
MORE = 8  # candidates beyond the k nearest: single precision may take neighbours as far as each other for one another
KERNELS = ("laplace", "gaussian", "uniform")
TUNINGS = ("grid", "loglik")
Kernel = Annotated[str, OneOf(KERNELS)]
Tuning = Annotated[str, OneOf(TUNINGS)]
HeldBack = Annotated[float, Range(least=0, below=1)]  # share of the samples
GRID = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
SMALLEST = 1e-12  # probability, where its logarithm is asked for
QUERIES_AT_ONCE = 128
POSITION = (1 << 24) - 1  # the bits of a squared distance that give way to a position
SAME = 1e-15  # squared distance over the squared norm of the query that is rounding, not distance


class _Bits(torch.autograd.Function):
    """Read the bits of numbers as numbers of another type as wide, in their place; torch 2.11 cannot `vmap` such a
    view."""

    @staticmethod
    def forward(numbers: Tensor, dtype: torch.dtype) -> Tensor:
        return numbers.view(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(_info: Any, in_dims: Any, numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        return numbers.view(dtype), in_dims[0]


def bits_as(dtype: torch.dtype, numbers: Tensor) -> Tensor:
    found: Tensor = _Bits.apply(numbers, dtype)  # type: ignore[no-untyped-call]
    return found


def nearest(keys: Tensor, queries: Tensor, k: int, stored: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Find `[B, k]` distances from the queries `[B, p]` to the nearest of the keys `[n, p]`, in order, and their
    positions.

    Among keys as near as each other the first comes first, on every device: the position takes the place of the lowest
    bits of the squared distance, a float64, which is then sorted as an integer. That leaves differences of 2^-28 to
    tell. Of fewer than k keys all are returned. Keys that `stored` `[n]` denies are infinitely far.
    """
    if len(keys) > POSITION:
        raise UserError(f"capacity: a search among {len(keys)} samples; at most {POSITION} can be told apart")
    wide = keys.double()
    norms = wide.square().sum(1)
    if stored is not None:
        norms = torch.where(stored, norms, torch.inf)
    position = torch.arange(len(keys), device=keys.device)
    found = []
    for part in torch.split(queries.double(), QUERIES_AT_ONCE):
        own = part.square().sum(1, keepdim=True)
        found.append(_first((norms + own).sub(part @ wide.T, alpha=2), own, position, min(k, len(keys))))
    return _unpacked(torch.cat(found), queries, keys.dtype)


def nearest_by(
    index: str, keys: Tensor, queries: Tensor, k: int, stored: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Find the same among the keys that an index finds; fewer where it finds fewer: the others are infinitely far."""
    everybody = torch.ones(len(keys), dtype=torch.bool, device=keys.device) if stored is None else stored
    places = candidates(index, keys, queries, everybody, min(k + MORE, len(keys)))
    near, asked = keys[places.clamp(min=0)].double(), queries.double()
    own = asked.square().sum(1, keepdim=True)
    norms = torch.where(places < 0, torch.inf, near.square().sum(2))
    squares = (norms + own).sub((near * asked[:, None]).sum(2), alpha=2)
    return _unpacked(_first(squares, own, places.clamp(min=0), min(k, len(keys))), queries, keys.dtype)


def _first(squares: Tensor, own: Tensor, position: Tensor, k: int) -> Tensor:
    """Pack `[B, k]` the smallest squared distances, each with a position in the place of its lowest bits."""
    packed = bits_as(torch.int64, torch.maximum(squares, SAME * own)) & ~POSITION
    return packed.bitwise_or_(position).topk(k, largest=False).values


def _unpacked(packed: Tensor, queries: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    own = queries.double().square().sum(1, keepdim=True)
    squares = bits_as(torch.float64, packed & ~POSITION)
    return torch.where(squares > SAME * own, squares, 0).sqrt().to(dtype), packed & POSITION


@dataclass(frozen=True)
class KNN(Spelt):
    """Say how neighbours vote (`k`, `kernel`, `scale`) and how much their vote counts: a client holds back a `fraction`
    of its samples and takes the best lambda for them, of a grid by accuracy (squared error in a regression; the
    smallest of the best) or of [0, 1] by likelihood (`tune` loglik). Who has nothing to hold back takes
    `interpolation`."""

    section: ClassVar[str] = "knn"

    k: Count = 10  # neighbours that vote
    kernel: Kernel = "laplace"  # how a vote falls with distance
    scale: Positive = 1.0  # distance at which it has fallen by e
    tune: Tuning = "grid"  # how lambda is found
    fraction: HeldBack = 0.2  # of the training samples, to tune lambda on
    interpolation: Share = 0.5  # lambda, where it is not tuned
    index: str = EXACT  # how neighbours are found: exact, faiss or faiss:FACTORY

    def __post_init__(self) -> None:
        check_index(f"{self.section}.index", self.index)

    def held_back(self, samples: int) -> int:
        """Count the samples of a client that lambda is tuned on: at least one is held back and one left, of two or
        more."""
        return min(max(1, round(self.fraction * samples)), samples - 1) if self.fraction and samples > 1 else 0

    def weights(self, distances: Tensor, size: int) -> Tensor:
        """Weigh `[B, k]` neighbours with keys of `size` numbers, nearest first; they sum to 1, or to 0 where there are
        none. Relative to the nearest, so that nothing underflows."""
        apart = distances.square() / size if self.kernel == "gaussian" else distances
        further = torch.zeros_like(apart) if self.kernel == "uniform" else (apart - apart[:, :1]) / self.scale
        weights = torch.where(distances == torch.inf, 0, torch.exp(-further))
        return weights / weights.sum(1, keepdim=True).clamp(min=1)

    def vote(self, weights: Tensor, values: Tensor, outputs: int) -> Tensor:
        """Vote `[B, outputs]` by neighbours `[B, k]` that know these values: probabilities of classes, or `[B, k, ...]`
        real values and their mean."""
        if values.is_floating_point():
            return (weights[..., None] * values.reshape(*weights.shape, outputs)).sum(1)
        votes = weights.new_zeros(len(weights), outputs)
        for weight, value in zip(*(torch.split(part, 1, 1) for part in (weights, values)), strict=True):
            votes = votes.scatter_add(1, value, weight)  # neighbour by neighbour: in one order on every device
        return votes

    def local(
        self, keys: Tensor, values: Tensor, queries: Tensor, outputs: int, stored: Tensor | None = None
    ) -> Tensor:
        """Ask `[B, outputs]` what the stored samples alone say of the queries."""
        find = nearest if self.index == EXACT else partial(nearest_by, self.index)
        distances, positions = find(keys, queries, self.k, stored)
        return self.vote(self.weights(distances, keys.shape[1]), values[positions], outputs)

    def tuned(self, local: Tensor, served: Tensor, values: Tensor, real: Tensor) -> Tensor:
        """Find the best lambda for samples with these values, of which the neighbours say `local` and the global model
        `served` `[m, outputs]`; those that are not `real` `[m]` do not count."""
        if self.tune == "loglik":
            if values.is_floating_point():
                raise UserError("tune: loglik needs class labels; a regression is tuned by grid")
            a, b = (part.gather(1, values[:, None])[:, 0] for part in (local, served))
            return likeliest(a, b, real).to(served.dtype)
        scores = torch.stack(
            [torch.where(real, score(mixed(local, served, each), values), 0).sum() for each in GRID],
        )
        return torch.where(scores >= scores.max(), scores.new_tensor(GRID), torch.inf).min()


def flat(values: Tensor) -> Tensor:
    """Flatten to `[B, numbers of a sample]`."""
    return values.unsqueeze(-1).flatten(1)


def check_votes(values: Tensor, outputs: Tensor) -> None:
    """Raise unless neighbours with these values `[n, ...]` can vote beside outputs `[n, outputs]`."""
    classes, each = outputs.shape[1], torch.Size(values.shape[1:]).numel()
    if each != classes if values.is_floating_point() else values.ndim > 1 or classes == 1:
        compared = f"{classes} outputs with targets of shape {tuple(values.shape[1:])}"
        raise UserError(
            f"targets: a memory cannot compare {compared}; it needs class labels and an output for each class, "
            "or a regression's values and as many outputs"
        )


def mixed(local: Tensor, served: Tensor, interpolation: float | Tensor) -> Tensor:
    """Mix `lambda local + (1 - lambda) served`."""
    return interpolation * local + (1 - interpolation) * served


def score(predicted: Tensor, values: Tensor) -> Tensor:
    """Score `[B]` 1 for the right class and 0 for a wrong one; of a regression minus the squared error."""
    if values.is_floating_point():
        return -(predicted - values.view_as(predicted)).square().mean(1)
    return (predicted.argmax(1) == values).to(predicted.dtype)


def likeliest(local: Tensor, served: Tensor, real: Tensor) -> Tensor:
    """Find the lambda that maximises sum log(lambda a + (1 - lambda) b), a and b being the two probabilities `[m]` of
    what was true: concave, so the zero of its slope, or an end. It is 0 just if mean(a / b) <= 1, and 1 just if mean(b
    / a) <= 1 (and not both)."""
    a, b = (part.double().clamp(min=SMALLEST) for part in (local, served))

    def slope(at: Tensor) -> Tensor:
        return torch.where(real, (a - b) / mixed(a, b, at), 0).sum()

    low, high = a.new_zeros(()), a.new_ones(())
    ends = slope(low) <= 0, slope(high) >= 0
    for _ in range(50):
        middle = (low + high) / 2
        rising = slope(middle) > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return torch.where(ends[0], 0, torch.where(ends[1], 1, middle))


def check_index(option: str, index: str) -> None:
    """Raise unless an index is the exact one, or one of FAISS, which must be installed."""
    if index == EXACT:
        return
    if index.partition(":")[0] != "faiss":
        raise unknown(option, index, (EXACT, "faiss", "faiss:FACTORY"))
    _faiss(option)


def index_of(option: str, index: str, keys: Tensor) -> Any:
    """Make the index of FAISS over keys `[n, p]`."""
    rows = keys.cpu().float().contiguous().numpy()
    made = _faiss(option).index_factory(rows.shape[1], index.partition(":")[2] or "Flat")
    made.train(rows)
    made.add(rows)
    return made


def candidates(index: str, keys: Tensor, queries: Tensor, stored: Tensor, count: int) -> Tensor:
    """Find `[B, count]` positions of keys near the queries, in rising order, -1 where none was found; under `vmap`
    there is an index for each client. Only keys that are `stored` `[n]` are searched."""
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
