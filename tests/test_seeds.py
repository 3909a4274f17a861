"""One seed governs a run from Python as it does from the command line; whoever fixes a part's seed says so."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import turnout
from turnout import FedAvg, LocalSGD, Plan, Population, Simulation, Task, Uniform, UserError
from turnout.clients.arriving import constant
from turnout.clients.memories import Reservoir
from turnout.clients.quality import degrade

DIGITS = turnout.datasets.load("digits")
LINEAR = partial(turnout.models.linear, 64, 10)
dealt = partial(Population.of, DIGITS, 6, "dirichlet", partition_options={"alpha": 0.5}, unseen_fraction=0.3)


def run(task: Task, people: Population, seed: int) -> turnout.Result:
    work = LocalSGD(lr=0.1, steps=1, batch_size=4)
    return turnout.simulate(task, people, FedAvg(work, Uniform(2)), 1, seed=seed, plan=Plan(threads=1))


def same_people(one: Population, two: Population) -> bool:
    assert one.test is not None
    assert two.test is not None
    rows = (np.array_equal(getattr(one, name).values, getattr(two, name).values) for name in ("train", "test"))
    return all(rows) and np.array_equal(one.joined_at, two.joined_at) and one.seed == two.seed  # type: ignore[arg-type]


def test_the_seed_of_a_run_draws_the_first_model_and_deals_the_samples() -> None:
    task, people = Task(LINEAR), dealt()
    zero, one = run(task, people, 0), run(task, people, 1)
    assert torch.equal(zero.server.task.initial, task.initial)
    assert not torch.equal(one.server.task.initial, zero.server.task.initial)
    assert same_people(zero.population, people)
    assert not same_people(one.population, people)
    assert same_people(one.population, dealt(seed=1))
    assert torch.equal(one.model, run(Task(LINEAR, seed=1), dealt(seed=1), 1).model)  # as on the command line


def test_a_part_with_a_seed_of_its_own_keeps_it() -> None:
    fixed, people = Task(LINEAR, seed=0), dealt(seed=0)
    found = run(fixed, people, 1)
    assert torch.equal(found.server.task.initial, fixed.initial)
    assert found.population is people
    module = LINEAR()
    assert torch.equal(run(Task(module), people, 1).server.task.initial, Task(module).initial)
    started = Task(LINEAR).starting_from(torch.zeros(650))
    assert not run(started, people, 1).server.task.initial.any()


def test_what_was_replaced_since_stays() -> None:
    late = replace(dealt(), crashes=turnout.Crashes(0.5), left_at=np.full(6, 1e6))
    found = run(Task(LINEAR), late, 1).population
    assert found.crashes.probability == 0.5
    assert found.left_at is late.left_at
    assert np.array_equal(found.train.values, dealt(seed=1).train.values)


def test_streams_are_dealt_again_and_spoilt_samples_are_not() -> None:
    def stream(people: Population) -> Population:
        return people.streaming(constant(2.0), Reservoir(8), fresh=0.5)

    again, given = stream(dealt()).seeded(3), stream(dealt(seed=3))
    assert np.array_equal(again.train.values, given.train.values)
    assert np.array_equal(again.stream.period, given.stream.period)  # type: ignore[union-attr]
    spoilt, _ = degrade(dealt(), {"gaussian_noise": 0.5}, seed=1)
    assert run(Task(LINEAR), spoilt, 0).population is spoilt
    with pytest.raises(
        UserError, match=r"population.inputs: changed after it was dealt by seed 0, and the run's seed is"
    ):
        run(Task(LINEAR), spoilt, 1)


def test_every_way_to_run_has_the_same_population() -> None:
    people, task = dealt(), Task(LINEAR)
    algorithm = FedAvg(LocalSGD(lr=0.1), Uniform(2))
    wanted = dealt(seed=2)
    assert same_people(Simulation(task, people, algorithm, seed=2).whole_population, wanted)
    assert same_people(turnout.rehearse(algorithm, people, 1, seed=2).whole_population, wanted)
    planned, given = (turnout.schedule(algorithm, some, 3, seed=2) for some in (people, wanted))
    assert np.array_equal(planned.client, given.client)
