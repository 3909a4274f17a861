"""The contract with liars in the world and detectors at the door: the same bits twice and through a checkpoint, in
whatever company a liar's job is computed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import turnout
from support import EXERCISES, SMALL, WORLD, Windowed, experiment, local, population, same
from turnout import Plan
from turnout.clients import behaviour
from turnout.clients.behaviour import Behaviour
from turnout.record.detectors import DETECTORS
from turnout.record.watch import Screening

LIARS = [1, 2, 4, 6]
KINDS = (
    "fedavg", "fedbuff", "safa", "scaffold", "mifa", "fedem", "fedper", "dpasgd", *EXERCISES,
)  # fmt: skip  # everything that differs in what is sent, kept, or done with it
BEHAVIOURS: list[Behaviour] = [
    behaviour.FreeRider(clients=LIARS),
    behaviour.DisguisedConstant(clients=LIARS),
    behaviour.DisguisedSGDLike(clients=LIARS, declared_samples=9),
    behaviour.DisguisedDecay(clients=LIARS, clock="job"),
    behaviour.Replay(clients=LIARS),
    behaviour.SignFlip(clients=LIARS),
    behaviour.GaussianNoise(clients=LIARS),
    behaviour.LittleIsEnough(clients=LIARS, z=1.0),
]


def among(liars: Behaviour, name: str, rounds: int, **options: Any) -> turnout.Experiment:
    options.setdefault("evaluation", turnout.Evaluation(rounds=None, clients=1))
    if name == "windowed":
        options["algorithm"] = Windowed(local(), 1.0)  # long enough for liars to be asked several times
    plan = experiment(name, rounds, people=replace(population(SMALL, **WORLD), behaviour=liars), **options)
    return replace(plan, screening=Screening(tuple(DETECTORS), start=0))


def assert_same(one: turnout.Result, two: turnout.Result) -> None:
    assert torch.equal(one.model, two.model)
    assert same(one.jobs(), two.jobs())
    assert one.watch is not None
    assert two.watch is not None
    assert one.watch.suspects == two.watch.suspects
    assert same(one.watch.records.read(), two.watch.records.read())


@pytest.mark.parametrize("name", KINDS)
def test_same_bits_twice_and_after_a_resume(name: str, tmp_path: Path) -> None:
    """Noise whose size is learnt and then falls: a behaviour with a memory."""
    lies = BEHAVIOURS[3]
    whole = turnout.execute(among(lies, name, 3))
    turnout.execute(among(lies, name, 1), tmp_path, checkpoint_every=1)
    assert_same(whole, turnout.execute(among(lies, name, 3), tmp_path, checkpoint_every=1, resume=True))


@cache
def honest() -> torch.Tensor:
    return turnout.execute(
        experiment("windowed", 3, plan=Plan(precision="float64", threads=1), algorithm=Windowed(local(), 1.0))
    ).model


class Curious(turnout.Observer):
    """Looks at every update as it arrives."""

    def on_arrival(self, server: turnout.Server, job: object) -> None:
        server._ensure_trained([job])  # type: ignore[attr-defined]


@pytest.mark.parametrize("lies", BEHAVIOURS, ids=lambda lies: type(lies).__name__)
def test_a_lie_is_the_same_in_any_company(lies: Behaviour) -> None:
    """In the asynchronous exercise jobs of several versions are in flight. Looking at every update at once, and the
    other engine, change the company in which jobs are computed, and by no more than rounding what comes of it."""
    plan, other = (Plan(precision="float64", threads=1, engine=engine) for engine in ("vectorised", "sequential"))
    whole = turnout.execute(among(lies, "windowed", 3, plan=plan)).model
    sequential = turnout.execute(among(lies, "windowed", 3, plan=other)).model
    eager = turnout.execute(among(lies, "windowed", 3, plan=plan), observers=[Curious()]).model
    torch.testing.assert_close(sequential, whole, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(eager, whole, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(honest(), whole, rtol=1e-4)


@pytest.mark.parametrize("lies", [BEHAVIOURS[3], BEHAVIOURS[4]], ids=lambda lies: type(lies).__name__)
def test_behaviours_resume_with_what_they_remember(lies: Behaviour, tmp_path: Path) -> None:
    whole = turnout.execute(among(lies, "windowed", 4))
    turnout.execute(among(lies, "windowed", 2), tmp_path, checkpoint_every=1)
    assert_same(whole, turnout.execute(among(lies, "windowed", 4), tmp_path, checkpoint_every=1, resume=True))
