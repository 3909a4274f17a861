"""Optimisers and schedules of clients go with every algorithm: other bits than without them, the same bits after a
resume and in both engines; or they are refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import turnout
from support import algorithm, experiment, local, same
from turnout import Plan
from turnout.config import registry
from turnout.core.errors import UserError
from turnout.local import RoundWarmup, Warmup

Named = dict[str, Any]


def heavy(gradient: Tensor, state: Tensor | None, _: Tensor) -> tuple[Tensor, Tensor]:
    """A step along a heavy ball's speed."""
    speed = gradient if state is None else 0.5 * state + gradient
    return 0.3 * speed, speed


PARTS: dict[str, Named] = {
    "adam": {"optimiser": "adam"},
    "function": {"optimiser": heavy},
    "nesterov": {"momentum": 0.5, "nesterov": True},
    "in the job": {"schedules": [Warmup(2)]},
    "over rounds": {"schedules": [RoundWarmup(rounds=3)]},
    "kept": {"optimiser": "adam", "optimiser_state": "kept"},
}
BESIDE: dict[str, Named] = {"nesterov": {"momentum": 0.5}, "kept": {"optimiser": "adam"}}
# What is refused, and by whom.
ONE_KIND = {"adam", "function", "kept"}  # of steps
REFUSED = {
    "scaffold": ONE_KIND | {"nesterov", "in the job"},
    "fednova": ONE_KIND,
    "mocha": ONE_KIND,
    "apfl": {"kept"},
    "ditto": {"kept"},
    "pfedme": {"kept"},
}


def result(name: str, rounds: int, options: Named, folder: Path | None = None, **more: Any) -> turnout.Result:
    plan = more.pop("plan", Plan(threads=1))
    made = experiment(name, rounds, algorithm=algorithm(name, local=local(**options)), plan=plan)
    return turnout.execute(made, folder, checkpoint_every=1, **more)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_every_method_follows_it_or_refuses(name: str, part: str, tmp_path: Path) -> None:
    """Other bits, which a resumed run has as well, and the other engine but for the last of them."""
    options, beside = PARTS[part], BESIDE.get(part, {})
    if part in REFUSED.get(name, ()):
        with pytest.raises(UserError, match=r"^local\.[a-z_]+: [^\n]*$"):
            result(name, 2, options)
        return
    rounds = 15 if name in ("async_fedavg", "fedasync") else 3  # of one job each
    whole, usual = result(name, rounds, options), result(name, rounds, beside)
    assert not (torch.equal(whole.model, usual.model) and same(whole.clients(), usual.clients()))
    result(name, 1, options, tmp_path)
    resumed = result(name, rounds, options, tmp_path, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert same(whole.clients(), resumed.clients())
    if part in ("adam", "kept"):
        plans = [Plan(precision="float64", threads=1, engine=engine) for engine in ("vectorised", "sequential")]
        exact = [result(name, 3, options, plan=plan).model for plan in plans]
        torch.testing.assert_close(exact[0], exact[1], rtol=1e-7, atol=1e-9)
