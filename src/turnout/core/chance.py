"""What chance explains: differences between settings, who was heard, and whom that concerns.

Each function answers one question with a test that is valid for as few numbers as runs have, and says what it rests on.
All p-values are two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.core import random
from turnout.core.random import FloatArray, IntArray
from turnout.core.statistics import interval

LEVEL = 0.05  # what is less likely than this is called more than chance
_POWER = 0.8
_DRAWS = 999  # permutations, where there are too many to take them all
_EXACT = 8  # clients whose permutations are all taken
_MOST_CLIENTS = 2000  # above, ranks are so many that their correlation is as good as normal
_MOST_JOBS = 50_000  # permuted; of longer records some clients in all blocks are looked at, or some blocks
_FEW_JOBS = 5_000  # up to so many are permuted as often as others
_A_BLOCK = 10  # clients that a block keeps
_ROUND_OFF = 1e-12  # relative


@dataclass(frozen=True)
class Difference:
    """How far one setting is above another in the mean."""

    mean: float
    half_width: float  # of its 95 % Student interval; infinite where there is one seed
    p: float  # NaN where a test has nothing to go by: one seed, or no spread over seeds
    seeds: int  # pairs; where nothing pairs, runs of the setting with fewer
    paired: bool
    spread: float = math.nan  # standard deviation of the pairs' differences

    @property
    def test(self) -> str:
        return "paired t-test" if self.paired else "Welch's t-test"

    @property
    def alike(self) -> bool:
        """Whether the two differ by the same in every seed."""
        return self.seeds > 1 and math.isnan(self.p)

    def seeds_needed(self) -> int | None:
        """About how many seeds tell a difference like this from chance four times in five; None beyond a thousand."""
        from scipy.stats import norm

        if not self.mean or not self.spread > 0:
            return None
        quantiles = float(norm.ppf(1 - LEVEL / 2) + norm.ppf(_POWER))
        needed = math.ceil((quantiles * self.spread / self.mean) ** 2 + 2)  # 2: the spread is itself estimated
        return needed if needed <= 1000 else None


def difference(ours: Mapping[int | None, float], theirs: Mapping[int | None, float]) -> Difference:
    """Compare the values of two settings by seed: where two seeds or more are in both, by a paired t-test, since one
    seed deals both the same samples, first model, devices and crashes; else by Welch's.

    Rank tests would ask for less than normal differences, but with five pairs they cannot reach p = 0.05 at all.
    """
    from scipy import stats

    both = [seed for seed in ours if seed in theirs]
    if len(both) > 1:
        gaps = np.array([ours[seed] - theirs[seed] for seed in both])
        scale = max(abs(value) for side in (ours, theirs) for value in side.values())
        mean, half_width = interval(gaps)
        if np.ptp(gaps) <= _ROUND_OFF * scale:
            return Difference(mean, 0.0, 1.0 if abs(mean) <= _ROUND_OFF * scale else math.nan, len(both), True, 0.0)
        p = float(stats.ttest_1samp(gaps, 0.0).pvalue)
        return Difference(mean, half_width, p, len(both), True, float(gaps.std(ddof=1)))
    one, other = np.array(list(ours.values())), np.array(list(theirs.values()))
    mean, fewer = float(one.mean() - other.mean()), min(len(one), len(other))
    if fewer < 2:
        return Difference(mean, math.inf, math.nan, fewer, len(both) == 1)
    if not (one.std() > 0 or other.std() > 0):
        return Difference(mean, 0.0, math.nan if mean else 1.0, fewer, False)
    found = stats.ttest_ind(one, other, equal_var=False)
    low, high = found.confidence_interval(1 - LEVEL)
    return Difference(mean, float(high - low) / 2, float(found.pvalue), fewer, False)


def holm(values: Sequence[float]) -> list[float]:
    """P-values of a family of questions, raised so that all are right at once (Holm's method); NaN is no question."""
    found = np.asarray(values, np.float64)
    asked = np.flatnonzero(~np.isnan(found))
    order = asked[np.argsort(found[asked], kind="stable")]
    raised = np.maximum.accumulate(found[order] * np.arange(len(order), 0, -1))
    found[order] = np.minimum(raised, 1.0)
    return [float(value) for value in found]


@dataclass(frozen=True)
class Association:
    """How two properties of clients go together: Spearman's rank correlation."""

    rho: float
    p: float
    clients: int


def association(one: FloatArray, other: FloatArray) -> Association | None:
    """Whether clients with more of one have more of the other; None where either is the same for all, or unknown for
    all but three.

    By ranks, since sizes and speeds have long tails; p by permuting clients (all orders of up to eight), since many are
    tied at zero. The unit is the client: rounds repeat what a client is and are no new evidence of it."""
    from scipy import stats

    known = np.isfinite(one) & np.isfinite(other)
    first, second = (stats.rankdata(values[known]) for values in (one, other))
    if known.sum() < 4 or not np.ptp(first) or not np.ptp(second):
        return None
    first, second = ((ranks - ranks.mean()) / ranks.std() for ranks in (first, second))
    rho = float((first * second).mean())
    if len(first) > _MOST_CLIENTS:
        return Association(rho, float(stats.spearmanr(first, second).pvalue), len(first))
    draws = math.factorial(_EXACT) if len(first) <= _EXACT else _DRAWS
    tested = stats.permutation_test(
        (first,),
        lambda ranks, axis: (ranks * second).mean(axis),
        permutation_type="pairings",
        n_resamples=draws,
        batch=500,
        vectorized=True,
        rng=random.generator(random.key(0, "association")),
    )
    return Association(rho, float(tested.pvalue), len(first))


def same_ones(block: IntArray, who: IntArray, out: NDArray[np.bool_]) -> tuple[float, int] | None:
    """Whether it is always the same that are out: the p-value, and how many blocks tell; None where no block has both.

    A row is a client `who` was in a `block`, and whether it was out. If it were chance, those who are out in a block
    would be a random draw of those in it; so they are drawn again within each block, and the p-value is how often
    clients' counts are as far from what is expected, sum of (times out - expected)^2 / variance. That is Cochran's Q
    where all are in every block, and asks for nothing where some are not: who was to be in a block may depend on the
    client."""
    block, who, out = _telling(block, who, out)
    if not len(block):
        return None
    clients, who = np.unique(who, return_inverse=True)
    sizes = np.bincount(block)
    share = (np.bincount(block, out) / sizes)[block]
    expected = np.bincount(who, share)
    variance = np.bincount(who, share * (1 - share))  # positive: every block has both

    def far(out: NDArray[np.bool_]) -> float:
        return float((np.square(np.bincount(who, out, len(clients)) - expected) / variance).sum())

    draws = _DRAWS if len(block) <= _FEW_JOBS else _DRAWS // 5
    keys = random.key(0, "same ones", np.arange(draws))
    drawn = [far(out[np.argsort(block + random.uniform(key, len(block)))]) for key in keys]
    return float((1 + (np.array(drawn) >= far(out) * (1 - _ROUND_OFF)).sum()) / (1 + draws)), len(sizes)


def _telling(block: IntArray, who: IntArray, out: NDArray[np.bool_]) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """The rows of blocks in which some are out and some are not, in order of blocks, which are numbered anew."""
    if len(block) > _MOST_JOBS:
        blocks = int(np.count_nonzero(np.bincount(block)))
        every = max(1, min(math.ceil(len(block) / _MOST_JOBS), len(block) // (_A_BLOCK * blocks)))
        some = who % every == 0
        block, who, out = block[some], who[some], out[some]
    sizes = np.bincount(block)
    chosen = np.flatnonzero(np.bincount(block, out) % np.maximum(sizes, 1) > 0)
    rows = sizes[chosen].sum()
    if rows > _MOST_JOBS:
        chosen = chosen[:: math.ceil(rows / _MOST_JOBS)]
    wanted = np.zeros(len(sizes), bool)
    wanted[chosen] = True
    kept = np.flatnonzero(wanted[block])
    kept = kept[np.argsort(block[kept], kind="stable")]
    _, numbers = np.unique(block[kept], return_inverse=True)
    return numbers, who[kept], out[kept]


def left_out(clients: int, asked: IntArray) -> tuple[float, float]:
    """How many of the clients would never be asked in expectation, and the standard deviation, if each round asked so
    many of them with equal chances."""
    share = np.minimum(asked / clients, 1.0)
    one = float(np.prod(1 - share))
    two = float(np.prod((1 - share) * np.maximum(clients - asked - 1, 0) / max(clients - 1, 1)))
    expected = clients * one
    variance = expected * (1 - one) + clients * (clients - 1) * (two - one * one)
    return expected, math.sqrt(max(variance, 0.0))
