"""What a run promises to those who may ask to be forgotten: decided before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from turnout.core.errors import UserError, check_positive, unknown
from turnout.core.spelling import Spelt
from turnout.record import calibration
from turnout.record.lineage import BUDGETS

BOUNDS = ("plain", "contracted")
GROUP_RULES = ("sum", "max", "joint")
RETENTIONS = ("all", "frugal", "thinned")
WEIGHTS = ("realised", "population")


@dataclass(frozen=True)
class Unlearning(Spelt):
    """A budget (`epsilon`, `delta`), the noise `sigma` of every rollback, and how sensitivity is bounded and kept.

    `retention` says which models are kept to roll back to: `all`, every `every`-th (`thinned`), or for each client the
    last one it may be rolled back to (`frugal`). `bound` is `plain`, or `contracted` for losses of that
    `strong_convexity`. `group_rule` is the bound of clients that leave together: `sum`, `joint` for `groups` known
    before training, or `max` as in the paper, which covers each of them alone. `convex` and `smoothness` (L) are what
    you know of the loss: the certificate says what they are needed for. `weights` population is the paper's code.
    `budget` per_client_total keeps (epsilon, delta) over all requests; per_branch, the paper's, for every cut alone.
    """

    track: bool = True  # whether what forgetting needs is kept
    epsilon: float = 10.0  # of the (epsilon, delta) guarantee: how much a forgotten client may still show
    delta: float = 0.01  # of the guarantee: the chance that it does not hold
    sigma: float = 0.05  # standard deviation of the noise of a rollback
    retention: str = "all"  # models that are kept: all, thinned or frugal
    every: int = 10  # rounds from one kept model to the next, with thinned
    calibration: str = "analytic"  # analytic (exact) or classic: how noise becomes a bound
    bound: str = "plain"  # of the sensitivity: plain, or contracted for strongly convex losses
    group_rule: str = "sum"  # bound of clients that leave together: sum, joint or max
    budget: str = "per_client_total"  # per_client_total: over all requests; per_branch: for every cut alone
    weights: str = "realised"  # realised, or population as in the paper's code
    convex: bool = False  # whether the loss is known to be
    smoothness: float | None = None  # L of the loss; none: not known
    strong_convexity: float = 0.0  # of the loss; 0: none known
    groups: Sequence[Sequence[int]] = ()  # clients that would leave together, known before training
    always_noise: bool = False  # also where the model rolled back to has seen no data

    def __post_init__(self) -> None:
        calibration.check_budget(self.epsilon, self.delta)
        for name, allowed in (
            ("retention", RETENTIONS),
            ("calibration", calibration.CALIBRATIONS),
            ("bound", BOUNDS),
            ("group_rule", GROUP_RULES),
            ("budget", BUDGETS),
            ("weights", WEIGHTS),
        ):
            if getattr(self, name) not in allowed:
                raise unknown(f"unlearning.{name}", getattr(self, name), allowed)
        for name in ("every", "smoothness"):
            check_positive(f"unlearning.{name}", getattr(self, name))
        for name in ("sigma", "strong_convexity"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"unlearning.{name}: {getattr(self, name)} must be a number of at least 0")
        if self.group_rule == "joint" and not self.groups:
            raise UserError("unlearning.group_rule: joint needs unlearning.groups, known before training; use sum")
        if self.bound == "contracted" and self.retention == "frugal":
            raise UserError("unlearning.retention: frugal needs unlearning.bound=plain, since another may fall again")

    @cached_property
    def threshold(self) -> float:
        """psi*: the largest sensitivity the noise hides."""
        return calibration.threshold(self.epsilon, self.delta, self.sigma, self.calibration)
