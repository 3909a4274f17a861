"""Learning rates that change from version to version: lr * lr_decay^t / (t + 1)^lr_power."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from toy_problems import EXAMPLE_A, clients, simulate, steps

import turnout
from support import SIZES, Windowed, experiment, mlp, population
from turnout import FedAvg, Full, LocalSGD, Plan, Scaffold, Server, Task, UserError, devices
from turnout.algorithms import FedNova, Mifa, RobustMomentum
from turnout.clients.adversary import Silence
from turnout.server.updates import Updates

SCHEDULES: list[dict[str, float]] = [{"lr_decay": 0.5}, {"lr_power": 0.5}, {"lr_decay": 0.9, "lr_power": 1.0}]


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_of_every_round(schedule: dict[str, float], engine: str) -> None:
    """x <- x - lr_t (x - 1), by hand."""
    plan = Plan(precision="float64", engine=engine, threads=1)
    result = simulate(FedAvg(steps(1, 0.4, **schedule), Full()), clients([1.0, 1.0], "equal"), 5, plan=plan)
    x = 0.0
    for t in range(5):
        x -= 0.4 * schedule.get("lr_decay", 1.0) ** t / (t + 1) ** schedule.get("lr_power", 0.0) * (x - 1)
    assert float(result.model[0]) == pytest.approx(x, rel=1e-12)


def test_a_job_has_the_rate_of_the_version_it_began_from() -> None:
    """Asynchronously, with jobs of several versions in flight: delta = lr_v (1 - received)."""
    seen: list[tuple[int, float, float]] = []

    class Watching(Windowed):
        def run(self, server: Server) -> None:
            step = server.step

            def watched(updates: Updates, weights: Any) -> Updates:
                rows = zip(updates.versions, updates.received()[:, 0], updates.deltas[:, 0], strict=True)
                seen.extend((int(version), float(received), float(delta)) for version, received, delta in rows)
                return step(updates, weights)

            server.step = watched  # type: ignore[method-assign]
            super().run(server)

    people = clients([1.0] * 4, EXAMPLE_A, devices=devices.fx(80, 4))
    simulate(Watching(steps(1, 0.4, lr_decay=0.7), window=0.3), people, 8)
    assert len({version for version, _, _ in seen}) > 4
    for version, received, delta in seen:
        assert delta == pytest.approx(0.4 * 0.7**version * (1 - received), rel=1e-12)


def test_momenta_are_gradients_whatever_the_rate() -> None:
    """m <- (m + (x - 1)) / 2, x <- x - lr_t m, by hand."""
    local = steps(1, 0.4, lr_decay=0.5)
    result = simulate(RobustMomentum(local, Full(), rule="mean", momentum=0.5), clients([1.0, 1.0], "equal"), 5)
    x = m = 0.0
    for t in range(5):
        m = (m + x - 1) / 2
        x -= 0.4 * 0.5**t * m
    assert float(result.model[0]) == pytest.approx(x, rel=1e-12)


def test_mifa_uses_what_it_remembers_at_the_rate_in_use() -> None:
    """Client 1 is silent after round 0: x <- x - lr_t ((x - 1) + (0 - 3)) / 2."""
    people = clients([1.0, 3.0], "equal", adversary=Silence(0.5, clients=[1], begins=1))
    result = simulate(Mifa(steps(1, 0.4, lr_decay=0.5), Full()), people, 4)
    x = 0.0
    for t in range(4):
        x -= 0.4 * 0.5**t * ((x - 1) - 3) / 2
    assert float(result.model[0]) == pytest.approx(x, rel=1e-12)


def test_fednova_counts_effective_steps_at_the_rate_in_use() -> None:
    """a_i = (1 - (1 - lr_t decay)^K_i) / (lr_t decay), in round 1 with lr_1 = 0.05; weights a_bar p_i / a_i."""
    work = LocalSGD(0.1, batch_size=4, lr_decay=0.5, weight_decay=2.0)
    jobs = turnout.simulate(Task(mlp), population(), FedNova(work, Full()), rounds=2).jobs()
    second = jobs["round"] == jobs["round"].max()
    order = np.argsort(jobs["client"][second])
    k, weights = (jobs[name][second][order] for name in ("steps", "weight"))
    a, p = (1 - (1 - 0.05 * 2) ** k.astype(float)) / (0.05 * 2), np.array(SIZES) / sum(SIZES)
    np.testing.assert_allclose(weights, (p * a).sum() * p / a, rtol=1e-9)


def test_scaffold_learns_with_a_falling_rate() -> None:
    """Control variates are gradients: delta / (K lr) must use the rate of the round, or they blow up as it falls."""
    result = simulate(Scaffold(steps(3, 0.2, lr_power=0.5), Full()), clients([1.0, 3.0], "equal", [1.0, 4.0]), 300)
    assert float(result.model[0]) == pytest.approx((1.0 + 4 * 3.0) / 5, abs=1e-6)


def test_a_resumed_run_has_the_same_rates(tmp_path: Any) -> None:
    def plan(rounds: int) -> turnout.Experiment:
        work = LocalSGD(0.1, batch_size=4, epochs=2, lr_decay=0.8)
        return experiment("windowed", rounds, algorithm=Windowed(work))

    whole = turnout.execute(plan(6))
    turnout.execute(plan(3), tmp_path / "run", checkpoint_every=1)
    resumed = turnout.execute(plan(6), tmp_path / "run", checkpoint_every=1, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert not torch.equal(whole.model, turnout.execute(experiment("windowed", 6)).model)


@pytest.mark.parametrize("option", ["lr_decay", "lr_power"])
def test_bad_schedules(option: str) -> None:
    with pytest.raises(UserError, match=f"local.{option}: -0.5"):
        LocalSGD(0.1, **{option: -0.5})  # type: ignore[arg-type]
