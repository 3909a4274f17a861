"""The best model so far, judged on samples held back for validation, and how long ago it was."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from turnout.core.errors import UserError, unknown
from turnout.core.statistics import lower_is_better
from turnout.local.sgd import Named
from turnout.server.state import Facts
from turnout.server.stopping import VALIDATION, Stopping

if TYPE_CHECKING:
    from turnout.server.server import Server


class Found(NamedTuple):
    """When the best model was found, and what it measured."""

    round: int
    virtual_seconds: float
    measures: dict[str, float]


class Best:
    """Judge every model that is evaluated; keep the best."""

    def __init__(self) -> None:
        self.found: Found | None = None
        self.model: Tensor | None = None  # [P], on the CPU
        self.waited = 0  # evaluations since that brought no better one

    def judge(self, server: Server) -> None:
        """Look at the evaluation that was just made."""
        judge = server.stopping.judged_by
        if judge is None:
            return
        if judge not in server.measures:
            self._missing(server, judge)
            return
        value, before = server.measures[judge], math.nan if self.found is None else self.found.measures[judge]
        better = value < before if lower_is_better(judge) else value > before
        if self.found is None or better or (math.isnan(before) and not math.isnan(value)):
            self.found, self.waited = Found(server.version, server.now, dict(server.measures)), 0
            self.model = server.output.detach().cpu().clone()
        else:
            self.waited += 1

    @staticmethod
    def _missing(server: Server, judge: str) -> None:
        """Refuse a measure that there is not; clients of a deployment may only have been silent."""
        known = sorted(name for name in server.measures if name.startswith(VALIDATION))
        if known:
            raise unknown("run.judge", judge, known)
        if not server._measurement.elsewhere:
            option = "run.patience" if server.stopping.judge is None else "run.judge"
            raise UserError(
                f"{option}: the best model is chosen on samples held back for validation, and there are none; hold "
                "some back with clients.validation_fraction=0.2"
            )
        server.log("not_judged", why=f"no client has measured {judge}")

    def reason(self, stopping: Stopping) -> str | None:
        """Say why the run is over, or None."""
        judge, patience = stopping.judged_by, stopping.patience
        if judge is None or patience is None or self.found is None or self.waited < patience:
            return None
        best = f"{self.found.measures[judge]:.4g} of round {self.found.round}"
        return f"{judge} no better than {best} for {patience} evaluations"

    def save(self) -> tuple[Facts, Named]:
        """Give what a checkpoint needs."""
        facts: dict[str, Any] = {"waited": self.waited, "found": self.found and self.found._asdict()}
        return facts, {} if self.model is None else {"model": self.model}

    def load(self, facts: Facts, tensors: Named) -> None:
        self.waited = facts.get("waited", 0)
        self.found = Found(**facts["found"]) if facts.get("found") else None
        self.model = tensors.get("model")
