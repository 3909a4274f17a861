"""Clients trained by threads of their own: the server goes on, and not a bit depends on who computes what when."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from support import SIZES, conv, images, local
from turnout import (
    AsyncFedAvg,
    FedAvg,
    FedBuff,
    Full,
    LocalSGD,
    Observer,
    Plan,
    Server,
    Simulation,
    Stopping,
    Task,
    UserError,
    devices,
)
from turnout.aggregation.optimisers import Step
from turnout.core import random
from turnout.core.threads import threads
from turnout.engine.background import Background, Compute, Late, Part
from turnout.engine.batches import Jobs
from turnout.engine.blocks import Block
from turnout.engine.engine import Engine
from turnout.engine.plain_sgd import PlainSGD
from turnout.engine.train import Cohort
from turnout.server.observer import Round

PATIENCE = 30  # seconds until a thread that waits in vain gives up


class Table:
    """Rows that get their number when they are computed."""

    def __init__(self, rows: int, before: Callable[[int], None] = lambda _: None) -> None:
        self.rows, self.before, self.begun = torch.full((rows,), -1), before, list[int]()

    def compute(self, part: slice) -> None:
        self.begun.append(part.start)
        self.before(part.start)
        self.rows[part] = torch.arange(part.start, part.stop)


PARTS = [slice(0, 2), slice(2, 4), slice(4, 6)]


def test_a_caller_has_its_rows_while_others_are_being_computed() -> None:
    begun, asked_for = threading.Event(), threading.Event()

    def slow(first: int) -> None:
        if first == 0:
            begun.set()
            assert asked_for.wait(PATIENCE), "the caller waits for rows it has not asked for"

    table, background = Table(6, slow), Background()
    late = background.spread(table.compute, PARTS, 2)
    assert begun.wait(PATIENCE)
    late.wait([3, 5])
    assert table.rows.tolist() == [-1, -1, 2, 3, 4, 5]
    asked_for.set()
    late.wait()
    assert table.rows.tolist() == [0, 1, 2, 3, 4, 5]
    background.call_off()


def test_one_thread_takes_them_in_order() -> None:
    table, background = Table(6), Background()
    background.spread(table.compute, PARTS, 1).wait([5])
    assert table.begun == [0, 2, 4]
    background.call_off()


def at_hand(table: Table) -> Late:
    """Rows that whoever waits for them computes."""
    parts = [Part(rows, table.compute) for rows in PARTS]
    for part in parts:
        part.begun.cancel()
    return Late(parts)


@pytest.mark.parametrize("width", [1, 3])
def test_what_went_wrong_is_raised_where_it_is_asked_for_and_every_time(width: int) -> None:
    def fail(first: int) -> None:
        if first == 2:
            raise ValueError("no such sample")

    background = Background()
    table = Table(6, fail)
    late = background.spread(table.compute, PARTS, width)
    late.wait([0])
    late.wait([4])
    with pytest.raises(ValueError, match="no such sample"):
        background.finish()
    for _ in range(2):
        with pytest.raises(ValueError, match="no such sample"):
            late.wait([1, 3])
    with pytest.raises(ValueError, match="no such sample"):
        late.wait()
    background.call_off()


def test_what_was_called_off_is_computed_once_even_if_another_part_cannot_be() -> None:
    failing = {2}

    def fail(first: int) -> None:
        if first in failing:
            raise ValueError("no such sample")

    table = Table(6, fail)
    late = at_hand(table)
    with pytest.raises(ValueError, match="no such sample"):
        late.wait()
    failing.clear()
    late.wait()
    assert table.rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert table.begun == [0, 2, 2, 4]


def test_who_wants_what_was_called_off_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, shutdown = threading.Event(), threading.Event(), ThreadPoolExecutor.shutdown

    def then_go_on(self: ThreadPoolExecutor, **options: Any) -> None:
        shutdown(self, wait=False, **options)
        go_on.set()
        shutdown(self)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", then_go_on)

    def first_of_all(first: int) -> None:
        if first == 0:
            begun.set()
            assert go_on.wait(PATIENCE)

    table, background = Table(6, first_of_all), Background()
    late = background.spread(table.compute, PARTS, 1)
    assert begun.wait(PATIENCE)
    background.call_off()  # waits for what has begun
    assert table.rows.tolist() == [0, 1, -1, -1, -1, -1]
    late.wait([2])
    assert table.rows.tolist() == [0, 1, 2, 3, -1, -1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]


@pytest.mark.parametrize("width", [1, 3])
def test_kernels_have_one_thread_each_whoever_computes(width: int) -> None:
    seen, background = list[int](), Background()
    table = Table(6, lambda _: seen.append(torch.get_num_threads()))
    with threads(2):
        with threads(1):
            late = background.spread(table.compute, PARTS, width)
        late.wait()
        assert torch.get_num_threads() == 2
    assert seen == [1, 1, 1]
    background.call_off()


def test_rows_that_are_there_do_not_make_others_needed() -> None:
    table = Table(6)
    late = at_hand(table)
    for rows in ([2], [3, 2], [4], [3, 5]):
        late.wait(rows)
    assert table.begun == [2, 4]
    late.wait()
    assert table.begun == [2, 4, 0]


def test_rows_that_nobody_waits_for_any_more_are_not_computed() -> None:
    """And what they would have needed is let go of."""
    begun, go_on = threading.Event(), threading.Event()

    def first_of_all(first: int) -> None:
        if first == 0:
            begun.set()
            assert go_on.wait(PATIENCE)

    table, background = Table(6, first_of_all), Background()
    kept = weakref.ref(table)
    late = background.spread(table.compute, PARTS, 1)
    assert begun.wait(PATIENCE)
    del late
    go_on.set()
    background.finish()
    assert table.begun == [0]
    del table
    background.spread(Table(2).compute, PARTS[:1], 1).wait()
    assert kept() is None
    background.call_off()


def test_an_interrupt_leaves_rows_to_be_computed() -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupted(_: int) -> None:
        if interrupts:
            raise interrupts.pop()

    table = Table(6, interrupted)
    late = at_hand(table)
    with pytest.raises(KeyboardInterrupt):
        late.wait([2])
    late.wait([2])
    assert table.rows.tolist() == [-1, -1, 2, 3, -1, -1]


def test_threads_that_cannot_be_started_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    submit, calls = ThreadPoolExecutor.submit, list[int]()

    def refused(self: ThreadPoolExecutor, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("can't start new thread")
        return submit(self, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    table, background = Table(6), Background()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        background.spread(table.compute, PARTS, 4)
    background.spread(table.compute, PARTS, 3).wait()
    assert table.rows.tolist() == [0, 1, 2, 3, 4, 5]
    background.call_off()


def test_a_block_is_not_waited_for_to_say_what_it_has() -> None:
    table = Table(6)
    block = Block({"delta": table.rows}, at_hand(table))
    assert "delta" in block
    assert "loss" not in block
    assert (block.rows, len(block), list(block), table.begun) == (6, 1, ["delta"], [])
    assert block.take([3]).some("delta", [0]).tolist() == [3]
    assert table.begun == [2]


@pytest.mark.parametrize(("rows", "expected"), [([1], [1.5, 2]), ([0, 1], [2, 3])])
def test_whole_numbers_are_weighed_too(rows: list[int], expected: list[float]) -> None:
    block = Block({"seen": torch.tensor([[1, 2], [3, 4]])})
    assert block.weighted_sum("seen", rows, np.full(len(rows), 0.5)).tolist() == expected


def cohort(plan: Plan, sizes: tuple[int, ...] = SIZES) -> tuple[Cohort, Jobs]:
    """Of unequal clients, from two versions."""
    task, people, clients = Task(conv, seed=3), images(sizes), np.arange(len(sizes))
    models = torch.stack([task.initial, 1.1 * task.initial])
    keys = random.key(3, "x", clients)
    jobs = Jobs(local(), keys, models, clients % 2, people.train.rows(clients), {}, {})
    return Cohort(task, people.inputs, people.targets, plan.resolve()), jobs


@pytest.mark.parametrize("sizes", [SIZES, (9,) * 20])
def test_each_job_has_its_own_row(sizes: tuple[int, ...]) -> None:
    whole, jobs = cohort(Plan(threads=2), sizes)
    expected = whole.train(jobs).payload["delta"]
    with threads(1):
        found = Engine(whole).train(jobs, [0] * len(sizes), False)
        for rows, block, *_ in found:
            assert block._late is not None
            for here, row in reversed(list(enumerate(rows))):
                assert torch.equal(block.some("delta", [here])[0], expected[row])
    whole.close()


def test_what_goes_ahead_is_let_go_row_by_row() -> None:
    whole, jobs = cohort(Plan(threads=2), (9,) * 20)
    jobs = replace(jobs, models=list(jobs.models), ahead=True)
    expected = whole.train(jobs).payload["delta"]
    with threads(1):
        found = Engine(whole).train(jobs, [0] * 20, False)
        assert [list(result.rows) for result in found] == [[row] for row in range(20)]
        places = set()
        for result, row in zip(found, expected, strict=True):
            assert torch.equal(result.payload["delta"][0], row)
            places.add(result.payload["delta"].untyped_storage().data_ptr())
        assert len(places) == 20
    whole.close()


@pytest.mark.parametrize("kept", [[0], [19]])
def test_rows_are_withdrawn_only_when_nobody_refers_to_any_of_a_block(kept: list[int]) -> None:
    whole, jobs = cohort(Plan(threads=1), (9,) * 20)
    jobs = replace(jobs, ahead=True)
    expected = whole.train(jobs).payload["delta"]
    go_on, trained = threading.Event(), list[int]()
    block = whole._plain._block

    def watched(*arguments: Any) -> None:
        assert go_on.wait(PATIENCE)
        trained.append(len(arguments[0]))
        block(*arguments)

    whole._plain._block = watched  # type: ignore[assignment, method-assign]
    with threads(1):
        found = Engine(whole).train(jobs, [0] * 20, False)
        mine = [found[row].payload for row in kept]
        first = found[0].payload  # is being trained already
        del found
        go_on.set()
        for payload, row in zip(mine, kept, strict=True):
            assert torch.equal(payload["delta"][0], expected[row])
        whole._plain.background.finish()
    assert trained == ([8] if kept == [0] else [8, 4])
    assert torch.equal(first["delta"][0], expected[0])
    whole.close()


def test_what_rows_are_made_of_is_let_go_when_they_are_there() -> None:
    background = Background()

    class Stuff:
        def __call__(self, _rows: slice) -> None:
            pass

    stuff = Stuff()
    gone = weakref.ref(stuff)
    late = background.spread(stuff, [slice(0, 2)], 1)
    del stuff
    background.finish()
    background.call_off()
    assert gone() is None
    late.wait()


def test_jobs_that_are_picked_bring_their_models_only() -> None:
    _, jobs = cohort(Plan(threads=1))
    models = [torch.full((3,), float(version)) for version in range(4)]
    jobs = replace(jobs, models=models, received=np.array([3, 1, 0, 1, 2, 3, 0, 1]))
    picked = jobs.take(np.array([3, 0, 1]))
    assert [float(picked.models[version][0]) for version in picked.received] == [1, 3, 1]
    assert len(picked.models) == 2
    assert picked.models[0] is models[1]  # not a copy


def test_a_caller_with_more_threads_waits() -> None:
    whole, jobs = cohort(Plan(threads=2))
    with threads(2):
        assert whole.train(jobs, may_be_late=True).late is None
    with threads(1):
        assert whole.train(jobs, may_be_late=True).late is not None
    whole.close()


def test_all_threads_are_free_before_the_server_takes_them() -> None:
    whole, jobs = cohort(Plan(threads=2))
    with threads(1):
        late = whole.train(jobs, may_be_late=True).late
        assert late is not None
        with whole.all_threads():
            assert torch.get_num_threads() == 2
            assert all(part.there for part in late._parts)
        assert torch.get_num_threads() == 1
    whole.close()


@pytest.mark.parametrize(("at_once", "width"), [(8, 1), (16, 2), (31, 3), (1000, 4)])
def test_no_more_threads_than_there_is_memory_for_their_clients(at_once: int, width: int) -> None:
    whole, jobs = cohort(Plan(threads=4), (9,) * 20)
    size = whole._size(jobs)[0]._replace(limit=at_once)
    with threads(1):
        moved = whole.task.initial.new_empty(20, whole.task.size)
        late = whole._plain.begin_training(jobs, size, moved)
        late.wait()
    assert whole._plain.background._width == width
    assert torch.equal(moved, whole.train(jobs).payload["delta"])
    whole.close()


def asynchronous(work: LocalSGD) -> Any:
    return AsyncFedAvg(work)


def buffered(work: LocalSGD) -> Any:
    return FedBuff(work, buffer_size=3, mode="restart")


def synchronous(work: LocalSGD) -> Any:
    return FedAvg(work, Full())


def simulation(
    algorithm: Callable[[LocalSGD], Any], plan: Plan, sizes: tuple[int, ...], rounds: int, *observers: Observer
) -> Simulation:
    people, stopping = images(sizes, devices=devices.fx(80, len(sizes))), Stopping(rounds)
    return Simulation(Task(conv, seed=3), people, algorithm(local()), stopping=stopping, plan=plan, observers=observers)


@pytest.mark.parametrize("sizes", [(*SIZES, 5, 9), (9,) * 10], ids=["unequal", "equal"])
@pytest.mark.parametrize("algorithm", [asynchronous, buffered, synchronous])
def test_neither_threads_nor_waiting_change_a_bit(
    algorithm: Callable[[LocalSGD], Any], sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [simulation(algorithm, Plan(threads=count), sizes, 25).run().model for count in (1, 2, 3)]
    train = Cohort.train

    def at_once(self: Cohort, jobs: Jobs, keep_params: bool = False, _may_be_late: bool = False) -> Any:
        return train(self, jobs, keep_params)

    monkeypatch.setattr(Cohort, "train", at_once)
    models.append(simulation(algorithm, Plan(threads=2), sizes, 25).run().model)
    assert all(torch.equal(model, models[0]) for model in models[1:3])
    if len(set(sizes)) == 1 and algorithm is not buffered:
        assert torch.equal(models[3], models[0])
    torch.testing.assert_close(models[3], models[0])  # rows that lie apart or in another order are summed otherwise


def test_what_was_trained_ahead_is_there_after_a_run() -> None:
    """Also what nobody had begun when it ended."""
    server = simulation(asynchronous, Plan(threads=2), (9,) * 10, 25)
    server.run()
    assert server.cohort._plain.background._pool is None
    ahead = [job for job in server._in_flight.values() if job.result is not None]
    assert ahead
    server._train_alike(again := [replace(job, result=None) for job in ahead])
    with threads(2):
        for one, two in zip(ahead, again, strict=True):
            assert one.result is not None
            assert two.result is not None
            rows = [block.some("delta", [row]) for block, row in (one.result, two.result)]
            torch.testing.assert_close(*rows, rtol=1e-5, atol=1e-7)
            assert bool(rows[0].any())


class Looks(Observer):
    def on_round(self, server: Server, _record: Round) -> None:
        server.clients()


@pytest.mark.parametrize("algorithm", [asynchronous, buffered])
def test_a_look_at_the_clients_changes_no_bit(algorithm: Callable[[LocalSGD], Any]) -> None:
    """It uses all threads, when nothing is under way any more."""
    people, models = images((9,) * 40, devices=devices.fx(80, 40)), []
    for observers in ([], [Looks()]):
        task, plan = Task(conv, seed=3), Plan(threads=2)
        run = Simulation(task, people, algorithm(local()), stopping=Stopping(60), plan=plan, observers=observers)
        models.append(run.run().model)
    assert torch.equal(*models)


class EachRound(Observer):
    """Has every round closed by itself."""

    def on_round(self, server: Server, record: Round) -> None: ...


@pytest.mark.parametrize("observers", [(), (EachRound(),)], ids=["in stretches", "round by round"])
def test_the_server_goes_on_while_clients_are_trained(
    observers: tuple[Observer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread is held up with clients that come later until the server has used the first."""
    holding, used, spread, calls = threading.Event(), threading.Event(), Background.spread, count()

    def held_up(self: Background, compute: Compute, *where: Any) -> Late:
        first = next(calls) == 0

        def block(rows: slice) -> None:
            if not first:
                holding.set()
                assert used.wait(PATIENCE), "the server waits for clients it does not need yet"
            compute(rows)

        return spread(self, block, *where)

    monkeypatch.setattr(Background, "spread", held_up)
    server = simulation(asynchronous, Plan(threads=2), (9,) * 26, 25, *observers)
    step, during = Step.step, list[bool]()

    def stepped(*arguments: Any) -> Any:
        moved = step(*arguments)
        assert holding.wait(PATIENCE)
        during.append(not used.is_set())
        used.set()
        return moved

    monkeypatch.setattr(Step, "step", stepped)
    server.run()
    assert during == [True] + [False] * 24


def test_a_client_that_cannot_be_trained_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("no such sample")

    monkeypatch.setattr(PlainSGD, "_block", fails)
    with pytest.raises(ValueError, match="no such sample"):
        simulation(asynchronous, Plan(threads=2), (9,) * 10, 25).run()


@pytest.mark.parametrize(("option", "least"), [("memory_mib", 1), ("threads", 0), ("blocks", 1), ("workers", 0)])
def test_too_little_of_something_is_named(option: str, least: int) -> None:
    with pytest.raises(UserError, match=rf"engine\.{option}: {least - 1} must be (at least|from) {least}"):
        Plan(**{option: least - 1})  # type: ignore[arg-type]
