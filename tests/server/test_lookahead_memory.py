"""What look-ahead keeps: a copy of each version in use, and at most twice the results that are waited for."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

import turnout
from support import conv, images, local, mlp, population
from turnout import AsyncFedAvg, Observer, Plan, Server, Stopping, Task, devices
from turnout.server.observer import Round
from turnout.server.simulation import Simulation


class Kept(Observer):
    """Rows of trained blocks, results waited for, and versions in use, after each round."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.versions: list[weakref.ref[torch.Tensor]] = []

    def on_round(self, server: Server, record: Round) -> None:
        assert isinstance(server, Simulation)
        self.versions.append(weakref.ref(server.model))
        jobs = [*server._in_flight.values(), *server._inbox]
        blocks = {id(job.result[0]): job.result[0].rows for job in jobs if job.result is not None}
        waiting = sum(job.result is not None for job in jobs)
        self.seen.append((sum(blocks.values()), waiting, len({id(job.received) for job in jobs})))


@pytest.mark.parametrize("case", ["all at once", "in the background"])
def test_blocks_hold_at_most_twice_what_is_waited_for(case: str) -> None:
    kept = Kept()
    model, clients, threads = (mlp, population, 1) if case == "all at once" else (conv, images, 2)
    people = clients(devices=devices.fx(80, 8))
    work = AsyncFedAvg(local())
    turnout.execute(
        turnout.Experiment(Task(model, seed=3), people, work, stopping=Stopping(60), plan=Plan(threads=threads)),
        observers=[kept],
    )
    rows, waiting, versions = np.array(kept.seen).T
    trained = np.diff(waiting, prepend=0) > 0  # otherwise nothing was added
    assert trained.sum() > 5
    assert (rows[trained] <= 2 * waiting[trained]).all()
    assert versions.max() <= people.size  # never more versions than jobs in flight


def test_versions_nobody_works_on_are_gone() -> None:
    kept, people = Kept(), population(devices=devices.fx(80, 8))
    server = Simulation(
        Task(mlp, seed=3), people, AsyncFedAvg(local()), stopping=Stopping(60), plan=Plan(threads=1), observers=[kept]
    )
    server.run()
    gc.collect()
    alive = [version() for version in kept.versions if version() is not None]
    in_use = {id(job.received) for job in server._in_flight.values()} | {id(server.model)}
    assert len(kept.versions) == 60
    assert {id(version) for version in alive} <= in_use
