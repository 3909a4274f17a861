"""Losses by name: one value a sample, the mean over its positions, labels or values.

Outputs for classes have these last, `[B, ..., K]`, or second, `[B, K, ...]`, for targets `[B, ...]`; where both fit,
last. Of targets with more than one dimension positions of -100 do not count: a sample's loss is the mean over those
that do, 0 where none does. (`nn.CrossEntropyLoss` divides by what counts in the whole batch instead; given as the loss,
it does here, too.)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turnout.core.allowed import NotNegative, Positive, Range, Share
from turnout.core.errors import UserError, unknown
from turnout.core.spelling import Spelt
from turnout.core.trees import Tree
from turnout.task.calls import own_loss

SampleFunction = Callable[[Any, Tree], Tensor]  # (outputs [B, ...], targets [B, ...]) -> [B]
IGNORED = -100  # where a sequence or an image has no target

Weights = Annotated[tuple[float, ...], Range(least=0, below=math.inf)]


def per_sample(values: Tensor, kept: Tensor | None = None) -> Tensor:
    """Average values `[B, ...]` over the positions that are `kept`: `[B]`, 0 where none is."""
    if kept is not None:
        values = torch.where(kept, values, 0)
    if values.ndim == 1:
        return values
    mean = values.flatten(1).mean(1)
    if kept is None:
        return mean
    counts = kept.flatten(1).sum(1).clamp(min=1).to(mean.dtype)
    return mean * (math.prod(kept.shape[1:]) / counts)  # times 1 where all count: no other bits than without


def classes_last(outputs: Tensor, targets: Tensor) -> Tensor:
    """Give outputs `[B, ..., K]`, wherever they have their classes."""
    if outputs.shape[:-1] == targets.shape:
        return outputs
    if outputs.ndim == targets.ndim + 1 and (outputs.shape[0], *outputs.shape[2:]) == tuple(targets.shape):
        return outputs.movedim(1, -1)
    raise ValueError("outputs need one dimension more than the targets, that of the classes: the last or the second")


@lru_cache(maxsize=64)
def _numbers(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Place an option on a device once: graphs that are replayed cannot."""
    return torch.tensor(values, dtype=dtype, device=device)


def _weights(option: str, weights: tuple[float, ...], outputs: Tensor) -> Tensor:
    if len(weights) != outputs.shape[-1]:
        raise UserError(f"task.{option}.weights: {len(weights)} numbers, and the model has {outputs.shape[-1]} outputs")
    return _numbers(weights, outputs.dtype, outputs.device)


class Loss(Spelt):
    """A loss by name."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute `[B]` the loss of each sample."""
        raise NotImplementedError


