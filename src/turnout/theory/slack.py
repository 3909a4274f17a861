"""The slack factor of a region: the share of the clients woken there that bring their work to an end.

Wu et al., "Accelerating federated learning over reliability-agnostic clients in mobile edge computing systems", IEEE
Transactions on Parallel and Distributed Systems 2021 (HybridFL); Wu's thesis (Warwick), section 4.4.2. To have C N_r
survivors, an edge wakes C_r N_r clients,

    C_r = C / theta_r,

where theta_r is the mean reliability of a region whose clients nobody may identify: there are counts, and nothing else.
The printed estimator (`source_literal`) never moves; `count_late` and `censored` are not from the source.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from turnout.core.allowed import Fraction, OneOf
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt

FLOOR, CEILING = 0.02, 0.995


def _no_region() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True)
class Counts:
    """All that is known of one round, over regions `[M]`."""

    size: IntArray  # N_r
    selected: IntArray  # told to train
    submitted: IntArray  # whose models arrived before the close, |Psi_r|
    survivors: IntArray  # heard of by the end of the window, |X_r|; where nobody may be late, the submitted
    closed_by_quota: bool


def quota(fraction: float, clients: int) -> int:
    """ceil(C N) submissions close a round; at least 1."""
    return max(1, int(np.ceil(np.round(fraction * clients, 9))))


def woken(fraction: float, theta: FloatArray, size: IntArray) -> IntArray:
    """`[M]` clients told to train: ceil(C_r N_r) with C_r = C / theta_r, from 1 to N_r."""
    wanted = np.ceil(np.round(fraction / np.maximum(theta, FLOOR) * size, 9)).astype(np.int64)
    return np.minimum(np.maximum(wanted, 1), size)


@dataclass
class Slack(Spelt):
    """An estimator; subclasses learn from the counts of finished rounds."""

    section: ClassVar[str] = "algorithm"
    counts_late: ClassVar[bool] = False  # whether late survivors go on and say when they are done

    theta_init: Fraction = 0.5
    theta: FloatArray = field(default_factory=_no_region, init=False)  # [M]

    def begin(self, fraction: float, regions: int) -> None:
        """Before the first round; `fraction` is C."""
        self.theta = np.full(regions, self.theta_init)

    def observe(self, counts: Counts) -> None:
        raise NotImplementedError


@dataclass
class CountLate(Slack):
    """Late survivors send a ping without a model or a name: theta_r = (theta_1 + sum |X_r|) / (1 + sum |S_r|). Unbiased
    but for the prior, which counts as one client; late work is done in vain."""

    counts_late = True

    selected: FloatArray = field(default_factory=_no_region, init=False)  # [M]
    survivors: FloatArray = field(default_factory=_no_region, init=False)  # [M]

    def begin(self, fraction: float, regions: int) -> None:
        super().begin(fraction, regions)
        self.selected, self.survivors = np.zeros(regions), np.zeros(regions)

    def observe(self, counts: Counts) -> None:
        self.selected = self.selected + counts.selected
        self.survivors = self.survivors + counts.survivors
        self.theta = (self.theta_init + self.survivors) / (1 + self.selected)


@dataclass
class Censored(Slack):
    """Expectation maximisation for counts cut at the quota, over the last `window` rounds. If the quota closed a round,
    it had more survivors than were seen, in expectation E[X | X >= quota] with X normal; else all were seen.

    Good for large regions. A quota that is always reached says little: where it is small and clients are dependable,
    about twice as many as needed are woken.
    """

    window: int = 30
    iterations: int = 10
    prior_weight: float = 1.0
    selected: IntArray = field(default_factory=lambda: np.zeros((0, 0), np.int64), init=False)  # [W, M]
    submitted: IntArray = field(default_factory=lambda: np.zeros((0, 0), np.int64), init=False)  # [W, M]
    closed_by_quota: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), init=False)  # [W]

    def begin(self, fraction: float, regions: int) -> None:
        super().begin(fraction, regions)
        self.selected, self.submitted = np.zeros((0, regions), np.int64), np.zeros((0, regions), np.int64)
        self.closed_by_quota = np.zeros(0, bool)

    def observe(self, counts: Counts) -> None:
        self.selected = np.vstack([self.selected, counts.selected])[-self.window :]
        self.submitted = np.vstack([self.submitted, counts.submitted])[-self.window :]
        self.closed_by_quota = np.append(self.closed_by_quota, counts.closed_by_quota)[-self.window :]
        for _ in range(self.iterations):
            self.theta = self._maximised()

    def _maximised(self) -> FloatArray:
        seen = self.submitted.sum(axis=1)
        mean = self.selected @ self.theta
        sd = np.sqrt(np.maximum(self.selected @ (self.theta * (1 - self.theta)), 1e-12))
        above = (seen - 0.5 - mean) / sd
        hazard = np.exp(-(above**2) / 2 - log_ndtr(-above)) / np.sqrt(2 * np.pi)  # phi / (1 - Phi)
        expected = np.where(self.closed_by_quota, np.maximum(seen, mean + sd * hazard), seen)
        scale = np.divide(expected, seen, out=np.ones(len(seen)), where=seen > 0)  # 1 / q
        survivors = np.minimum(self.selected, self.submitted * scale[:, None]).sum(axis=0)
        weight = self.prior_weight
        theta = (weight * self.theta_init + survivors) / (weight + self.selected.sum(axis=0))
        return np.asarray(np.clip(theta, FLOOR, CEILING))


@dataclass
class LeastSquares(Slack):
    """theta_r = sum x |Psi_r| / (N_r sum x^2) with x = C_r q_r, C_r the share woken, q_r the share in time."""

    fraction: float = field(default=0.0, init=False)  # C
    products: FloatArray = field(default_factory=_no_region, init=False)  # [M]
    squares: FloatArray = field(default_factory=_no_region, init=False)  # [M]

    def begin(self, fraction: float, regions: int) -> None:
        super().begin(fraction, regions)
        self.fraction, self.products, self.squares = fraction, np.zeros(regions), np.zeros(regions)

    def in_time(self, counts: Counts) -> FloatArray:
        """`[M]` q_r."""
        raise NotImplementedError

    def observe(self, counts: Counts) -> None:
        size = np.maximum(counts.size, 1)
        x = counts.selected / size * self.in_time(counts)
        self.products = self.products + x * counts.submitted / size
        self.squares = self.squares + x**2
        self.theta = np.divide(self.products, self.squares, out=self.theta.copy(), where=self.squares > 0)


@dataclass
class OracleQ(LeastSquares):
    """With the true q_r = |Psi_r| / |X_r|, which no edge knows in time; 1 where nobody survived."""

    counts_late = True

    def in_time(self, counts: Counts) -> FloatArray:
        return np.where(counts.survivors > 0, counts.submitted / np.maximum(counts.survivors, 1), 1.0)


@dataclass
class SourceLiteral(LeastSquares):
    """As derived in the source, with q_r = |Psi_r| / (C N_r). Then C_r is an average of the C_r before and **never
    leaves its first value**; printed with the number selected in the place of |Psi_r|, theta_r goes to 1."""

    def in_time(self, counts: Counts) -> FloatArray:
        return np.asarray(counts.submitted / (self.fraction * np.maximum(counts.size, 1)))


@dataclass
class Fixed(Slack):
    """theta_r = theta_1, for ever."""

    def observe(self, counts: Counts) -> None:
        pass


ESTIMATORS: dict[str, type[Slack]] = {
    "count_late": CountLate,
    "censored": Censored,
    "oracle_q": OracleQ,
    "fixed": Fixed,
    "source_literal": SourceLiteral,
}


Estimator = Annotated[str, OneOf(tuple(ESTIMATORS))]


def estimator(name: Estimator, theta_init: float) -> Slack:
    """Make the estimator of that name, which first thinks of a share `theta_init` of survivors."""
    return ESTIMATORS[name](theta_init)


# -- rounds that late survivors may still answer ---------------------------------------------------------------

_ROWS = [part.name for part in fields(Counts) if part.name != "closed_by_quota"]


@dataclass
class Ledger:
    """What the edges write down of R rounds whose windows are open: counts by region, and no names."""

    versions: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [R]
    until: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [R] seconds
    counts: IntArray = field(default_factory=lambda: np.zeros((0, 0, 0), np.int64), init=False)  # [R, 4, M]
    closed_by_quota: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), init=False)  # [R]

    def open(self, version: int, until: float, counts: Counts) -> None:
        """A round has closed; its late survivors are counted until then."""
        rows = np.stack([getattr(counts, name) for name in _ROWS])[None]
        self.versions, self.until = np.append(self.versions, version), np.append(self.until, until)
        self.counts = np.concatenate([self.counts, rows]) if self.counts.size else rows
        self.closed_by_quota = np.append(self.closed_by_quota, counts.closed_by_quota)

    def ping(self, versions: IntArray, regions: IntArray, at: FloatArray) -> None:
        """Survivors of those rounds are done, too late to count for anything else."""
        self._add("survivors", 1, versions, regions, at)

    def withdraw(self, versions: IntArray, regions: IntArray) -> None:
        """Clients dropped the work of those rounds, for newer work: they are neither lost nor survivors."""
        self._add("selected", -1, versions, regions, np.full(len(versions), -np.inf))

    def _add(self, row: str, number: int, versions: IntArray, regions: IntArray, at: FloatArray) -> None:
        place = np.searchsorted(self.versions, versions)
        known = np.isin(versions, self.versions)
        known[known] = np.round(at[known] - self.until[place[known]], 6) <= 0
        if not known.any():
            return
        of_row = self.counts[:, _ROWS.index(row)]
        where = np.ravel_multi_index((place[known], regions[known]), of_row.shape)
        of_row += number * np.bincount(where, minlength=of_row.size).reshape(of_row.shape)

    def close(self, now: float) -> list[Counts]:
        """The rounds whose windows have passed, which are final and leave the ledger."""
        over = self.until <= now
        final = zip(self.counts[over], self.closed_by_quota[over].tolist(), strict=True)
        done = [Counts(**dict(zip(_ROWS, rows, strict=True)), closed_by_quota=full) for rows, full in final]
        self.versions, self.until = self.versions[~over], self.until[~over]
        self.counts, self.closed_by_quota = self.counts[~over], self.closed_by_quota[~over]
        return done
