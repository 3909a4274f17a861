"""Many events at once are the same events one by one, and a job is the same whichever way it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import turnout
from support import Idle, experiment, local, population, same, simulation
from turnout import FedAvg, FedBuff, Observer, Uniform, devices
from turnout.record import audit
from turnout.server.flight import Queue
from turnout.server.jobs import Job


class Watching(Observer):
    """With somebody to look at every arrival, jobs end one by one."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def on_arrival(self, server: turnout.Server, job: Job) -> None:
        assert server.now == job.ends_at / server.population.ticks_per_second
        self.seen.append((server.now, job.client))


RUNS: dict[str, dict[str, Callable[[], FedAvg | FedBuff]]] = {
    "windowed": {},
    "continuing": {},
    "fetching": {},
    "stateful": {},
    "safa": {},
    "hybridfl": {},
    "fedbuff": {"algorithm": lambda: FedBuff(local(), buffer_size=3)},
    "deadline": {"algorithm": lambda: FedAvg(local(), Uniform(6), deadline=2.0)},
    "first": {"algorithm": lambda: FedAvg(local(), Uniform(6), wait_for=3)},
}


@pytest.mark.parametrize("name", RUNS)
def test_looking_at_every_arrival_changes_nothing(name: str) -> None:
    options: dict[str, Any] = {option: make() for option, make in RUNS[name].items()}
    watch = Watching()
    together, alone = (
        turnout.execute(experiment(name, rounds=5, **options), observers=observers) for observers in ([], [watch])
    )
    assert len(watch.seen) > 5
    assert watch.seen == sorted(watch.seen)
    assert same(together.jobs(), alone.jobs())
    assert same(together.rounds(), alone.rounds())
    assert torch.equal(together.model, alone.model)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 200)), min_size=1, max_size=120, unique=True),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 25) | st.none()), max_size=8),
)
def test_the_first_events_whatever_is_asked_for(events: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    queue, left = Queue(), sorted((tick, client, 0) for tick, client in events)
    for tick, client in events:
        queue.add([(tick, client, 0)])
    for most, close in asked:
        if not left:
            break
        due = [event for event in left if close is None or event[0] <= close][:most]
        assert queue.due(close) == bool(due)
        assert queue.take(most, close) == due
        left = left[len(due) :]
    assert sorted(queue._heap) == left
    assert all(queue._heap[(n - 1) // 2] <= event for n, event in enumerate(queue._heap) if n)


def test_a_wait_ends_with_the_last_who_is_awaited() -> None:
    """Of many who end together it takes no more than it needs to know."""
    server = simulation(Idle(), population(devices=devices.fixed(1.0)))
    server.invite(server.population.ids, local())
    ends = sorted((job.ends_at, job.client) for job in server._in_flight.values())
    wanted = [client for _, client in ends[2:4]]
    assert server.wait(of=wanted).clients.tolist() == wanted
    assert server.now == ends[3][0] / server.population.ticks_per_second
    assert server.in_flight == len(ends) - len([end for end in ends if end <= ends[3]])


def test_a_job_is_the_same_the_second_time_its_work_is_asked_for() -> None:
    """What is known beforehand is looked up; before that, and where anything can go wrong, it is worked out."""
    people = population(devices=devices.lognormal(0.5, 0.7), links=turnout.Links(down=1e5, up=5e4, latency=0.01))
    server, work = simulation(Idle(), people), local()
    first, second = list[Any](), list[Any]()
    for found in (first, second):
        server.invite(people.ids, work, again=True)
        found += server._in_flight.values()
        begun = found[0].sent_at
        server._leave_flight(list(found))
        server._flight.queue.take(len(found), None)
        for job in found:
            job.sent_at, job.starts_at, job.ends_at = job.sent_at - begun, job.starts_at - begun, job.ends_at - begun
    for one, two in zip(first, second, strict=True):
        for part in fields(Job):
            a, b = getattr(one, part.name), getattr(two, part.name)
            assert (b - a == 1) if part.name in ("number", "batches") else a is b or a == b, part.name


def test_an_audit_that_adds_up_often_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that restart can be twice in one round, which is then one weight of theirs."""
    people = population(devices=devices.lognormal(0.5, 0.7))
    run = experiment("x", 8, people=people, algorithm=FedBuff(local(), buffer_size=12, mode="restart"))
    seldom = turnout.execute(run)
    monkeypatch.setattr(audit, "_MOST_NEW", 0)
    often = turnout.execute(run)
    for name in ("realised", "contributions", "weight_variance", "staleness"):
        assert np.array_equal(getattr(seldom.audit, name), getattr(often.audit, name)), name
    jobs, weights = seldom.jobs(), np.zeros((8, people.size))
    used = jobs["weight"] != 0
    np.add.at(weights, (jobs["round"][used] - 1, jobs["client"][used]), jobs["weight"][used])
    assert np.count_nonzero(used) > np.count_nonzero(weights)
    assert seldom.audit.weight_variance == pytest.approx(weights.var(axis=0).sum())
