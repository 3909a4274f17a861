"""Means that a few rows cannot drag far: pure functions of rows `[k, P]` and weights `[k]` that sum to 1.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018
(the coordinate median and the trimmed mean); Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with
adversaries: Byzantine tolerant gradient descent", NeurIPS 2017 (Krum); Sun, Kairouz, Suresh, McMahan, "Can you really
backdoor federated learning?", 2019 (norm clipping); Karimireddy, He, Jaggi, "Learning from history for Byzantine robust
optimization", ICML 2021 (centred clipping) and "Byzantine-robust learning on heterogeneous datasets via bucketing",
ICLR 2022; Pillutla, Kakade, Harchaoui, "Robust aggregation for federated learning", IEEE Transactions on Signal
Processing 2022 (the geometric median).

Weights count in all of them, with one exception: *whom* Krum and the trimmed mean leave out is decided row by row. A
liar that may claim a large weight is stronger by that; equal weights give the rules as they were published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from turnout.core.allowed import Count, OneOf, Positive, Range, WholeNumber
from turnout.core.errors import UserError
from turnout.core.flat import clip_factors
from turnout.core.random import IntArray, permutation
from turnout.core.spelling import Spelt

Trim = Annotated[float, Range(least=0, below=0.5)]  # share of the values on either side
_TINY = 1e-30
_COLUMNS = 1 << 14  # looked at together: what a sort needs stays small and near


def coordinate_median(rows: Tensor, weights: Tensor) -> Tensor:
    """Compute the weighted median of every coordinate: half of the weight is below, half above. Where a row ends at a
    half (to 1e-5) it is the middle between that value and the next, as the median of an even number is."""

    def median(values: Tensor, sorted_weights: Tensor) -> Tensor:
        below = sorted_weights.cumsum(0)
        ends = ((below < half * below[-1]).sum(0, keepdim=True) for half in (0.5 - 1e-5, 0.5 + 1e-5))
        low, high = (values.gather(0, end.expand(1, values.shape[1]))[0] for end in ends)
        return (low + high) / 2

    return _by_columns(median, rows, weights)


def trimmed_mean(rows: Tensor, weights: Tensor, trim: float = 0.1) -> Tensor:
    """Compute in every coordinate the weighted mean of what is left without the floor(`trim` k) smallest and as many of
    the largest values."""
    kept = slice(int(trim * len(rows)), len(rows) - int(trim * len(rows)))

    def middle(values: Tensor, sorted_weights: Tensor) -> Tensor:
        left = sorted_weights[kept]
        return (left * values[kept]).sum(0) / left.sum(0).clamp(min=_TINY)

    return _by_columns(middle, rows, weights)


def krum(rows: Tensor, weights: Tensor, liars: int = 1) -> Tensor:
    """Pick the one row that has the others nearest: see `krum_scores`. Its weight does not matter."""
    return multi_krum(rows, torch.ones_like(weights), liars, keep=1)


def multi_krum(rows: Tensor, weights: Tensor, liars: int = 1, keep: int | None = None) -> Tensor:
    """Compute the weighted mean of the `keep` rows of the smallest Krum scores: k - `liars` unless given."""
    wanted = max(1, len(rows) - liars) if keep is None else keep
    kept = krum_scores(rows, liars).argsort(stable=True)[:wanted]
    return weights[kept] @ rows[kept] / weights[kept].sum().clamp(min=_TINY)


def norm_clipping(rows: Tensor, weights: Tensor, radius: float) -> Tensor:
    """Compute `sum_i w_i row_i min(1, radius / |row_i|)`."""
    return (weights * clip_factors(rows, radius)) @ rows


def centred_clipping(rows: Tensor, weights: Tensor, start: Tensor, radius: float, iterations: int = 1) -> Tensor:
    """Iterate `v <- v + sum_i w_i (row_i - v) min(1, radius / |row_i - v|)`, from v = `start`."""
    centre = start
    for _ in range(iterations):
        away = rows - centre
        centre = centre + norm_clipping(away, weights, radius)
    return centre


def geometric_median(rows: Tensor, weights: Tensor, smoothing: float = 1e-6, iterations: int = 8) -> Tensor:
    """Find the point v of least `sum_i w_i |v - row_i|`, by smoothed Weiszfeld steps from the mean: the mean of the
    rows with weights `w_i / max(smoothing, |v - row_i|)`."""
    centre = weights @ rows / weights.sum()
    for _ in range(iterations):
        pull = weights / (rows - centre).norm(dim=1).clamp(min=smoothing)
        centre = pull @ rows / pull.sum()
    return centre


def bucketed(rows: Tensor, weights: Tensor, buckets: int, key: IntArray) -> tuple[Tensor, Tensor]:
    """Deal the rows at random into `buckets` of equal size (up to one row): their weighted means, and the sums of
    their weights."""
    dealt = torch.as_tensor(np.argsort(permutation(key, len(rows))), device=rows.device)  # one to each bucket in turn
    rest = -len(rows) % buckets
    total = F.pad(weights[dealt], (0, rest)).view(-1, buckets).sum(0)
    sums = F.pad((weights[:, None] * rows)[dealt], (0, 0, 0, rest)).view(-1, buckets, rows.shape[1]).sum(0)
    return sums / total.clamp(min=_TINY)[:, None], total


def krum_scores(rows: Tensor, liars: int) -> Tensor:
    """Compute `[k]` the sum of the squared distances to the k - `liars` - 2 nearest other rows, at least one. The proof
    needs k > 2 `liars` + 2."""
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for part in torch.split(rows, _COLUMNS, dim=1):
        gram.addmm_(part.double(), part.double().T)
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0).nan_to_num(torch.inf)
    distances.fill_diagonal_(torch.inf)  # a row is no neighbour of its own
    neighbours = max(1, len(rows) - liars - 2)
    return distances.topk(neighbours, largest=False).values.sum(1)


def _by_columns(function: Callable[[Tensor, Tensor], Tensor], rows: Tensor, weights: Tensor) -> Tensor:
    """Apply `[P]` a function of the values `[k, c]` of every coordinate in rising order and the weights they have: `[k,
    c]`, or `[k, 1]` where all are equal. On a CPU numpy sorts, ten times faster than torch."""
    parts, equal = [], bool((weights == weights[0]).all())
    for part in torch.split(rows, _COLUMNS, dim=1):
        if equal:
            values = part.sort(dim=0).values if part.is_cuda else torch.from_numpy(np.sort(part.numpy(), axis=0))
            parts.append(function(values, weights[:, None]))
        else:
            order = part.argsort(dim=0) if part.is_cuda else torch.from_numpy(np.argsort(part.numpy(), axis=0))
            parts.append(function(part.gather(0, order), weights[order]))
    return torch.cat(parts)


# -- rules as parts of a method ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule(Spelt):
    """Make one row of many: what takes the place of the weighted sum. With `buckets` a rule sees the means of that many
    random buckets, whose rows differ less (Karimireddy, He, Jaggi, ICLR 2022)."""

    section: ClassVar[str] = "rule"
    moves_one: ClassVar[bool] = False  # whether it makes something else of a single row

    buckets: WholeNumber = field(
        default=0, kw_only=True
    )  # random groups whose means the rule sees; 0: every update by itself

    def __call__(self, rows: Tensor, weights: Tensor, last: Tensor, key: IntArray) -> Tensor:
        """Combine into `[P]` rows `[k, P]` with weights `[k]` that sum to 1; `last` is the result before, `key` deals
        buckets."""
        if self.buckets:
            rows, weights = bucketed(rows, weights, min(self.buckets, len(rows)), key)
        return self.of(rows, weights, last)

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        """Combine likewise `[P]`, without buckets."""
        raise NotImplementedError

    def too_few(self, rows: int) -> str | None:
        """Say what so many rows are too few for, where they are."""
        return None


@dataclass(frozen=True)
class Mean(Rule):
    """Take the weighted mean, which every method has without a rule: any single row can drag it anywhere."""

    def __post_init__(self) -> None:
        if self.buckets:
            raise UserError(f"rule.buckets: {self.buckets}, but the mean of buckets' means is the mean; leave it out")

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        return weights @ rows


@dataclass(frozen=True)
class CoordinateMedian(Rule):
    """Take the weighted median of every coordinate (Yin et al., ICML 2018)."""

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        return coordinate_median(rows, weights)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Take the weighted mean of every coordinate without its extreme values (Yin et al., ICML 2018)."""

    trim: Trim = 0.1  # share of the values left out on either side

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        return trimmed_mean(rows, weights, self.trim)


