"""Who sends something other than it should have computed: tests of updates, one step after the other.

Fraboni, Vidal, Lorenzi, "Free-rider attacks on model aggregation in federated learning", AISTATS 2021, recommend to
look at the distribution of updates; Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021 (spectral).

A detector gives every client of a step a score, larger where it is more suspect, a p-value and what it saw. Detectors
of free-riders ask whether an update could be isotropic noise: their null is **noise**, and suspect is whom it cannot be
ruled out for. The others have the null **honest**. Scores are in standard deviations of the null where it has any, and
whoever is above the `limit` is suspected. With D parameters a cosine of noise with any vector is N(0, 1 / D).

All are vectorised over clients, and need the updates themselves: not under secure aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.special import chdtrc, ndtr
from torch import Tensor

from turnout.core.allowed import Count, WholeNumber
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt

ENOUGH = 8  # norms that a line is fitted to
_SIGMA = 1.4826  # a normal's standard deviation, in median absolute deviations
_TINY = 1e-60


class Step(NamedTuple):
    """What a detector looks at."""

    clients: IntArray  # [k]
    versions: IntArray  # [k] that they received
    deltas: Tensor  # [k, P] finite
    model: Tensor  # [P] before the step
    sizes: Sequence[int]  # of the model's parameters: they sum to P


class Reading(NamedTuple):
    """Of the clients of a step, row by row; NaN where there is nothing to say yet."""

    score: FloatArray
    p_value: FloatArray
    evidence: dict[str, FloatArray]


@dataclass
class Detector(Spelt):
    """Fields with `init=False` are state, as those of an algorithm."""

    section: ClassVar[str] = "detectors"
    limit: float = 0.0

    def begin(self, clients: int) -> None:
        """Before the first step of a run over so many clients."""

    def look(self, step: Step) -> Reading:
        raise NotImplementedError


@dataclass
class Averaging(Detector):
    """Sums what it sees of a client over its updates, from the `start`-th on (the first is number 0)."""

    start: WholeNumber = 5
    updates: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N]
    counts: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), init=False)  # [N] that are in the totals
    totals: FloatArray = field(default_factory=lambda: np.zeros(0), init=False)  # [N]

    def begin(self, clients: int) -> None:
        self.updates, self.counts = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
        self.totals = np.zeros(clients)

    def add(self, clients: IntArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How many values there are of each client, and their sum; NaN is no value."""
        counted = (self.updates[clients] >= self.start) & np.isfinite(values)
        self.updates[clients] += 1
        self.counts[clients] += counted
        self.totals[clients] += np.where(counted, values, 0.0)
        counts = self.counts[clients].astype(np.float64)
        return np.where(counts > 0, counts, np.nan), self.totals[clients]


# -- free-riders ------------------------------------------------------------------------------------------------


@dataclass
class IdenticalUpload(Detector):
    """The model as it was sent: no entry of most of its parameters moved by more than `tolerance`. Score: their share.
    Honest training moves something: p is 0 or 1."""

    limit: float = 0.5
    tolerance: float = 0.0

    def look(self, step: Step) -> Reading:
        still = [part.abs().amax(1) <= self.tolerance for part in torch.split(step.deltas, list(step.sizes), dim=1)]
        share = _numbers(torch.stack(still).double().mean(0))
        return Reading(share, np.where(share > self.limit, 0.0, 1.0), {"unmoved": share})


@dataclass
class UpdatePersistence(Averaging):
    """The mean cosine between a client's consecutive updates: training drifts the same way for a while, noise does not.
    Score: -|mean| sqrt(D). Null: noise, where the mean of n is N(0, 1 / (D n)). Memory: N models."""

    limit: float = -4.0
    last: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [N, P] NaN: none yet

    def begin(self, clients: int) -> None:
        super().begin(clients)
        self.last = torch.zeros(clients, 0)

    def look(self, step: Step) -> Reading:
        size = step.deltas.shape[1]
        if not self.last.shape[1]:
            self.last = step.deltas.new_full((len(self.last), size), torch.nan)
        self.last = self.last.to(step.deltas)
        cosine = _numbers(_cosine(self.last[step.clients], step.deltas))
        self.last[step.clients] = step.deltas
        counts, totals = self.add(step.clients, cosine)
        mean = totals / counts
        score = -np.abs(mean) * np.sqrt(size)
        return Reading(score, 2 * ndtr(score * np.sqrt(counts)), {"mean_cosine": mean})


