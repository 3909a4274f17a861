"""The engine over workers elsewhere: equal to the one here, and the same bits whoever computes and whoever dies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import turnout
from in_process import InProcess, shared_work
from support import EXERCISES, WORLD, Idle, Windowed, conv, experiment, local, mlp, population, same, simulation
from turnout import FedAvg, Full, LocalSGD, Plan, Task, UserError
from turnout.cli.commands import app
from turnout.clients import behaviour
from turnout.config import config
from turnout.core.ragged import Ragged
from turnout.core.random import key
from turnout.engine import remote
from turnout.engine.batches import Jobs
from turnout.engine.blocks import Block, in_order
from turnout.engine.paths import reason_apart
from turnout.engine.remote import RemoteEngine, cut
from turnout.engine.train import Cohort
from turnout.server.simulation import Simulation

LIARS = behaviour.SignFlip(clients=[1, 2, 4, 6])
KINDS = (
    "fedavg", "fedbuff", "safa", "scaffold", "fedem", "fedper", "clustered_fl", "dpasgd", *EXERCISES,
)  # fmt: skip  # what differs in what is sent, kept, or done with it


def jobs_of(sizes: list[int], **options: Any) -> Jobs:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    clients = np.arange(len(sizes))
    models = torch.zeros(1, 2)
    samples = Ragged(offsets, np.arange(offsets[-1]))
    return Jobs(LocalSGD(0.1, **options), key(0, "x", clients), models, clients * 0, samples, {}, {})


def given(name: str, rounds: int = 3, **options: Any) -> turnout.Experiment:
    return experiment(name, rounds, evaluation=turnout.Evaluation(clients=1), **options)


def finished(name: str, rounds: int = 3, **options: Any) -> turnout.Result:
    return turnout.execute(given(name, rounds, **options))


def assert_same(one: turnout.Result, two: turnout.Result) -> None:
    assert torch.equal(one.model, two.model)
    assert same(one.rounds(), two.rounds())
    assert same(one.jobs(), two.jobs())


# -- the cut ----------------------------------------------------------------------------------------------------


def test_blocks_have_about_the_same_cost_and_the_costliest_is_first() -> None:
    """Steps of one epoch in batches of 1: 9 5 4 3 2 1, 24 together; three blocks of 8 would be 9 | 5 4 | 3 2 1."""
    parts = cut(jobs_of([3, 9, 1, 5, 2, 4], batch_size=1), 3)
    assert [rows.tolist() for rows in parts] == [[1], [3, 5], [0, 2, 4]]


@pytest.mark.parametrize("blocks", [1, 2, 7, 100])
def test_every_job_is_in_one_block(blocks: int) -> None:
    sizes = [1 + number * 7 % 13 for number in range(40)]
    parts = cut(jobs_of(sizes, batch_size=2), blocks)
    assert sorted(np.concatenate(parts).tolist()) == list(range(40))
    assert len(parts) <= blocks
    assert all(len(rows) for rows in parts)


def test_jobs_without_a_step_are_cut_too() -> None:
    assert len(cut(jobs_of([1] * 6, epochs=0), 3)) == 3


# -- equality ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_as_on_one_machine(name: str) -> None:
    plan = Plan(threads=1, precision="float64")
    here = finished(name, plan=plan)
    with shared_work(3):
        there = finished(name, plan=plan)
    assert float((there.model - here.model).norm()) <= 1e-9 * float(here.model.norm())
    assert there.jobs()["client"].tolist() == here.jobs()["client"].tolist()


def test_learning_rates_follow_the_version_of_each_job() -> None:
    options = {"algorithm": Windowed(local(lr_power=1.0)), "plan": Plan(threads=1, precision="float64")}
    here = finished("windowed", 5, **options)
    with shared_work(3):
        there = finished("windowed", 5, **options)
    assert float((there.model - here.model).norm()) <= 1e-9 * float(here.model.norm())


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_single_precision_and_images(engine: str) -> None:
    plan = Plan(threads=1, engine=engine)
    here = finished("windowed", model=conv, plan=plan)
    with shared_work(2):
        there = finished("windowed", model=conv, plan=plan)
    assert float((there.model - here.model).norm()) <= 1e-5 * float(here.model.norm())


@pytest.mark.parametrize("name", ["fedavg", "scaffold", *EXERCISES])
def test_neither_the_number_of_workers_nor_deaths_change_a_bit(name: str) -> None:
    with shared_work(1):
        alone = finished(name)
    with shared_work(4) as pools:
        assert_same(finished(name), alone)
        calls = len(pools[0].calls)
    with shared_work(4, deaths=[2, calls // 3, calls // 2]) as pools:
        assert_same(finished(name), alone)
    assert 1 <= len(pools[0].dead) <= 3


def test_a_death_at_any_call() -> None:
    """Liars, so that vectors are changed where they are, and jobs in flight, so that blocks are made smaller."""
    people = replace(population(**WORLD), behaviour=LIARS)
    with shared_work(2) as pools:
        whole = finished("windowed", people=people)
    methods = [method for _, method, _ in pools[0].calls]
    assert set(methods) == {"train", "look", "change", "forget"}
    for call in {*range(0, len(methods), 5), *map(methods.index, ("change", "forget"))}:
        with shared_work(2, deaths=[call]) as broken:
            assert_same(finished("windowed", people=people), whole)
        assert len(broken[0].dead) == 1


def test_when_all_have_died() -> None:
    with shared_work(2, deaths=[1, 2]), pytest.raises(UserError, match="engine: every worker has died, the last of"):
        finished("fedavg")


@pytest.mark.parametrize("name", ["windowed", "stateful", "continuing"])
def test_through_a_checkpoint(name: str, tmp_path: Path) -> None:
    """What is trained and not used comes home with a checkpoint, and is there when others go on."""
    with shared_work(3):
        whole = finished(name, 4)
        turnout.execute(given(name, 2), tmp_path, checkpoint_every=1)
    with shared_work(2):
        goes_on = given(name, 4, plan=Plan(threads=1, workers=2, address="elsewhere:1"))
        resumed = turnout.execute(goes_on, tmp_path, checkpoint_every=1, resume=True)
    assert_same(resumed, whole)
    assert (resumed.server.plan.workers, resumed.server.plan.address) == (2, "elsewhere:1")


def test_liars_lie_alike() -> None:
    people = replace(population(**WORLD), behaviour=LIARS)
    plan = Plan(threads=1, precision="float64")
    for name in ("fedavg", "continuing", "fetching"):
        here = finished(name, people=people, plan=plan)
        with shared_work(3):
            there = finished(name, people=people, plan=plan)
        assert float((there.model - here.model).norm()) <= 1e-9 * float(here.model.norm()), name


# -- what updates say -------------------------------------------------------------------------------------------


def invited(people: turnout.Population | None = None) -> Simulation:
    server = simulation(Idle(), people, plan=Plan(threads=1, precision="float64"))
    server.invite(server.population.ids, local())
    return server


def test_rows_norms_and_sums_are_those_of_the_vectors() -> None:
    here = invited().wait()
    with shared_work(3):
        there = invited().wait()
        weights = np.arange(len(there)) - 2.0
        torch.testing.assert_close(there.deltas, here.deltas, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(there.norms(), here.norms(), rtol=1e-12, atol=0)
        torch.testing.assert_close(there.weighted_sum(weights), here.weighted_sum(weights), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(there.gram(), here.gram(), rtol=1e-12, atol=1e-14)
        some, same_here = there.select([6, 1]), here.select([6, 1])
        torch.testing.assert_close(some.deltas, same_here.deltas, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(some.weighted_sum([2, 3]), same_here.weighted_sum([2, 3]), rtol=1e-12, atol=1e-14)
        one = there.select([3])
        torch.testing.assert_close(one.weighted_sum([2]), 2 * here.deltas[3], rtol=1e-12, atol=1e-14)


def test_a_row_that_is_not_finite_is_found_where_it_is() -> None:
    people = population()
    people.inputs[people.train.row(4)[0]] = torch.nan
    with shared_work(3) as pools:
        server = invited(people)
        updates = server.wait()
        assert updates.finite().tolist() == [client != 4 for client in updates.clients]
        assert server.finite(updates).clients.tolist() == [client for client in updates.clients if client != 4]
        assert {answer.shape[1:] for _, method, answer in pools[0].calls if method == "look"} == {()}  # no vector


def test_a_sum_brings_no_more_home_than_a_vector_for_each_block() -> None:
    with shared_work(2, blocks=3) as pools:
        updates = invited().wait()
        total = updates.weighted_sum(np.ones(len(updates)))
        looks = [answer for _, method, answer in pools[0].calls if method == "look"]
        assert [answer.shape for answer in looks] == [total.shape] * 3
        brought = [answer for _, method, answer in pools[0].calls if method == "train"]
        assert [(answer.kept, answer.payload) for answer in brought] == [(["delta"], {})] * 3


def test_what_is_small_comes_home_at_once() -> None:
    with shared_work(2) as pools:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remote, "SMALL", 4096)
            updates = invited().wait()
            assert updates.deltas.shape == (8, Task(mlp).size)
        assert [method for _, method, _ in pools[0].calls] == ["train"] * 3
        assert not any(worker.blocks for worker in pools[0].staff)


def test_workers_keep_what_somebody_refers_to() -> None:
    """Three rounds of everybody: each has its three blocks, and those of the round before are gone."""
    with shared_work(2, blocks=3) as pools:
        result = finished("fedavg", 3, algorithm=FedAvg(local(), Full()), people=population())
        held = [number for worker in pools[0].staff for number in worker.blocks]
        assert sorted(held) == [6, 7, 8]
        assert pools[0].ended  # although the server
        assert result.server.version == 3  # is still there


def test_models_are_sent_once_to_a_call() -> None:
    with shared_work(2, blocks=4) as pools:
        server = invited()
        server.wait(1).deltas  # noqa: B018  which starts the pool
        shared: list[Any] = []
        pools[0].put = lambda array: shared.append(array) or array  # type: ignore[method-assign, func-returns-value]
        server.invite(server.wait().clients, local())
        server.wait().deltas  # noqa: B018
        assert [array.shape for array in shared] == [(1, len(server.model))]


def test_vectors_outlive_their_workers() -> None:
    with shared_work(2) as pools:
        server = invited()
        updates = server.wait()
        before = updates.deltas
        server._engine.close()
        assert torch.equal(updates.deltas, before)
        assert [pool.ended for pool in pools] == [True, False]


def test_an_engine_that_is_dropped_ends_its_workers() -> None:
    people, task = population(), Task(mlp)
    cohort = Cohort(task, people.inputs, people.targets, Plan(threads=1).resolve())
    pool = InProcess(cohort, 1)
    engine = RemoteEngine(cohort, 2, lambda: pool)
    engine.train(replace(jobs_of([3, 4]), models=task.initial[None]), [0, 0], False)
    del engine
    assert pool.ended


def one_block(**options: Any) -> tuple[RemoteEngine, InProcess, Block]:
    people, task = population(), Task(mlp)
    cohort = Cohort(task, people.inputs, people.targets, Plan(threads=1).resolve())
    pool = InProcess(cohort, 2)
    engine = RemoteEngine(cohort, 1, lambda: pool)
    jobs = replace(jobs_of([3, 4, 2], **options), models=task.initial[None])
    return engine, pool, engine.train(jobs, [0, 0, 0], False)[0].payload


def test_vectors_that_were_changed_are_so_again_after_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SMALL", 0)
    engine, pool, block = one_block()
    block.put("delta", [1], torch.ones(1, Task(mlp).size))
    fewer = block.take([2, 1])
    expected = torch.stack([block["delta"][2], torch.ones(Task(mlp).size)])
    assert torch.equal(fewer["delta"], expected)
    pool.dead.add(0)
    assert torch.equal(fewer["delta"], expected)
    assert engine._pool is pool


def test_a_block_can_be_in_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SMALL", 1)
    _engine, pool, block = one_block(report="loss")
    assert set(block) == {"delta", "loss"}
    losses = block["loss"].clone()
    assert [method for _, method, _ in pool.calls] == ["train"]
    block.put("loss", [2], torch.tensor([7.0]))
    assert block.take([2, 0])["loss"].tolist() == [7.0, float(losses[0])]


# -- blocks -----------------------------------------------------------------------------------------------------


def test_answers_come_in_order_and_few_are_asked_ahead() -> None:
    asked: list[int] = []

    def ask(number: int) -> Any:
        asked.append(number)
        return lambda: torch.tensor(number)

    answers = in_order(ask(number) for number in range(30))
    for number in range(30):
        assert int(next(answers)) == number
        assert len(asked) <= number + 8


def test_a_block_that_is_asked_for_all_its_rows_copies_nothing() -> None:
    values = torch.randn(3, 5)
    block = Block({"delta": values})
    assert block.some("delta", [0, 1, 2]) is values
    assert torch.equal(block.take([2, 0])["delta"], values[[2, 0]])
    block.put("delta", [1], torch.ones(1, 5))
    assert torch.equal(block["delta"], torch.stack([values[0], torch.ones(5), values[2]]))
    assert block.rows == 3


# -- the plan ---------------------------------------------------------------------------------------------------


def test_where_a_run_is_computed_is_no_part_of_its_configuration() -> None:
    def named(*overrides: str) -> str:
        return config.build(config.read("digits", list(overrides)))[0].fingerprint

    first = named("engine.engine=ray")
    assert named("engine.engine=ray", "engine.workers=7", "engine.address=10.0.0.1:6379") == first
    assert named("engine.engine=ray", "engine.blocks=7") != first
    assert named() != first


def test_the_plan_of_a_worker_is_that_of_one_machine() -> None:
    plan = Plan(engine="ray", workers=3).resolve()
    assert (plan.engine, plan.threads) == ("ray", 1)
    assert reason_apart(Task(conv), plan) == "the model has convolutions and the device is a CPU"
    assert reason_apart(Task(mlp), plan) == ""


@pytest.mark.parametrize(("option", "value"), [("blocks", 0), ("workers", -1)])
def test_bad_numbers(option: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"engine\.{option}: {value} must be"):
        Plan(**{option: value})  # type: ignore[arg-type]


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    done = CliRunner().invoke(app, ["run", "digits", "engine.engine=ray", f"run.folder={tmp_path}"])
    assert done.exit_code == 2
    assert 'engine.engine: ray is not installed; pip install -e ".[ray]"' in done.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())
    done = CliRunner().invoke(app, ["sweep", "digits", "seed=0,1", "--ray", "local", f"run.folder={tmp_path}"])
    assert done.exit_code == 2
    assert '--ray: ray is not installed; pip install -e ".[ray]"' in done.stderr.replace("\n", " ")
