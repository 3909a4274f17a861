"""The measures of a whole set that a task has: what they need of each sample is gathered chunk by chunk, in evaluation
alone, and measured when all of it is there.

They are metrics by name (`set_metrics.py`), and functions of the user's own that return a number instead of a tensor.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from turnout.core import trees
from turnout.core.errors import UserError, reason
from turnout.core.trees import Tree
from turnout.task.reading import Read, read
from turnout.task.set_metrics import F1, SetMetric, Whole

SetFunction = Callable[[Any, Tree], Any]  # (outputs [n, ...], targets [n, ...]) -> a number


@dataclass(frozen=True)
class Part:
    """What is gathered of some samples, on the CPU."""

    read: Read | None  # for metrics by name
    given: tuple[Any, Tree] | None  # outputs and targets, for functions

    @property
    def bytes(self) -> int:
        """Count its bytes."""
        return trees.whole_bytes((self.read and self.read.rows, self.given))


@dataclass(frozen=True)
class Sets:
    """The measures of a whole set that a task has; none as a rule."""

    loss: Any = None
    metrics: Mapping[str, SetMetric] = field(default_factory=dict)
    functions: Mapping[str, SetFunction] = field(default_factory=dict)
    sample_bytes: int = 0  # that are gathered of a sample; like what follows known when a task is examined
    classes: int = 0  # that a model chooses from; 0: none, or it is not known

    @property
    def names(self) -> tuple[str, ...]:
        return *self.metrics, *self.functions

    def __bool__(self) -> bool:
        return bool(self.metrics or self.functions)

    def part(self, outputs: Any, targets: Tree) -> Part:
        """Gather what is needed of some samples."""
        needs = {need for metric in self.metrics.values() for need in metric.needs}
        found = read(self.loss, outputs, targets, needs) if self.metrics else None
        if found is not None:
            found = found._replace(rows=_on_cpu(found.rows))
        return Part(found, (_on_cpu(outputs), _on_cpu(targets)) if self.functions else None)

    def checked(self, outputs: Any, targets: Tree) -> Sets:
        """Raise unless they can measure what these are samples of; gives them with what a sample takes."""
        try:
            part = self.part(outputs, targets)
            for name, metric in self.metrics.items():
                _check(name, metric, part.read)
            self.measured([part])
        except UserError:
            raise
        except Exception as error:
            compared = f"outputs of shape {trees.shapes(outputs)} with targets of shape {trees.shapes(targets)}"
            raise UserError(
                f"task.metrics: {', '.join(self.names)} cannot compare {compared}: {reason(error)}"
            ) from error
        classes = 0 if part.read is None or part.read.kind != "classes" else part.read.width
        return replace(self, sample_bytes=-(-part.bytes // trees.rows(targets)), classes=classes)

    def check_room(self, samples: int, mib: int) -> None:
        """Raise where more is gathered of so many samples at once than there is room for."""
        if samples * self.sample_bytes > mib << 20:
            raise UserError(
                f"task.metrics: {', '.join(self.names)} of {samples} samples at once take "
                f"{samples * self.sample_bytes >> 20} MiB; raise engine.memory_mib={mib}, or leave them out"
            )

    def measured(self, parts: Sequence[Part]) -> dict[str, float]:
        """Measure a whole set; NaN where a measure is not defined."""
        import sklearn

        found = dict[str, float]()
        with warnings.catch_warnings(), sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
            warnings.simplefilter("ignore")  # of sets in which a class is missing: that is said by NaN
            whole = self.whole(parts) if self.metrics else None
            for name, metric in self.metrics.items():
                assert whole is not None
                finite = all(np.isfinite(whole[said]).all() for said in ("chances", "values") if said in whole.rows)
                found[name] = metric.value(whole) if len(whole["truth"]) and finite else math.nan
        given = [part.given for part in parts if part.given is not None]
        both = [trees.join([one[place] for one in given]) for place in (0, 1)] if given else []
        return found | {name: _number(name, function, *both) for name, function in self.functions.items()}

    @staticmethod
    def whole(parts: Sequence[Part]) -> Whole:
        """Put what was gathered together."""
        reads = [part.read for part in parts if part.read is not None]
        rows = {name: torch.cat([one.rows[name] for one in reads]).numpy() for name in reads[0].rows}
        return Whole(reads[0].kind, reads[0].width, rows)


def _on_cpu(tree: Tree) -> Tree:
    return trees.map_leaves(lambda leaf: leaf.detach().cpu(), tree)


def _check(name: str, metric: SetMetric, found: Read | None) -> None:
    """Raise unless a measure is for what a model says."""
    assert found is not None
    words = {"classes": "classes", "labels": "several labels", "values": "numbers"}
    if found.kind not in metric.kinds:
        fits = " or ".join(words[kind] for kind in metric.kinds)
        raise UserError(f"task.metrics: {name} is for {fits}, and by its loss this model says {words[found.kind]}")
    if metric.of_chances and not found.chances:
        raise UserError(f"task.metrics: {name} is for probabilities, and with this loss a model says none")
    if type(metric) is F1 and found.width != 2:
        raise UserError(f"task.metrics: f1 is for two classes, and there are {found.width}; take f1_macro")


def _number(name: str, function: SetFunction, outputs: Any, targets: Tree) -> float:
    """Call a function of the user's own."""
    try:
        return float(function(outputs, targets))
    except UserError:
        raise
    except Exception as error:
        what = f"{trees.rows(targets)} samples"
        raise UserError(
            f"task.metrics: {name} fails on {what} ({type(error).__name__}: {reason(error)}); it must return a number, "
            "nan where it is not defined"
        ) from error


def is_number(value: Any) -> bool:
    """Say whether a function of the user's own has measured a whole set."""
    return isinstance(value, int | float | np.number) or (isinstance(value, np.ndarray) and value.ndim == 0)