@dataclass
class Alignment(Averaging):
    """The cosine with the mean of the others' updates: of honest clients far from 0, on either side. Score:
    -sqrt(D mean cos^2). Null: noise, where D cos^2 is chi^2(1) in every step."""

    limit: float = -4.0

    def look(self, step: Step) -> Reading:
        size, rows = step.deltas.shape[1], step.deltas.double()
        gram = _numbers(rows @ rows.T)
        own, total = np.diag(gram), gram.sum()
        with_others = gram.sum(1) - own
        lengths = np.sqrt(np.maximum(own * (total - 2 * gram.sum(1) + own), 0.0))
        cosine = np.divide(with_others, lengths, out=np.zeros_like(own), where=lengths > 0)
        values = size * cosine**2 if len(own) > 1 else np.full(1, np.nan)
        counts, totals = self.add(step.clients, values)
        return Reading(-np.sqrt(totals / counts), chdtrc(counts, totals), {"cosine": cosine})


@dataclass
class Isotropy(Averaging):
    """Whether all parameters moved alike: the mean squares of the model's tensors are the same up to sqrt(2 / D_block),
    and the kurtosis is 3. Score: minus how far the sum of both tests' chi^2 is above what it should be. Null: noise."""

    limit: float = -4.0

    def look(self, step: Step) -> Reading:
        rows = step.deltas.double()
        size, sizes = rows.shape[1], np.asarray(step.sizes, np.float64)
        squares = rows.square()
        each = _numbers(torch.stack([part.mean(1) for part in torch.split(squares, list(step.sizes), dim=1)], 1))
        mean = each @ sizes / size
        moved = np.maximum(mean, _TINY)
        blocks = (sizes / 2 * (each / moved[:, None] - 1) ** 2).sum(1)
        kurtosis = _numbers(squares.square().mean(1)) / moved**2
        spread = 24 * size * (size - 2) * (size - 3) / ((size + 1) ** 2 * (size + 3) * (size + 5))
        tails = (kurtosis - 3 * (size - 1) / (size + 1)) ** 2 / max(spread, _TINY)
        counts, totals = self.add(step.clients, np.where(mean > 0, blocks + tails, 0.0))
        freedom = counts * len(sizes)
        score = (freedom - totals) / np.sqrt(2 * freedom)
        return Reading(score, chdtrc(freedom, totals), {"blocks": blocks, "kurtosis": kurtosis})


@dataclass
class NormSchedule(Averaging):
    """Whether a client's norms follow log |u_t| = c - gamma log t too well: a script, not training. Score: -sqrt(2 D)
    times the standard deviation from the fitted line. Null: noise of scripted size, whose log norm varies by
    1 / (2 D)."""

    limit: float = -4.0
    sums: FloatArray = field(default_factory=lambda: np.zeros((0, 4)), init=False)  # [N] of x, x^2, x y, y^2

    def begin(self, clients: int) -> None:
        super().begin(clients)
        self.sums = np.zeros((clients, 4))

    def look(self, step: Step) -> Reading:
        ids, size = step.clients, step.deltas.shape[1]
        norms = _numbers(step.deltas.double().norm(dim=1))
        x, y = np.log(np.maximum(step.versions, 1.0)), np.log(np.where(norms > 0, norms, np.nan))
        before = self.counts[ids].copy()
        counts, total = self.add(ids, y)
        new = (self.counts[ids] > before)[:, None]
        self.sums[ids] += np.where(new, np.stack([x, x * x, x * y, y * y], 1), 0.0)
        sx, sxx, sxy, syy = self.sums[ids].T
        freedom = np.where(counts >= ENOUGH, counts - 2, np.nan)
        across, both = sxx - sx * sx / counts, sxy - sx * total / counts
        slope = np.divide(both, across, out=np.zeros_like(both), where=across > 1e-9)
        left = np.maximum(syy - total * total / counts - slope * both, 0.0)
        score = -np.sqrt(2 * size * left / freedom)
        return Reading(score, chdtrc(freedom, 2 * size * left), {"gamma": -slope, "norm": norms})


