"""What a review found: records after a resume, slow clients, times beyond the clock, populations that empty."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import local, mlp, population, same
from turnout import (
    Algorithm,
    AsyncFedAvg,
    FedAvg,
    FedBuff,
    FedFix,
    Full,
    LocalSGD,
    Plan,
    Policy,
    Population,
    Ragged,
    Safa,
    Scaffold,
    Stopping,
    Task,
    UserError,
    devices,
)
from turnout.algorithms import FedAsync, Local, SafaThesis
from turnout.server.durations import Durations
from turnout.server.policy import rates


def experiment(algorithm: Algorithm, rounds: int, **columns: Any) -> turnout.Experiment:
    columns.setdefault("devices", devices.lognormal(0.5, 0.7))
    return turnout.Experiment(
        Task(mlp, seed=3), population(**columns), algorithm, stopping=Stopping(rounds), plan=Plan(threads=1)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedFix(local(), window=0.4),
        lambda: FedBuff(local(), buffer_size=3),
        lambda: FedBuff(local(), buffer_size=3, mode="restart"),
        lambda: Safa(local(), deadline=2.0),
    ],
)
def test_a_resumed_record_is_the_same_where_nobody_fails(make: Any, tmp_path: Path) -> None:
    """Jobs are the same whether their durations were looked up or computed."""
    whole = turnout.execute(experiment(make(), 12))
    turnout.execute(experiment(make(), 5), tmp_path / "run", checkpoint_every=1)
    resumed = turnout.execute(experiment(make(), 12), tmp_path / "run", checkpoint_every=1, resume=True)
    assert same(whole.jobs(), resumed.jobs())
    assert whole.efficiency == resumed.efficiency


def crowd(clients: int, **columns: Any) -> Population:
    rows = Ragged(np.arange(clients + 1), np.arange(clients))
    return Population(torch.zeros(clients, 1), torch.zeros(clients, 1), rows, **columns)


def test_rates_of_clients_too_slow_to_be_counted() -> None:
    """A client that does not come up while rates are counted still has one: about a round over its own duration."""
    seconds = np.concatenate([np.full(400, 0.001), np.full(100, 50.0)])
    durations = Durations.of(crowd(500, devices=devices.table(seconds)), LocalSGD(0.1, steps=1))
    found = rates(Policy(count=20), durations)
    assert (found > 0).all()
    assert (1 / found[400:]).mean() == pytest.approx(50 / (20 / 400 * 0.001), rel=0.2)


@pytest.mark.parametrize("value", [0, -1.0, 1e-9, 1e14, math.inf, math.nan])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("retry", lambda value: AsyncFedAvg(local(), retry=value)),
        ("retry", lambda value: Safa(local(), retry=value)),
        ("retry", lambda value: Local(local(), retry=value)),
        ("deadline", lambda value: FedAvg(local(), deadline=value)),
        ("deadline", lambda value: Safa(local(), deadline=value)),
        ("window", lambda value: FedFix(local(), window=value)),
        ("window_limit", lambda value: FedFix(local(), window_limit=value)),
    ],
)
def test_times_no_clock_can_keep_are_refused(name: str, make: Any, value: float) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.{name}: "):
        make(value)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("server_lr", lambda: AsyncFedAvg(local(), server_lr=math.inf)),
        ("divisor", lambda: FedBuff(local(), divisor=math.inf)),
        ("mu", lambda: FedAsync(local(), mu=math.nan)),
        ("window_growth", lambda: FedFix(local(), window_growth=math.inf)),
    ],
)
def test_numbers_that_are_not_finite_are_refused(name: str, make: Any) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.{name}: "):
        make()


def test_windows_that_double_for_ever() -> None:
    """They stop growing long before the clock ends."""
    result = turnout.execute(experiment(FedFix(local(), window=0.5, window_growth=2.0), 60))
    assert result.server.version == 60
    assert result.server.now < 1e11


@pytest.mark.parametrize("algorithm", [Safa(local()), Local(local(), average=True)])
def test_the_model_stays_when_everybody_has_left(algorithm: Algorithm) -> None:
    result = turnout.execute(experiment(algorithm, 12, left_at=np.full(8, 2.0)))
    assert float(result.model.norm()) > 0
    assert result.server.now > 2


def test_thesis_conventions_start_afresh_with_every_run() -> None:
    algorithm = SafaThesis(local(), keep_best="revert")
    first, second = (turnout.execute(experiment(algorithm, 4)).model for _ in range(2))
    assert torch.equal(first, second)


def test_a_diverging_run_that_keeps_the_best_model() -> None:
    result = turnout.execute(experiment(SafaThesis(local(lr=1e38), keep_best="revert"), 3))
    assert torch.isfinite(result.model).all()


@pytest.mark.parametrize("algorithm", [FedAsync(local()), Safa(local(), fraction=0.5)])
def test_an_update_that_is_not_finite_is_rejected(algorithm: Algorithm) -> None:
    """One client's data explode; the others go on without it."""
    people = population(devices=devices.fixed(1.0))
    inputs = people.inputs.clone()
    inputs[people.train.row(2)] = 3e38
    setting = replace(
        experiment(algorithm, 8),
        task=Task(lambda: torch.nn.Linear(5, 3)),
        population=replace(people, inputs=inputs),
        evaluation=turnout.Evaluation(rounds=None),  # its own loss is not finite
    )
    result = turnout.execute(setting)
    assert result.audit.events.get("rejected_update", 0) > 0
    assert result.audit.contributions[2] == 0
    assert result.audit.contributions.sum() > 0
    assert torch.isfinite(result.model).all()
    assert result.server.version == 8


@pytest.mark.parametrize(
    "options", [{"seconds": math.inf}, {"seconds": math.nan}, {"rounds": -1}, {}, {"seconds": -2.0}]
)
def test_schedules_without_an_end(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="schedule: "):
        turnout.schedule(AsyncFedAvg(LocalSGD(0.1)), crowd(3), **options)


def test_schedule_of_a_payload_that_is_not_the_model() -> None:
    """SCAFFOLD sends twice as much; the schedule takes as long as a run."""
    people = population(links=turnout.Links(down=1e4, up=1e4))
    task = Task(mlp, seed=3)
    algorithm = Scaffold(local(), Full())
    run = turnout.simulate(task, people, algorithm, rounds=3, plan=Plan(threads=1))
    assert turnout.schedule(algorithm, people, rounds=3, task=task).seconds == pytest.approx(run.server.now)


def test_a_newcomer_is_not_cancelled_for_versions_it_never_missed() -> None:
    """Sent the model in round 3, a slow client that joined late is two versions behind in round 5, not five."""
    seconds = np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.4])
    joined = np.array([0.0] * 7 + [1.0])
    result = turnout.execute(
        experiment(Safa(local(), fraction=0.3, lag_tolerance=2), 8, devices=devices.table(seconds), joined_at=joined)
    )
    jobs = result.jobs()
    mine = jobs["outcome"][jobs["client"] == 7]
    assert "arrived" in mine
    assert "cancelled" not in mine[:2]
