"""What sites say of a model, as sums of whole numbers: of each measure over samples, and what measures of whole sets
follow from.

A measure's sum is rint(2^30 x) over the samples of a split. Beside it go, where they are asked for, how often each
class was taken for which (`confusion`, for F1), and for two classes how many samples of each have which probability of
the second, in 1,000 equal bins (`scores`, for the area under the ROC curve, whose error is at most half the share of
pairs in one bin).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ConfigRecordValues as Value
from flwr.app import RecordDict
from numpy.typing import NDArray
from torch import Tensor

from turnout.core import trees
from turnout.deploy.screen import Facts, Measures, Refused, RejectedError, Rejection, refusal, require
from turnout.deploy.wire import ANSWER, MEASURES, apart
from turnout.task.task import Task

ONE = 1 << 30  # of fixed point
BINS = 1000
MOST = 1024  # that a mean may be: what is more is said to be this
SPLITS = ("train", "validation", "test")
CONFUSION, SCORES = "confusion", "scores"
SUMMARIES = {"none": (), "confusion": (CONFUSION,), "scores": (CONFUSION, SCORES)}  # by `deploy.summaries`
_CHUNK = 4096  # samples scored in one go
Counts = NDArray[np.int64]


class Told(NamedTuple):
    """What a site has said."""

    measures: Measures
    sets: dict[str, dict[str, Counts]]  # by split: confusion `[classes, classes]`, scores `[2, 1000]`


# -- at the site ------------------------------------------------------------------------------------------------


def as_sums(means: Mapping[str, Value], names: Sequence[str], least: int) -> dict[str, Value]:
    """Turn means over the samples of splits into sums; of a split of fewer samples nothing is said."""
    said: dict[str, Value] = {}
    for split in (split for split in SPLITS if f"{split}_samples" in means):
        count = means[f"{split}_samples"]
        assert isinstance(count, int)
        count = count if count >= least else 0
        said[f"{split}_samples"] = count
        for name in names:
            mean = means[f"{split}_{name}"]
            assert isinstance(mean, float)
            clipped = 0.0 if not count else MOST if math.isnan(mean) else min(max(mean, -MOST), MOST)
            said[f"{split}_{name}"] = round(ONE * clipped * count)
    return said


@torch.no_grad()
def set_sums(task: Task, model: Tensor, inputs: Any, targets: Tensor, classes: int, asked: Sequence[str]) -> Any:
    """Sum up what measures of sets follow from, as flat lists by name."""
    confusion, scores = np.zeros((classes, classes), np.int64), np.zeros((2, BINS), np.int64)
    for start in range(0, len(targets), _CHUNK):
        x, y = trees.batch(inputs, targets, slice(start, start + _CHUNK), task.initial)
        outputs, true = task.outputs(model, x).double(), y.cpu().numpy()
        np.add.at(confusion, (true, outputs.argmax(1).cpu().numpy()), 1)
        if SCORES in asked:
            chance = torch.nan_to_num(outputs.softmax(1)[:, 1]).cpu().numpy()
            np.add.at(scores, (true, np.minimum((chance * BINS).astype(np.int64), BINS - 1)), 1)
    found = {CONFUSION: confusion, SCORES: scores}
    return {name: found[name].reshape(-1).tolist() for name in asked}


# -- at the server ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summed:
    """What a site may say of a model."""

    names: frozenset[str]  # of the measures
    samples: Mapping[str, int | None]  # by split: how many it has at most
    classes: int | None = None
    summaries: Sequence[str] = ()
    most: int = 0  # bytes of arrays

    def read(self, content: RecordDict) -> Told | Refused:
        said, record = apart(content, ANSWER, MEASURES)
        if (refused := refusal(said, record)) is not None:
            return refused
        splits = [split for split in SPLITS if f"{split}_samples" in said]
        expected = {f"{split}_{name}" for split in splits for name in (*self.names, *self.summaries, "samples")}
        require(not len(record) and set(said) == expected, Rejection.BAD_MEASURES)
        measures = {split: (self._means(said, split), self._samples(said, split)) for split in splits}
        sets = {split: {name: self._counts(said, split, name) for name in self.summaries} for split in splits}
        return Told(measures, sets)

    def _samples(self, said: Facts, split: str) -> int:
        number, known = said[f"{split}_samples"], self.samples.get(split) or 0
        if type(number) is not int or not 0 <= number <= known:
            raise RejectedError(Rejection.BAD_COUNTS)
        return number

    def _means(self, said: Facts, split: str) -> dict[str, float]:
        count, values = self._samples(said, split), {}
        for name in sorted(self.names):
            total = said[f"{split}_{name}"]
            least, most = (0, 1) if name.endswith("accuracy") else (-MOST, MOST)
            if type(total) is not int or not least * ONE * count <= total <= most * ONE * count:
                raise RejectedError(Rejection.BAD_MEASURES)
            values[name] = total / (ONE * count) if count else math.nan
        return values

    def _counts(self, said: Facts, split: str, name: str) -> Counts:
        listed: Any = said[f"{split}_{name}"]
        shape = (self.classes or 0, self.classes or 0) if name == CONFUSION else (2, BINS)
        if not isinstance(listed, list) or len(listed) != math.prod(shape):
            raise RejectedError(Rejection.BAD_MEASURES)
        if not all(type(each) is int and each >= 0 for each in listed) or sum(listed) != self._samples(said, split):
            raise RejectedError(Rejection.BAD_MEASURES)
        return np.array(listed, np.int64).reshape(shape)


def of_sets(told: Sequence[dict[str, dict[str, Counts]]]) -> dict[str, float]:
    """Measure the rows of all sites as one set: `test_f1`, `test_auc`, and by how much that may err."""
    found: dict[str, float] = {}
    for split in SPLITS:
        parts = [sets[split] for sets in told if split in sets]
        total = {name: sum(part[name] for part in parts) for name in (parts[0] if parts else ())}
        if CONFUSION in total:
            found[f"{split}_f1"] = _f1(np.asarray(total[CONFUSION]))
        if SCORES in total:
            found[f"{split}_auc"], found[f"{split}_auc_error"] = _auc(*np.asarray(total[SCORES], np.float64))
    return found


def _f1(confusion: Counts) -> float:
    """Average F1 over the classes that occur or are taken for others."""
    right, both = np.diag(confusion), confusion.sum(0) + confusion.sum(1)
    return float((2 * right[both > 0] / both[both > 0]).mean()) if both.any() else math.nan


def _auc(negative: NDArray[np.float64], positive: NDArray[np.float64]) -> tuple[float, float]:
    pairs = negative.sum() * positive.sum()
    if not pairs:
        return math.nan, math.nan
    below = np.cumsum(negative) - negative
    tied = float((positive * negative).sum() / pairs)
    return float((positive * below).sum() / pairs) + tied / 2, tied / 2
