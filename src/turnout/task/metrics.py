"""Metrics by name: one value a sample, the mean over its positions or labels, or of a whole set (`set_metrics.py`); and
what goes with a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from turnout.core.allowed import Count
from turnout.core.errors import UserError, unknown
from turnout.core.trees import Tree
from turnout.task.calls import answer, own_loss
from turnout.task.losses import IGNORED, Bce, Classes, Dice, Hinge, SampleFunction, SquaredHinge, per_sample
from turnout.task.reading import OF_LABELS, layout_of
from turnout.task.set_metrics import SETS, Metric, SetMetric
from turnout.task.sets import SetFunction


@dataclass(frozen=True)
class ClassAccuracy:
    """Whether the target is the class with the largest output, or among the `most` largest; of several positions the
    share of those that count."""

    layout: Classes  # where classes stand, and which targets do not count
    most: int = 1
    flat: bool = False  # for targets of one dimension alone

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        outputs, targets, kept = self.layout.seen(answer(outputs), targets)
        if self.most == 1:
            right = outputs.argmax(-1) == targets
        else:
            best = outputs.topk(min(self.most, outputs.shape[-1]), -1).indices
            right = (best == targets.unsqueeze(-1)).any(-1)
        return per_sample(right.to(torch.float32), kept)

    def fits(self, outputs: Any, targets: Tree) -> bool:
        """Say whether these look like outputs for classes."""
        if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dtype == torch.bool:
            return False
        try:
            seen, classes, _ = self.layout.seen(answer(outputs), targets)
        except (UserError, ValueError):
            return False
        some = classes.numel() > 0 and 0 <= int(classes.min()) <= int(classes.max()) < seen.shape[-1]
        return some and seen.shape[-1] > 1 and not (self.flat and targets.ndim > 1)


@dataclass(frozen=True)
class LabelAccuracy:
    """The share of labels, 0 or 1, that are right."""

    above: float = 0.0  # outputs that say that a label is there

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        outputs = answer(outputs)
        labels = targets.view_as(outputs).to(outputs.dtype)
        return per_sample(((outputs > self.above) == (labels > 0.5)).to(torch.float32), labels != IGNORED)

    def fits(self, outputs: Any, targets: Tree) -> bool:
        """Say whether there is a label for each output."""
        return isinstance(targets, Tensor) and answer(outputs).numel() == targets.numel()


@dataclass(frozen=True)
class _PixelAccuracy:
    layout: Dice

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mask = outputs.numel() == targets.numel()
        return LabelAccuracy()(outputs, targets) if mask else ClassAccuracy(self.layout)(outputs, targets)


def _sign_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return per_sample((outputs * targets.view_as(outputs) > 0).to(torch.float32))


def accuracy(loss: Any) -> SampleFunction | None:
    """Choose the accuracy that goes with a loss; None for losses of numbers. Whether it fits what a model says is known
    when a task is examined, where the loss is not one of ours."""
    if isinstance(loss, (Bce, Hinge, SquaredHinge)):
        return LabelAccuracy() if isinstance(loss, Bce) else _sign_accuracy
    if isinstance(loss, Dice):
        return _PixelAccuracy(loss)
    if type(loss) in OF_LABELS:
        return LabelAccuracy(OF_LABELS[type(loss)])
    layout = layout_of(loss)
    # what a model with its own loss says of sequences may be of the next position
    return None if layout is None else ClassAccuracy(layout, flat=loss is own_loss)


class Accuracy(Metric):
    """The share of classes or labels that are right."""

    name = "accuracy"

    def of(self, loss: Any) -> SampleFunction:
        found = accuracy(loss)
        if found is None:
            raise UserError("task.metrics: accuracy is for losses of classes or labels, and this one is of numbers")
        return found


@dataclass(frozen=True)
class TopK(Metric):
    """Whether the class is among those with the k largest outputs."""

    section: ClassVar[str] = "task.top_k"
    name: ClassVar[str] = "top_k"

    k: Count = 5  # classes

    def of(self, loss: Any) -> SampleFunction:
        layout = layout_of(loss)
        if layout is None:
            raise UserError("task.metrics: top_k is for losses of classes, and this one has none")
        return ClassAccuracy(layout, self.k)


Measure = SetFunction | SetMetric  # a function of samples, too: what it returns tells
Given = Mapping[str, Measure] | str | Sequence[str | Metric | SetFunction] | None
METRICS: dict[str, type[Metric]] = {"accuracy": Accuracy, "top_k": TopK, **SETS}


def chosen(metrics: Given, loss: Any) -> dict[str, Measure]:
    """Make the metrics of that name, `accuracy,top_k`, or a list of names and metrics; functions stay what they
    are, in a list under their own names. None: the accuracy that goes with the loss."""
    if metrics is None:
        usual = accuracy(loss)
        return {} if usual is None else {"accuracy": usual}
    if isinstance(metrics, Mapping):
        return dict(metrics)
    names = [part.strip() for part in metrics.split(",") if part.strip()] if isinstance(metrics, str) else metrics
    found: dict[str, Measure] = {}
    for part in names:
        if isinstance(part, str) and part not in METRICS:
            raise unknown("task.metrics", part, METRICS)
        metric = METRICS[part]() if isinstance(part, str) else part
        name = metric.name if isinstance(metric, Metric) else getattr(metric, "__name__", type(metric).__name__)
        if name in found:
            raise UserError(f"task.metrics: {name} stands there twice")
        found[name] = metric.of(loss) if isinstance(metric, Metric) else metric
    return found


def fitting(metrics: Mapping[str, SampleFunction], outputs: Any, targets: Tree) -> dict[str, SampleFunction]:
    """Leave out what was chosen by the loss alone and does not fit what the model says."""
    return {
        name: metric
        for name, metric in metrics.items()
        if not isinstance(metric, (ClassAccuracy, LabelAccuracy)) or metric.fits(outputs, targets)
    }
