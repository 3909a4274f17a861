"""Measures of a whole set of samples by name, as scikit-learn computes them.

Where a measure is not defined, as the area under a curve where all samples are of one class, it is NaN: a client where
it is so is left out of means over clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.core.allowed import Count
from turnout.core.spelling import Spelt
from turnout.task.reading import WEIGHT, Kind

Array = NDArray[Any]
Average = Literal["binary", "macro", "micro", "weighted"]
Lacking = Literal["undefined", "left_out"]


class Metric(Spelt):
    """A metric by name."""

    name: ClassVar[str]

    def of(self, loss: Any) -> Any:
        """Make what measures beside that loss."""
        raise NotImplementedError


@dataclass(frozen=True)
class Whole:
    """A whole set, row by row of what counts in it."""

    kind: Kind
    width: int  # classes, labels or values
    rows: Mapping[str, Array]  # what `read` finds, by name

    def __getitem__(self, name: str) -> Array:
        return self.rows[name]

    @property
    def weight(self) -> Array | None:
        """Give what each row counts; None: all the same."""
        return self.rows.get(WEIGHT)


@dataclass(frozen=True)
class SetMetric(Metric):
    """A measure of a whole set."""

    needs: ClassVar[tuple[str, ...]] = ()  # of what `read` finds, beside what is right
    kinds: ClassVar[tuple[Kind, ...]] = ("classes",)
    of_chances: ClassVar[bool] = False  # whether it is for probabilities

    def of(self, loss: Any) -> SetMetric:
        return self

    def value(self, whole: Whole) -> float:
        """Measure a set with at least one row."""
        raise NotImplementedError


# -- of classes and labels that are chosen --------------------------------------------------------------------


@dataclass(frozen=True)
class BalancedAccuracy(SetMetric):
    """The mean over the classes there are of the share of their samples that are right."""

    name: ClassVar[str] = "balanced_accuracy"
    needs: ClassVar[tuple[str, ...]] = ("chosen",)

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import balanced_accuracy_score

        return float(balanced_accuracy_score(whole["truth"], whole["chosen"], sample_weight=whole.weight))


@dataclass(frozen=True)
class F1(SetMetric):
    """2 tp / (2 tp + fp + fn) of class 1 of two; undefined where it neither is there nor is said to be."""

    name: ClassVar[str] = "f1"
    needs: ClassVar[tuple[str, ...]] = ("chosen",)
    average: ClassVar[Average] = "binary"

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import f1_score

        options = {"average": self.average, "zero_division": np.nan}
        return float(f1_score(whole["truth"], whole["chosen"], sample_weight=whole.weight, **options))


@dataclass(frozen=True)
class F1Macro(F1):
    """The mean of F1 over classes, or over labels, that are there or said to be."""

    name: ClassVar[str] = "f1_macro"
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", "labels")
    average: ClassVar[Average] = "macro"


@dataclass(frozen=True)
class F1Micro(F1Macro):
    """F1 of all classes, or of all labels, counted together."""

    name: ClassVar[str] = "f1_micro"
    average: ClassVar[Average] = "micro"


@dataclass(frozen=True)
class F1Weighted(F1Macro):
    """The mean of F1 over classes, or over labels, by how many samples each has."""

    name: ClassVar[str] = "f1_weighted"
    average: ClassVar[Average] = "weighted"


@dataclass(frozen=True)
class SubsetAccuracy(SetMetric):
    """The share of samples of which all labels are right."""

    name: ClassVar[str] = "subset_accuracy"
    needs: ClassVar[tuple[str, ...]] = ("chosen",)
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", "labels")

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(whole["truth"], whole["chosen"], sample_weight=whole.weight))


@dataclass(frozen=True)
class DiceScore(F1Macro):
    """2 |A and B| / (|A| + |B|) over all positions of a set: of a mask, or the mean over classes that are there or said
    to be."""

    name: ClassVar[str] = "dice_score"

    def value(self, whole: Whole) -> float:
        return super().value(whole) if whole.width > 2 or whole.kind == "labels" else F1().value(whole)


@dataclass(frozen=True)
class IoU(SetMetric):
    """|A and B| / |A or B| over all positions of a set: of a mask, or the mean over classes that are there or said to
    be."""

    name: ClassVar[str] = "iou"
    needs: ClassVar[tuple[str, ...]] = ("chosen",)
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", "labels")

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import jaccard_score

        options: dict[str, Any] = {"sample_weight": whole.weight, "average": "macro"}
        there = (whole["truth"] > 0) | (whole["chosen"] > 0)
        if whole.kind == "labels":
            options["labels"] = np.flatnonzero(there.any(0))
        elif whole.width == 2:
            options["average"] = "binary"
        if not there.any() and (whole.kind == "labels" or whole.width == 2):
            return math.nan
        return float(jaccard_score(whole["truth"], whole["chosen"], **options))


# -- of probabilities -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ranked(SetMetric):
    """A mean over classes, each against the rest, of how well what is said of them ranks the samples."""

    needs: ClassVar[tuple[str, ...]] = ("chances",)
    kinds: ClassVar[tuple[Kind, ...]] = ("classes", "labels")

    lacking: Lacking = "undefined"  # where a set lacks a class: undefined, or the mean over the others: left_out

    def value(self, whole: Whole) -> float:
        truth, chances = whole["truth"], whole["chances"]
        if whole.kind == "labels":
            right = truth > 0
        elif whole.width == 2:
            right, chances = truth[:, None] > 0, chances[:, 1:]
        else:
            right = truth[:, None] == np.arange(whole.width)
        known = self._known(right)
        if not known.any() or (self.lacking == "undefined" and not known.all()):
            return math.nan
        right, chances = right[:, known], chances[:, known]
        if right.shape[1] == 1:
            right, chances = right[:, 0], chances[:, 0]
        return float(np.mean(self._each(right, chances, whole.weight)))

    def _known(self, right: Array) -> Array:
        """Say for which columns it is defined, `[K]` of `[m, K]`."""
        return np.asarray(right.any(0))

    def _each(self, right: Array, chances: Array, weight: Array | None) -> Any:
        """Measure every column."""
        raise NotImplementedError


@dataclass(frozen=True)
class Auc(_Ranked):
    """The area under the receiver operating characteristic: of two classes, or one against the rest, the mean over
    classes; undefined where samples of a class, or all others, are missing."""

    name: ClassVar[str] = "auc"
    section: ClassVar[str] = "task.auc"

    def _known(self, right: Array) -> Array:
        return np.asarray(right.any(0) & ~right.all(0))

    def _each(self, right: Array, chances: Array, weight: Array | None) -> Any:
        from sklearn.metrics import roc_auc_score

        return roc_auc_score(right, chances, sample_weight=weight, average=None)


@dataclass(frozen=True)
class AveragePrecision(_Ranked):
    """The area under precision over recall, as a sum of steps: of class 1 of two, or one against the rest, the mean
    over classes; undefined where samples of a class are missing."""

    name: ClassVar[str] = "average_precision"
    section: ClassVar[str] = "task.average_precision"

    def _each(self, right: Array, chances: Array, weight: Array | None) -> Any:
        from sklearn.metrics import average_precision_score

        return average_precision_score(right, chances, sample_weight=weight, average=None)


@dataclass(frozen=True)
class LogLoss(SetMetric):
    """The mean of -log p, p the probability of the class that is right."""

    name: ClassVar[str] = "log_loss"
    needs: ClassVar[tuple[str, ...]] = ("chances",)
    of_chances: ClassVar[bool] = True

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import log_loss

        classes = np.arange(whole.width)
        return float(log_loss(whole["truth"], whole["chances"], sample_weight=whole.weight, labels=classes))


@dataclass(frozen=True)
class Perplexity(SetMetric):
    """e to the mean of -log p, p the probability of the token that is right."""

    name: ClassVar[str] = "perplexity"
    needs: ClassVar[tuple[str, ...]] = ("surprise",)
    of_chances: ClassVar[bool] = True

    def value(self, whole: Whole) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(np.average(whole["surprise"], weights=whole.weight)))


@dataclass(frozen=True)
class Brier(SetMetric):
    """The mean of (p - y)^2, of class 1 of two; of more classes the sum over them."""

    name: ClassVar[str] = "brier"
    needs: ClassVar[tuple[str, ...]] = ("chances",)
    of_chances: ClassVar[bool] = True

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import mean_squared_error

        right = whole["truth"][:, None] == np.arange(whole.width)
        each = mean_squared_error(right, whole["chances"], sample_weight=whole.weight, multioutput="raw_values")
        return float(each[1] if whole.width == 2 else each.sum())


@dataclass(frozen=True)
class CalibrationError(SetMetric):
    """The expected calibration error: by how much the probability of the class that is chosen differs from the share
    of samples that are right, in bins of that probability, weighed by their samples.

    Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural networks", ICML 2017.
    """

    name: ClassVar[str] = "calibration_error"
    section: ClassVar[str] = "task.calibration_error"
    needs: ClassVar[tuple[str, ...]] = ("chances",)
    of_chances: ClassVar[bool] = True

    bins: Count = 15  # of equal width, from 0 to 1

    def value(self, whole: Whole) -> float:
        from scipy.stats import binned_statistic

        sure, right = whole["chances"].max(1), whole["chances"].argmax(1) == whole["truth"]
        weight = np.ones(len(sure)) if whole.weight is None else whole.weight
        apart, _, _ = binned_statistic(sure, weight * (right - sure), "sum", self.bins, (0.0, 1.0))
        return float(np.abs(apart).sum() / weight.sum())


# -- of numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MAE(SetMetric):
    """The mean absolute error; of several outputs their mean."""

    name: ClassVar[str] = "mae"
    needs: ClassVar[tuple[str, ...]] = ("values",)
    kinds: ClassVar[tuple[Kind, ...]] = ("values",)

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import mean_absolute_error

        return float(mean_absolute_error(whole["truth"], whole["values"], sample_weight=whole.weight))


@dataclass(frozen=True)
class RMSE(MAE):
    """The root of the mean squared error; of several outputs their mean."""

    name: ClassVar[str] = "rmse"

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import root_mean_squared_error

        return float(root_mean_squared_error(whole["truth"], whole["values"], sample_weight=whole.weight))


@dataclass(frozen=True)
class R2(MAE):
    """1 - the squared error, as a share of that of the mean; of several outputs their mean; undefined of one sample."""

    name: ClassVar[str] = "r2"

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import r2_score

        if len(whole["truth"]) < 2:
            return math.nan
        return float(r2_score(whole["truth"], whole["values"], sample_weight=whole.weight))


class Counting(SetMetric):
    """Count samples of each class by the class that is chosen, over all sets that are measured."""

    name: ClassVar[str] = "confusion"
    needs: ClassVar[tuple[str, ...]] = ("chosen",)

    counts: Array  # [K, K] of the class a row is of, and the class it is said to be

    def __init__(self, classes: int) -> None:
        object.__setattr__(self, "counts", np.zeros((classes, classes)))

    def value(self, whole: Whole) -> float:
        from sklearn.metrics import confusion_matrix

        classes = np.arange(len(self.counts))
        own = confusion_matrix(whole["truth"], whole["chosen"], labels=classes, sample_weight=whole.weight)
        self.counts[:] += own
        return float(own.sum())


SETS: dict[str, type[SetMetric]] = {
    metric.name: metric
    for metric in (
        BalancedAccuracy, F1, F1Macro, F1Micro, F1Weighted, SubsetAccuracy, Auc, AveragePrecision, LogLoss, Brier,
        CalibrationError, Perplexity, MAE, RMSE, R2, DiceScore, IoU,
    )
}  # fmt: skip
