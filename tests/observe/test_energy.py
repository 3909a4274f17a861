"""What devices spend, where the population says what they draw."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout
from support import local, mlp, population
from turnout import Algorithm, Crashes, FedAvg, Full, Links, LocalSGD, Plan, Population, Server, Task, devices
from turnout.algorithms import Centralised
from turnout.clients.power import Power
from turnout.server.updates import Updates

SPEED = np.array([0.5, 1.0, 2.0, 1.0])
POWER = Power(SPEED, transmit=2.0, compute=3.0)


def people(power: Power | None = POWER) -> Population:
    """Four clients that take 1, 2, 3 and 4 seconds to work and a second each way; the last one always crashes."""
    return population(
        (1, 1, 1, 1),
        devices=devices.table([1.0, 2.0, 3.0, 4.0]),
        links=Links(down=8e3, up=8e3),
        model_bytes=1000,
        crashes=Crashes(np.array([0.0, 0.0, 0.0, 1.0])),
        power=power,
    )


def run(algorithm: Algorithm, world: Population, rounds: int = 2, **options: Any) -> turnout.Result:
    return turnout.simulate(Task(mlp), world, algorithm, rounds, plan=Plan(threads=1), **options)


def test_energy_by_hand() -> None:
    """Joules: 2 W for two seconds on the air, 3 W times speed^3 at work. The deadline cuts off client 2 half-way
    through its upload; client 3 crashes at work, after its download."""
    result = run(FedAvg(local(), Full(), deadline=4.5), people(), 1)
    jobs, rounds = result.jobs(), result.rounds()
    spent = dict(zip(jobs["client"].tolist(), (POWER.watt_hours(jobs) * 3600).tolist(), strict=True))
    assert spent[0] == pytest.approx(2 * 2 + 3 * 0.125 * 1)
    assert spent[1] == pytest.approx(2 * 2 + 3 * 1 * 2)
    assert spent[2] == pytest.approx(2 * 1.5 + 3 * 8 * 3)
    worked = float(jobs["compute_seconds"][jobs["client"] == 3][0])
    assert 0 < worked < 4
    assert spent[3] == pytest.approx(2 * 1 + 3 * worked)
    assert rounds["energy_wh"][1] * 3600 == pytest.approx(sum(spent.values()))
    assert rounds["wasted_wh"][1] * 3600 == pytest.approx(spent[2] + spent[3])
    assert rounds["energy_wh"][0] == rounds["wasted_wh"][0] == 0


@dataclass
class Remembering(Algorithm):
    """Publishes the first updates again and again, with the new ones."""

    local: LocalSGD
    first: list[Updates] = field(default_factory=list)

    def run(self, server: Server) -> None:
        for _ in server.rounds():
            server.invite(server.population.ids, self.local)
            updates = server.wait()
            self.first = self.first or [updates]
            old = self.first[0] if server.version else updates.select(np.zeros(len(updates), bool))
            server.publish(server.model, updates + old, np.ones(len(updates) + len(old)))


@pytest.mark.parametrize("later", [False, True])
def test_the_columns_add_up(later: bool) -> None:
    """Also where old updates are used again: they are charged once."""
    result = run(Remembering(local()) if later else FedAvg(local(), Full(), deadline=3.5), people(), 5)
    jobs, rounds = result.jobs(), result.rounds()
    assert (jobs["outcome"] == "used_later").any() == later
    spent = POWER.watt_hours(jobs)
    np.testing.assert_allclose(rounds["energy_wh"], np.bincount(jobs["round"], spent, minlength=6))
    idle = jobs["weight"] == 0
    np.testing.assert_allclose(rounds["wasted_wh"], np.bincount(jobs["round"][idle], spent[idle], minlength=6))
    assert result.efficiency["energy_wh"] == pytest.approx(spent.sum())
    assert result.efficiency["wasted_wh"] == pytest.approx(spent[idle].sum())


def test_nobody_asks() -> None:
    result = run(FedAvg(local(), Full()), people(power=None))
    assert "energy_wh" not in result.rounds()
    assert "energy_wh" not in result.efficiency
    central = run(Centralised(local()), people())  # whose devices train nothing
    assert "energy_wh" not in central.efficiency


def test_it_goes_on_after_a_resume(tmp_path: Path) -> None:
    def trial(rounds: int) -> turnout.Experiment:
        stopping = turnout.Stopping(rounds)
        return turnout.Experiment(Task(mlp), people(), FedAvg(local(), Full()), stopping=stopping, plan=Plan(threads=1))

    whole = turnout.execute(trial(4))
    turnout.execute(trial(2), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(trial(4), tmp_path, checkpoint_every=1, resume=True)
    assert resumed.efficiency == whole.efficiency
    np.testing.assert_array_equal(resumed.rounds()["energy_wh"], whole.rounds()["energy_wh"])
