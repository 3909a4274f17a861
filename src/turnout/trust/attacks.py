"""Membership inference: from a model's losses, which samples was it trained on?

An attack gives every sample a score, higher for one that looks trained on. With l the loss by the model attacked, and
m, s the mean and standard deviation over *out-models*: models of the same kind that were not trained on the sample,

    loss          -l                         Yeom et al., CSF 2018
    calibrated    m(l) - l                   easier than it should be; Watson et al., ICLR 2022
    shadow        (phi - m(phi)) / s(phi)    phi = -log(e^l - 1), the logit of a confidence e^-l; Carlini et al.
                                             ("LiRA", offline), S&P 2022

A few out-models tell s poorly: its logarithm is drawn towards the mean over samples, as if that were four models' word.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from turnout.core import random
from turnout.core.errors import UserError, unknown
from turnout.core.random import FloatArray

KINDS = ("loss", "calibrated", "shadow")
FEWEST = 20  # members, and non-members: an attack on fewer says nothing
FALSE_POSITIVES = 0.01
_PRIOR = 4  # out-models that the mean spread counts for
_SMALLEST = float(np.finfo(np.float32).eps)  # a loss below this is rounding


@dataclass(frozen=True)
class Leakage:
    """How well members are told from non-members; NaN where there are too few to tell."""

    accuracy: float  # of the best threshold of one half, on the other half: 0.5 if nothing leaks
    auc: float  # how likely a member scores higher than a non-member
    tpr: float  # members found when at most 1 % of non-members are taken for one
    members: int
    non_members: int

    @property
    def noise(self) -> float:
        """Standard error of the accuracy if nothing leaks."""
        tested = min(self.members, self.non_members)
        return 0.5 / math.sqrt(2 * (tested - tested // 2)) if self.known else math.nan

    @property
    def known(self) -> bool:
        return min(self.members, self.non_members) >= FEWEST

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "noise": self.noise}


def membership_scores(losses: ArrayLike, kind: str = "loss", out_losses: ArrayLike | None = None) -> FloatArray:
    """`[n]` scores from `[n]` losses by the model attacked and `[models, n]` losses by out-models, NaN where a model
    was trained on the sample."""
    losses = _finite(losses)
    if kind not in KINDS:
        raise unknown("attack.kind", kind, KINDS)
    if kind == "loss":
        return -losses
    needed = 1 if kind == "calibrated" else 2
    out = np.full((0, len(losses)), np.nan) if out_losses is None else np.asarray(out_losses, np.float64)
    fewest = int((~np.isnan(out)).sum(0).min(initial=len(out)))
    if fewest < needed:
        raise UserError(f"attack.kind: {kind} needs {needed} models not trained on each sample; one has {fewest}")
    if kind == "calibrated":
        return np.asarray(np.nanmean(out, 0) - losses)
    phi, others = _logit(losses), _logit(out)
    told = np.log(np.maximum(np.nanstd(others, 0, ddof=1), _SMALLEST))
    models = (~np.isnan(out)).sum(0)
    spread = np.exp((models * told + _PRIOR * told.mean()) / (models + _PRIOR))
    return np.asarray((phi - np.nanmean(others, 0)) / spread)


def attack(members: ArrayLike, non_members: ArrayLike, *, seed: int = 0) -> Leakage:
    """Scores of samples that were trained on, and of others of the same distribution. NaN, with a warning, if either
    are fewer than 20.

    >>> attack(-train_losses, -test_losses).accuracy
    """
    found = _attack(_finite(members), _finite(non_members), seed)
    if not found.known:
        size = f"{found.members} members and {found.non_members} non-members"
        warnings.warn(f"{size}: what leaks is NaN with fewer than {FEWEST} of either", stacklevel=2)
    return found


def attack_groups(groups: Mapping[int, tuple[FloatArray, FloatArray]], *, seed: int = 0) -> dict[int, Leakage]:
    """An attack of its own on each group's members and non-members: an average hides groups that leak more."""
    found = {name: _attack(_finite(members), _finite(others), seed) for name, (members, others) in groups.items()}
    small = sum(not leakage.known for leakage in found.values())
    if small:
        size = f"{small} of {len(found)} groups have fewer than {FEWEST} members or non-members"
        warnings.warn(f"{size}: what they leak is NaN", stacklevel=2)
    return found


def _attack(members: FloatArray, others: FloatArray, seed: int) -> Leakage:
    counts = len(members), len(others)
    count = min(counts)
    if count < FEWEST:
        return Leakage(math.nan, math.nan, math.nan, *counts)
    inside, outside = (
        scores[random.subset(random.key(seed, "attack", number), count, len(scores))]
        for number, scores in enumerate((members, others))
    )
    half = count // 2
    threshold = _best_threshold(inside[:half], outside[:half])
    accuracy = (np.mean(inside[half:] >= threshold) + np.mean(outside[half:] < threshold)) / 2
    ranked = np.sort(others)
    below, up_to = (np.searchsorted(ranked, members, side).mean() for side in ("left", "right"))
    auc = (below + up_to) / (2 * len(others))  # a tie counts half
    tpr = np.mean(members > ranked[-1 - math.floor(FALSE_POSITIVES * len(others))])
    return Leakage(float(accuracy), float(auc), float(tpr), *counts)


def _best_threshold(members: FloatArray, others: FloatArray) -> float:
    """Whatever scores at least this is called a member; in the middle of the gap that it falls into."""
    seen = np.unique(np.concatenate([members, others]))
    missed, rejected = (np.searchsorted(np.sort(part), seen) / len(part) for part in (members, others))
    best = int(np.argmax(rejected - missed))
    return float(seen[0] if best == 0 else (seen[best - 1] + seen[best]) / 2)


def _logit(losses: FloatArray) -> FloatArray:
    losses = np.maximum(losses, _SMALLEST)
    return np.asarray(-losses - np.log(-np.expm1(-losses)))  # -log(e^l - 1), for any l


def _finite(values: ArrayLike) -> FloatArray:
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise UserError("attack: every sample needs one finite loss; has the model diverged?")
    return values
