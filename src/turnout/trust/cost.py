"""What a request would cost: its retraining, as long and as dear a round as the last training was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from turnout.core.errors import UserError
from turnout.report.read import recorded
from turnout.server.stopping import Stopping
from turnout.trust.forget import Rollback
from turnout.trust.request import Run


def stopping_of(run: Run, rounds: int | None, target: float | None) -> Stopping | None:
    """When to stop retraining, where that was said: otherwise as the run did."""
    if rounds is None and target is None:
        return None
    if rounds is not None and rounds < 1:
        raise UserError(f"--rounds: {rounds} must be at least 1")
    stopping = run.experiment.stopping
    stopping = replace(
        stopping,
        rounds=stopping.rounds if rounds is None else rounds,
        target=stopping.target if target is None else target,
    )
    path = run.folder / "result.json"
    known = json.loads(path.read_text(encoding="utf-8"))["measures"] if path.exists() else {}
    if target is not None and stopping.measure not in known:
        words = ", ".join(sorted(known)) or "nothing, since the run has not ended"
        raise UserError(f"--target: the run's run.measure, {stopping.measure}, is not measured; known: {words}")
    return stopping


def cost(run: Run, rollback: Rollback, stopping: Stopping) -> dict[str, Any]:
    """Rounds (None: as many as the time allows), virtual seconds and bytes of the retraining, at most."""
    if rollback.absent:
        return {"rounds": 0, "virtual_seconds": 0.0, "bytes_down": 0.0, "bytes_up": 0.0, "target": None}
    last = recorded(run.home(run.retrained))
    done = float(np.max(last.rounds()["round"], initial=0)) if "round" in last.rounds() else 0.0
    seconds = (last.last("time") or 0.0) / max(done, 1.0)
    rounds = float("inf") if stopping.rounds is None else float(stopping.rounds)
    if stopping.seconds is not None and seconds:
        rounds = min(rounds, stopping.seconds / seconds)
    traffic = {name: last.total(name) / max(done, 1.0) * rounds for name in ("bytes_down", "bytes_up")}
    return {"rounds": rounds, "virtual_seconds": seconds * rounds, **traffic, "target": stopping.target}