@dataclass
class Replay(Detector):
    """Whether an update is parallel to what the model changed by between two of the last `memory` + 1 versions. Score:
    the digits to which the cosine agrees with one. Rescaled copies agree to all of them: p is 0 or 1."""

    limit: float = 6.0
    memory: Count = 4
    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0), init=False)  # [<= memory + 1, P]

    def begin(self, clients: int) -> None:
        self.models = torch.zeros(0, 0)

    def look(self, step: Step) -> Reading:
        known = self.models.to(step.model) if len(self.models) else step.model.new_zeros(0, len(step.model))
        self.models = torch.cat([known, step.model[None]])[-self.memory - 1 :]
        later, earlier = torch.triu_indices(len(self.models), len(self.models), 1, device=step.model.device)
        changes = (self.models[earlier] - self.models[later]).double()
        rows = step.deltas.double()
        products = rows @ changes.T
        lengths = rows.norm(dim=1, keepdim=True) * changes.norm(dim=1)
        cosine = _numbers((products / lengths).nan_to_num(0.0).abs().amax(1)) if len(changes) else np.zeros(len(rows))
        score = -np.log10(np.maximum(1 - cosine, 1e-16))
        return Reading(score, np.where(score > self.limit, 0.0, 1.0), {"cosine": cosine})


# -- attackers --------------------------------------------------------------------------------------------------


@dataclass
class Norm(Averaging):
    """Whether updates are of unusual length among those of the step: log norms in robust standard deviations, of which
    there are at least `floor`. Score: |mean over the client's steps|. Null: honest, N(0, 1) in every step."""

    limit: float = 4.0
    floor: float = 0.1

    def look(self, step: Step) -> Reading:
        norms = _numbers(step.deltas.double().norm(dim=1))
        away = _robust(np.log(np.maximum(norms, 1e-30)), self.floor)
        counts, totals = self.add(step.clients, away)
        score = np.abs(totals / counts)
        return Reading(score, 2 * ndtr(-score * np.sqrt(counts)), {"norm": norms})


@dataclass
class Spectral(Averaging):
    """Whether updates stand apart along the direction in which those of the step differ most, the top singular vector
    of the centred updates: projections in robust standard deviations, at least `floor` times the median norm. Score:
    their root mean square over the client's steps. Null: honest, N(0, 1) in every step."""

    limit: float = 4.0
    floor: float = 0.1

    def look(self, step: Step) -> Reading:
        rows = step.deltas.double()
        centred = rows - rows.mean(0)
        values, vectors = np.linalg.eigh(_numbers(centred @ centred.T))
        along = vectors[:, -1] * np.sqrt(max(values[-1], 0.0))
        floor = self.floor * float(np.median(_numbers(rows.norm(dim=1))))
        counts, totals = self.add(step.clients, _robust(along, floor) ** 2)
        return Reading(np.sqrt(totals / counts), chdtrc(counts, totals), {"projection": along})


DETECTORS: dict[str, type[Detector]] = {
    "identical_upload": IdenticalUpload,
    "update_persistence": UpdatePersistence,
    "alignment": Alignment,
    "isotropy": Isotropy,
    "norm_schedule": NormSchedule,
    "replay": Replay,
    "norm": Norm,
    "spectral": Spectral,
}
# Those that accuse hardly anybody wrongly, by the study `liar_detectors`: the norms of smooth training look scripted,
# and clients of few classes stand apart.
SURE = tuple(name for name in DETECTORS if name not in ("norm_schedule", "spectral"))


def _numbers(values: Tensor) -> FloatArray:
    return np.asarray(values.double().cpu().numpy())


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """`[k]` between rows; 0 where one has no length, NaN where one is not known."""
    one, other = one.double(), other.double()
    lengths = one.norm(dim=1) * other.norm(dim=1)
    return torch.where(lengths == 0, 0.0, (one * other).sum(1) / lengths)


def _robust(values: FloatArray, floor: float) -> FloatArray:
    """Distances from the median, in median absolute deviations scaled as a standard deviation; NaN of fewer than
    three values."""
    if len(values) < 3:
        return np.full(len(values), np.nan)
    away = values - np.median(values)
    return np.asarray(away / max(_SIGMA * float(np.median(np.abs(away))), floor, _TINY))
