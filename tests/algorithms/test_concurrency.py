"""At most so many clients at work: asynchronous.md, section 6, concurrency limit combined with client sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import turnout
from support import WORLD, local, population, same
from turnout import AsyncFedAvg, FedBuff, FedFix, Observer, Server, devices
from turnout.clients.population import Population
from turnout.clients.traces import Trace
from turnout.core.errors import UserError
from turnout.record.history import History
from turnout.server.observer import Round

SIZES = (4,) * 60


class AtWork(Observer):
    """How many are in flight after every invitation, and who was invited."""

    def __init__(self) -> None:
        self.most: list[int] = []
        self.invited: list[int] = []
        self.absent = 0

    def on_invite(self, server: Server, jobs: Sequence[Any]) -> None:
        self.most.append(server.in_flight)
        self.invited += [job.client for job in jobs]
        self.absent += sum(not job.has_model for job in jobs)

    def on_round(self, server: Server, record: Round) -> None:
        assert record.weights[record.weights > 0].sum() == pytest.approx(record.facts["weight"])


def many(**columns: Any) -> Population:
    return population(SIZES, **{"devices": devices.lognormal(1.0, 0.7), **columns})


@pytest.mark.parametrize("algorithm", [AsyncFedAvg, FedBuff, FedFix])
def test_as_many_as_allowed_are_at_work_after_every_close(algorithm: Any) -> None:
    watch = AtWork()
    turnout.rehearse(algorithm(local(), concurrency=12), many(), 40, observers=[watch])
    assert set(watch.most) == {12}
    assert len(set(watch.invited)) > 30  # others than the first


def test_clients_are_drawn_from_those_online_and_the_failed_are_replaced() -> None:
    trace = Trace([0, 1, 2], [0, 5, 10], [6, 11, 15], period=16.0, shift="random", assign="random")
    watch = AtWork()
    people = many(availability=trace, crashes=turnout.Crashes(0.2))
    server = turnout.rehearse(FedBuff(local(), buffer_size=4, concurrency=10), people, 40, observers=[watch])
    assert server.version == 40 and max(watch.most) == 10 and watch.absent == 0
    assert len(set(watch.invited)) == len(SIZES)


def test_room_for_everybody_is_no_limit() -> None:
    people = population(**{**WORLD, "availability": turnout.Always(), "crashes": turnout.Crashes()})
    tables = []
    for concurrency in (None, people.size):
        history = History()
        algorithm = FedBuff(local(), buffer_size=3, weight_rule="measured", concurrency=concurrency)
        turnout.rehearse(algorithm, replace(people, links=turnout.Links()), 30, observers=[history])
        tables.append(history.jobs.read())  # type: ignore[union-attr]
    assert same(*tables) and len(tables[0]["client"]) == 90


def test_rates_are_measured_since_chance_decides_who_works() -> None:
    tables = []
    for rule in ("unbiased", "measured"):
        history = History()
        algorithm = FedBuff(local(), buffer_size=4, weight_rule=rule, concurrency=12)
        turnout.rehearse(algorithm, many(), 30, observers=[history])
        tables.append(history.jobs.read())  # type: ignore[union-attr]
    assert same(*tables)


def test_a_schedule_knows_of_the_limit() -> None:
    rows = turnout.schedule(FedBuff(local(), buffer_size=4, concurrency=6), many(), 30)
    assert rows.staleness.max() <= 30 and np.bincount(rows.round).tolist() == [4] * 30
    unlimited = turnout.schedule(FedBuff(local(), buffer_size=4), many(), 30)
    assert rows.seconds > 2 * unlimited.seconds  # a tenth of the clients deliver a good deal later


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: AsyncFedAvg(local(), concurrency=0), "algorithm.concurrency: 0 must be at least 1"),
        (lambda: FedBuff(local(), mode="restart", concurrency=20), "restart by themselves leave no place"),
        (lambda: FedBuff(local(), buffer_size=10, concurrency=5), "10 waiting clients, but only 5 work at once"),
        (lambda: AsyncFedAvg(local(), weight_rule="learning_rate", concurrency=5), "learning_rate needs rates"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make()
