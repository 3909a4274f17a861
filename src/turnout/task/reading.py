"""What a model says and what was right, as measures of a whole set compare them: a row a position that counts.

By the loss: classes (of a mask or one label two, of which 1 is the positive one), several labels, or values; with a
loss of the user's own whole targets are classes, or labels where there is one output each, others are values. Targets
may be a dictionary with an entry `weight`, what each sample counts, beside one other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from turnout.core.trees import Tree
from turnout.task.calls import answer, own_loss
from turnout.task.losses import IGNORED, Bce, Classes, Dice, Hinge, Loss, SquaredHinge

Kind = Literal["classes", "labels", "values"]
Rows = dict[str, Tensor]  # by what they say, `[m, ...]` each
WEIGHT = "weight"


@dataclass(frozen=True)
class _ClassesSecond(Classes):
    """Where classes stand for `nn.CrossEntropyLoss`."""

    def seen(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return super().seen(outputs.movedim(1, -1), targets)


OF_CLASSES = (nn.MultiMarginLoss, nn.CrossEntropyLoss, nn.NLLLoss)
OF_LABELS = {nn.BCEWithLogitsLoss: 0.0, nn.MultiLabelSoftMarginLoss: 0.0, nn.BCELoss: 0.5}  # above which one is there


def layout_of(loss: Any) -> Classes | None:
    """Say where outputs have their classes, by the loss; None: they have none."""
    if isinstance(loss, Classes):
        return loss
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)):
        return _ClassesSecond(loss.ignore_index)
    numbers = isinstance(loss, Loss) or (
        type(loss).__module__ == nn.MSELoss.__module__ and type(loss) not in OF_CLASSES
    )
    return None if numbers else Classes()


class Read(NamedTuple):
    """What outputs and targets of some samples say."""

    kind: Kind
    width: int  # classes, labels or values
    rows: Rows
    chances: bool = True  # whether what is said of classes or labels are probabilities


def weighed(targets: Tree) -> tuple[Tree, Tensor | None]:
    """Give targets, and what each sample counts where they say so."""
    if not isinstance(targets, Mapping) or WEIGHT not in targets or len(targets) != 2:
        return targets, None
    weight = targets[WEIGHT]
    return next(part for name, part in targets.items() if name != WEIGHT), weight.reshape(len(weight)).double()


@torch.no_grad()
def read(loss: Any, outputs: Any, targets: Tree, wanted: Collection[str]) -> Read:
    """Read outputs `[B, ...]` and targets `[B, ...]` as the loss does. `wanted` are `chances`, `[m, K]` of classes and
    `[m, L]` of labels, the classes or labels `chosen`, the `surprise` -log p of what is right, and `values` `[m, V]`;
    what is right is always there, `truth`, and `weight` where targets say it."""
    outputs, (targets, weight) = answer(outputs), weighed(targets)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        raise ValueError("what the model returns and what it is compared with must be one tensor each")
    layout = layout_of(loss)
    own = not isinstance(loss, (Loss, nn.Module))  # the user's, or the model's
    mask = (isinstance(loss, Dice) or (own and not targets.is_floating_point())) and outputs.numel() == targets.numel()
    if loss is own_loss and targets.ndim > 1:
        raise ValueError(
            "of which position outputs are is not known with the model's own loss; name one, as next_token"
        )
    if isinstance(loss, (Bce, Hinge, SquaredHinge)) or type(loss) in OF_LABELS or mask:
        found = _of_labels(loss, outputs, targets, wanted)
    elif layout is None or (own and loss is not own_loss and targets.is_floating_point()):
        values, truth = (tensor.view(*tensor.shape, 1).flatten(1).double() for tensor in (outputs, targets))
        rows = {"values": values, "truth": truth}
        found = Read("values", values.shape[1], rows), _samples(len(targets), len(targets), targets)
    else:
        found = _of_classes(layout, outputs, targets, wanted)
    what, sample = found
    if weight is not None:
        what.rows[WEIGHT] = weight[sample]
    return what


def _of_classes(layout: Classes, outputs: Tensor, targets: Tensor, wanted: Collection[str]) -> tuple[Read, Tensor]:
    """Read classes, and say of which sample each row is."""
    scores, truth, kept = layout.seen(outputs, targets)
    scores, truth = scores.reshape(-1, scores.shape[-1]).double(), truth.reshape(-1)
    sample = _samples(len(targets), len(truth), truth)
    if kept is not None:
        kept = kept.reshape(-1)
        scores, truth, sample = scores[kept], truth[kept], sample[kept]
    if scores.shape[-1] < 2:
        raise ValueError("one output says nothing of classes")
    makes: dict[str, Callable[[], Tensor]] = {
        "chances": partial(torch.softmax, scores, -1),
        "chosen": partial(scores.argmax, -1),
        "surprise": lambda: -torch.log_softmax(scores, -1).gather(-1, truth.unsqueeze(-1)).squeeze(-1),
    }
    rows = {name: make() for name, make in makes.items() if name in wanted}
    return Read("classes", scores.shape[-1], {**rows, "truth": truth}), sample


def _of_labels(loss: Any, outputs: Tensor, targets: Tensor, wanted: Collection[str]) -> tuple[Read, Tensor]:
    """Read labels; a single one, or a mask, are two classes."""
    signs, above = isinstance(loss, (Hinge, SquaredHinge)), OF_LABELS.get(type(loss), 0.0)
    width = targets.shape[1] if targets.ndim == 2 else 1  # else one label, or the positions of a mask
    scores, labels = outputs.reshape(-1, width).double(), targets.reshape(-1, width).double()
    sample = _samples(len(targets), len(labels), labels)
    if not signs:
        kept = (labels != IGNORED).all(1)
        scores, labels, sample = scores[kept], labels[kept], sample[kept]
    truth = (labels > (0.0 if signs else 0.5)).long()
    chance = scores if signs or above else torch.sigmoid(scores)
    rows = {"chances": chance, "chosen": (scores > above).long(), "truth": truth}
    if "surprise" in wanted and not signs:
        right = torch.where(truth > 0, chance, 1 - chance)
        rows["surprise"] = -right.log()
    if width > 1:
        return Read("labels", width, _only(rows, wanted), not signs), sample
    rows = {name: rows[name][:, 0] for name in rows}
    rows["chances"] = torch.stack([-rows["chances"] if signs else 1 - rows["chances"], rows["chances"]], 1)
    return Read("classes", 2, _only(rows, wanted), not signs), sample


def _samples(count: int, rows: int, like: Tensor) -> Tensor:
    """`[rows]` of which sample each row is, where all have as many."""
    return torch.arange(count, device=like.device).repeat_interleave(rows // max(1, count))


def _only(rows: Rows, wanted: Collection[str]) -> Rows:
    return {name: value for name, value in rows.items() if name in wanted or name == "truth"}
