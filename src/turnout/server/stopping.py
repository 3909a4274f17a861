"""When a run ends, which of its models is the best, and when it is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from turnout.core.allowed import Count, NotNegative, Range, WholeNumber
from turnout.core.errors import UserError
from turnout.core.spelling import Spelt
from turnout.core.statistics import lower_is_better

VALIDATION = "validation_"  # how measures begin by which models may be chosen


@dataclass(frozen=True)
class Stopping(Spelt):
    """Stop at whichever comes first: so many rounds, so much virtual time, a measure that has reached its target, or so
    many evaluations without a better model. Which is better is judged on samples held back for validation."""

    section: ClassVar[str] = "run"

    rounds: WholeNumber | None = 100
    seconds: NotNegative | None = None
    target: float | None = None  # of `measure`: a loss or an error at most this, anything else at least this
    measure: str = "test_accuracy"
    judge: str | None = None  # measure of validation samples by which the best model is kept; None: none is
    patience: Count | None = None  # evaluations without a better model, by validation_loss unless `judge` says another

    def __post_init__(self) -> None:
        if self.judge is not None and not self.judge.startswith(VALIDATION):
            raise UserError(
                f"run.judge: {self.judge!r} is not a measure of samples held back for validation, by which alone the "
                "best model is chosen; take validation_loss or another that begins so"
            )
        if self.rounds is None and self.seconds is None:
            raise UserError("run: give run.rounds or run.seconds, or the run never ends")

    @property
    def judged_by(self) -> str | None:
        """Name the measure by which the best model is kept; None: none is."""
        return self.judge or (None if self.patience is None else f"{VALIDATION}loss")

    def reason(self, version: int, now: float, measures: dict[str, float]) -> str | None:
        """Say why the run is over, or None."""
        if self.rounds is not None and version >= self.rounds:
            return f"{self.rounds} rounds"
        if self.seconds is not None and now >= self.seconds:
            return f"{self.seconds:g} virtual seconds"
        if self.target is not None and measures:
            if self.measure not in measures:
                raise UserError(f"run.measure: {self.measure!r} is not measured; known: {', '.join(sorted(measures))}")
            value = measures[self.measure]
            if value <= self.target if lower_is_better(self.measure) else value >= self.target:
                return f"{self.measure} reached {value:.4g}"
        return None


@dataclass(frozen=True)
class Evaluation(Spelt):
    """Evaluate every so many rounds or virtual seconds (and always at the end), on all clients or a fixed panel."""

    section: ClassVar[str] = "evaluation"

    rounds: Count | None = 1  # from one evaluation to the next; none: by time or at the end only
    seconds: Annotated[float, Range(above=0)] | None = None  # of virtual time from one to the next; none: by rounds
    clients: Count | None = None  # size of the panel; None: all clients
    train: bool = True  # also the training loss, the objective itself

    def due(self, version: int, now: float, last: float) -> bool:
        """Tell whether this round is evaluated; `last` is the virtual time of the evaluation before."""
        if self.seconds is not None:
            return now // self.seconds > last // self.seconds
        return self.rounds is not None and version % self.rounds == 0