@dataclass(frozen=True)
class Krum(Rule):
    """Take the one row that has the others nearest (Blanchard et al., NeurIPS 2017)."""

    liars: WholeNumber = 1  # clients that may send anything

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        return krum(rows, weights, self.liars)

    def too_few(self, rows: int) -> str | None:
        rows = min(self.buckets, rows) if self.buckets else rows
        name = "krum" if type(self) is Krum else "multi_krum"
        return f"{name} needs more than 2 liars + 2" if rows <= 2 * self.liars + 2 else None


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Take the weighted mean of the rows that have the others nearest (Blanchard et al., NeurIPS 2017)."""

    keep: Count | None = None  # rows the mean is of; none: all but the liars

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        return multi_krum(rows, weights, self.liars, self.keep)


@dataclass(frozen=True)
class NormClipping(Rule):
    """Take the weighted mean of rows of a bounded norm (Sun et al., 2019)."""

    moves_one: ClassVar[bool] = True

    radius: Positive  # largest norm of an update

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        return norm_clipping(rows, weights, self.radius)


@dataclass(frozen=True)
class CentredClipping(Rule):
    """Move the last result by clipped differences (Karimireddy, He, Jaggi, ICML 2021)."""

    moves_one: ClassVar[bool] = True

    radius: Positive  # largest norm of the difference from the last result
    iterations: Count = 1  # times the centre is moved

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        return centred_clipping(rows, weights, last, self.radius, self.iterations)


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """Take the point of least weighted distance to all rows (Pillutla, Kakade, Harchaoui, 2022)."""

    iterations: Count = 8  # of the smoothed Weiszfeld algorithm

    def of(self, rows: Tensor, weights: Tensor, last: Tensor) -> Tensor:
        return geometric_median(rows, weights, iterations=self.iterations)


RULES: dict[str, type[Rule]] = {
    "mean": Mean,
    "coordinate_median": CoordinateMedian,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "multi_krum": MultiKrum,
    "norm_clipping": NormClipping,
    "centred_clipping": CentredClipping,
    "geometric_median": GeometricMedian,
}
RuleName = Annotated[str, OneOf(tuple(RULES))]
