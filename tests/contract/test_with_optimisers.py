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
BESIDE: dict[str, Named] = {"nesterov": {"momentum": 0.5}, "kept": PARTS["adam"]}
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
EXACT = [Plan(precision="float64", threads=1, engine=engine) for engine in ("vectorised", "sequential")]
METHODS = registry.names("algorithm")


def result(name: str, options: Named, rounds: int, folder: Path | None = None, **more: Any) -> turnout.Result:
    made = experiment(
        name,
        rounds,
        algorithm=algorithm(name, local=local(**options)),
        plan=more.pop("plan", EXACT[0]),
        evaluation=turnout.Evaluation(rounds=None),
    )
    return turnout.execute(made, folder, checkpoint_every=1, **more)


def rounds_of(name: str) -> int:
    return 15 if name in ("async_fedavg", "fedasync") else 3  # of one job each


@pytest.mark.parametrize("name", METHODS)
def test_every_method_follows_them_or_refuses(name: str) -> None:
    """Other bits with each than without it; what is refused, is with one sentence."""
    refused, without = REFUSED.get(name, set()), dict[str, turnout.Result]()
    for part, options in PARTS.items():
        if part in refused:
            with pytest.raises(UserError, match=r"^local\.[a-z_]+: [^\n]*$"):
                result(name, options, 2)
            continue
        beside = BESIDE.get(part, {})
        if str(beside) not in without:
            without[str(beside)] = result(name, beside, rounds_of(name))
        found, usual = result(name, options, rounds_of(name)), without[str(beside)]
        assert not (torch.equal(found.model, usual.model) and same(found.clients(), usual.clients())), part
        without[str(options)] = found


@pytest.mark.parametrize("name", METHODS)
def test_all_at_once_resume_and_go_with_both_engines(name: str, tmp_path: Path) -> None:
    """As many as a method takes together: an optimiser (methods take turns), its state kept, and both schedules."""
    chosen = ("adam", "function", "nesterov")[METHODS.index(name) % 3]
    taken = [part for part in (chosen, "in the job", "over rounds") if part not in REFUSED.get(name, ())]
    options = dict[str, Any]()
    for part in taken:
        options |= PARTS[part] | {"schedules": [*options.get("schedules", []), *PARTS[part].get("schedules", [])]}
    if "kept" not in REFUSED.get(name, ()):
        options["optimiser_state"] = "kept"
    whole = result(name, options, rounds_of(name))
    result(name, options, 1, tmp_path)
    resumed = result(name, options, rounds_of(name), tmp_path, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert same(whole.clients(), resumed.clients())
    other = result(name, options, rounds_of(name), plan=EXACT[1])
    torch.testing.assert_close(whole.model, other.model, rtol=1e-7, atol=1e-9)