@dataclass(frozen=True)
class Classes(Loss):
    """A loss of classes; targets are their numbers."""

    ignore: int | None = None  # the target that does not count; none: -100, of targets with more than one dimension

    def seen(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Give outputs with classes last, targets that all are classes, and which of these count; None: all do."""
        if targets.is_floating_point():
            raise ValueError(
                "classes are whole numbers, and these targets are floating-point numbers; give integers, or "
                "nn.CrossEntropyLoss() where they are shares of all classes"
            )
        outputs, targets = classes_last(outputs, targets), targets.long()  # masks may be stored as uint8
        if targets.ndim == 1 and self.ignore is None:
            return outputs, targets, None
        kept = targets != (IGNORED if self.ignore is None else self.ignore)
        return outputs, torch.where(kept, targets, 0), kept

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets, kept = self.seen(outputs, targets)
        return per_sample(self.values(outputs, targets), kept)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of each position, `[B, ...]` of outputs `[B, ..., K]`."""
        raise NotImplementedError


def _picked(logs: Tensor, targets: Tensor) -> Tensor:
    # F.nll_loss is decomposed in Python under vmap; this is one gather
    return -logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Nll(Classes):
    """The negative logarithm of the target's probability, of outputs that are such logarithms."""

    section: ClassVar[str] = "task.nll"

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _picked(outputs, targets)


@dataclass(frozen=True)
class CrossEntropy(Classes):
    """-log softmax(outputs)[target]: that of `F.cross_entropy` with the same label smoothing and class weights, without
    its division by the weights of a batch."""

    section: ClassVar[str] = "task.cross_entropy"

    smoothing: Share = 0.0  # share of the target's probability that is spread over all classes
    weights: Weights = ()  # of each class; none: all count the same

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logs = F.log_softmax(outputs, -1)
        losses = _picked(logs, targets)
        if self.weights:
            weights = _weights("cross_entropy", self.weights, outputs)
            losses, logs = losses * weights[targets], logs * weights
        return (1 - self.smoothing) * losses - self.smoothing * logs.mean(-1) if self.smoothing else losses


@dataclass(frozen=True)
class NextToken(CrossEntropy):
    """The cross entropy of a causal language model: what it says at a position, `[B, T, K]`, is compared with the token
    that comes next; targets `[B, T]` are the tokens themselves, -100 where none counts."""

    section: ClassVar[str] = "task.next_token"

    def seen(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if outputs.ndim != 3 or outputs.shape[:2] != targets.shape:
            raise ValueError("next_token needs outputs [B, T, K] for tokens [B, T]")
        return super().seen(outputs[:, :-1], targets[:, 1:])


@dataclass(frozen=True)
class Focal(Classes):
    """(1 - p)^gamma times the cross entropy, p the probability of the target (Lin et al., ICCV 2017)."""

    section: ClassVar[str] = "task.focal"

    gamma: NotNegative = 2.0  # how much less what is easy counts; 0: the cross entropy
    weights: Weights = ()  # of each class; none: all count the same

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = _picked(F.log_softmax(outputs, -1), targets)
        hard = (1 - torch.exp(-losses)).clamp(min=torch.finfo(losses.dtype).tiny) ** self.gamma
        return hard * losses * (_weights("focal", self.weights, outputs)[targets] if self.weights else 1)


@dataclass(frozen=True)
class Dice(Classes):
    """1 - soft Dice of a sample, for segmentation: the mean over classes of (2 sum p y + s) / (sum p + sum y + s), p
    the probabilities of softmax, y 1 at the class of a position, else 0. Outputs of the shape of the targets, or with
    one class, are logits of a mask of 0 and 1. (Milletari et al., 3DV 2016.)"""

    section: ClassVar[str] = "task.dice"

    smooth: Positive = 1.0  # s, what a class that is not there is judged by

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.numel() == targets.numel():
            targets = targets if targets.is_floating_point() else targets.long()
            kept = targets != (IGNORED if self.ignore is None else self.ignore)
            chances = torch.sigmoid(outputs).view_as(targets).unsqueeze(-1)
            truth = torch.where(kept, targets, 0).unsqueeze(-1).to(chances.dtype)
        else:
            outputs, targets, mask = self.seen(outputs, targets)
            kept = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
            chances = torch.softmax(outputs, -1)
            truth = (targets.unsqueeze(-1) == torch.arange(outputs.shape[-1], device=outputs.device)).to(chances.dtype)
        counts = kept.unsqueeze(-1).to(chances.dtype)
        shared, whole = (
            (part * counts).flatten(1, -2).sum(1) for part in (2 * chances * truth, chances + truth)
        )  # [B, K]
        return 1 - ((shared + self.smooth) / (whole + self.smooth)).mean(-1)


@dataclass(frozen=True)
class Bce(Loss):
    """The binary cross entropy of logits with labels from 0 to 1; the mean over the labels of a sample."""

    section: ClassVar[str] = "task.bce"

    weights: Weights = ()  # of each label where it is there, beside 1 where it is not; none: 1

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights = _weights("bce", self.weights, outputs) if self.weights else None
        labels = targets.view_as(outputs).to(outputs.dtype)
        values = F.binary_cross_entropy_with_logits(outputs, labels, pos_weight=weights, reduction="none")
        return per_sample(values)


@dataclass(frozen=True)
class Mse(Loss):
    """The squared difference; the mean over the values of a sample."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return per_sample((outputs - targets.view_as(outputs)).square())


@dataclass(frozen=True)
class Hinge(Loss):
    """max(0, 1 - output * target), of targets that are -1 or 1."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return per_sample(F.relu(1 - outputs * targets.view_as(outputs)))


@dataclass(frozen=True)
class SquaredHinge(Loss):
    """max(0, 1 - output * target)^2, of targets that are -1 or 1."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return per_sample(F.relu(1 - outputs * targets.view_as(outputs)).square())


LOSSES: dict[str, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "nll": Nll,
    "focal": Focal,
    "next_token": NextToken,
    "dice": Dice,
    "bce": Bce,
    "mse": Mse,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
}


def chosen(loss: str | SampleFunction) -> SampleFunction:
    """Find a loss by its name; a function stays what it is."""
    if not isinstance(loss, str):
        return loss
    if loss == "model":
        return own_loss
    if loss not in LOSSES:
        raise unknown("task.loss", loss, [*LOSSES, "model"])
    return LOSSES[loss]()


def moved(measure: SampleFunction, device: str | torch.device | None, dtype: torch.dtype | None) -> SampleFunction:
    """Place the numbers of a loss of `torch.nn`, its weights, on another device or in another precision."""
    if not isinstance(measure, nn.Module):
        return measure
    placed: SampleFunction = copy.deepcopy(measure).to(device=device, dtype=dtype)
    return placed


def check_counted(measure: Any, targets: Tree) -> None:
    """Raise where -100 among targets of one dimension would be a class: there nothing is left out by itself."""
    if not isinstance(measure, Classes) or measure.ignore is not None or not isinstance(targets, Tensor):
        return
    if targets.ndim == 1 and bool((targets == IGNORED).any()):
        raise UserError(
            f"task.loss: of targets with one dimension all count, and some are {IGNORED}; say with "
            f"{measure.section}.ignore={IGNORED} that these do not"
        )


def divides_by_what_counts(measure: Any, targets: Tree) -> bool:
    """Say whether a loss of `torch.nn` divides by the weight of the targets of a batch, which is not their number."""
    if not isinstance(measure, (nn.CrossEntropyLoss, nn.NLLLoss)) or measure.reduction != "mean":
        return False
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        return False
    return measure.weight is not None or bool((targets == measure.ignore_index).any())
