"""How cost grows: milliseconds a round with clients, cohort and parameters, a training call with staleness, and events.

    python benchmarks/growth.py                                # all axes, two minutes
    python benchmarks/growth.py --axis cohort --axis staleness --json

One thread, in processor time, medians. Rounds are full ones of FedAvg (sampling, training, aggregation, history;
evaluation off) on the linear model of W2, whose clients share its 60,000 samples; `parameters` widens a hidden layer.
`staleness` is how many versions the 100 jobs of one training call start from, `events` FedBuff without training over a
trace (`million.py`). A ratio to linear of 1 is cost in proportion, of 0.1 after ten times as much no growth at all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

import million
import turnout
from turnout import (
    Evaluation,
    FedAvg,
    LocalSGD,
    Observer,
    Plan,
    Population,
    Ragged,
    Simulation,
    Stopping,
    Task,
    Uniform,
)
from turnout.core.random import integers, key
from turnout.engine.batches import Jobs
from turnout.engine.train import Cohort
from turnout.record.history import History
from turnout.server.observer import Round
from turnout.task.models import linear, mlp
from workloads import WORKLOADS

W2 = WORKLOADS["W2"]
COHORT, CLIENTS, ROUNDS = 100, 10_000, 8
LOCAL = LocalSGD(W2.lr, W2.epochs, batch_size=W2.batch)
PLAN = Plan(threads=1)


class Stopwatch(Observer):
    """The processor time at which every round closed."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round(self, server: turnout.Server, record: Round) -> None:
        self.times.append(time.process_time())


def people(clients: int) -> Population:
    """Each client has 60 successive samples of the pool, from a place of its own."""
    per = W2.samples_per_client
    first = integers(key(0, "growth", np.arange(clients)), 1, W2.samples - per).astype(np.int32)
    index = np.empty((clients, per), np.int32)
    np.add(first, np.arange(per, dtype=np.int32), out=index)
    return Population(W2.inputs, W2.targets, Ragged(np.arange(clients + 1) * per, index.reshape(-1)))


def round_ms(task: Task, population: Population, cohort: int) -> float:
    watch = Stopwatch()
    Simulation(
        task,
        population,
        FedAvg(LOCAL, Uniform(cohort)),
        plan=PLAN,
        stopping=Stopping(ROUNDS + 2),
        evaluation=Evaluation(rounds=None, clients=1),
        observers=[History(), watch],
    ).run()
    return 1e3 * float(statistics.median(np.diff(watch.times)[1:]))


def with_clients(clients: int) -> float:
    return round_ms(Task(partial(linear, 784, 10)), people(clients), COHORT)


def with_cohort(cohort: int) -> float:
    return round_ms(Task(partial(linear, 784, 10)), people(CLIENTS), cohort)


def with_parameters(parameters: int) -> float:
    return round_ms(Task(partial(mlp, 784, [parameters // 795], 10)), people(CLIENTS), 20)


def with_versions(versions: int) -> float:
    """A training call of jobs that start from so many versions."""
    population, task = people(CLIENTS), Task(partial(linear, 784, 10))
    cohort = Cohort(task, population.inputs, population.targets, PLAN.resolve())
    clients = np.arange(COHORT)
    jobs = Jobs(
        LOCAL,
        key(0, "local work", clients, clients),
        cohort.task.initial + 0.01 * torch.arange(versions)[:, None],
        clients % versions,
        population.samples(clients, np.zeros(COHORT)),
        {},
        {},
    )
    marks = [time.process_time()]
    for _ in range(2 * ROUNDS):
        cohort.train(jobs)
        marks.append(time.process_time())
    return 1e3 * float(statistics.median(np.diff(marks)[1:]))


def event_us(clients: int) -> float:
    population = million.people(clients, million.generated())
    return million.measure(population, 100, clients // 50 if clients < 100_000 else 2000, 30_000)["us_an_event"]


Axis = tuple[str, Callable[[int], float], list[int]]
AXES: dict[str, Axis] = {
    "clients": ("ms a round", with_clients, [1000, 10_000, 100_000, 1_000_000]),
    "cohort": ("ms a round", with_cohort, [10, 100, 1000]),
    "parameters": ("ms a round", with_parameters, [10_000, 100_000, 1_000_000]),
    "staleness": ("ms a call", with_versions, [1, 10, 100]),
    "events": ("us an event", event_us, [10_000, 100_000, 1_000_000]),
}


def grown(axis: Axis) -> list[dict[str, float]]:
    """Cost by size, and against the first one in proportion."""
    _, cost, sizes = axis
    rows: list[dict[str, float]] = []
    for size in sizes:
        found = cost(size)
        first = rows[0] if rows else {"size": size, "cost": found}
        rows.append({"size": size, "cost": found, "to_linear": found / first["cost"] / (size / first["size"])})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axis", action="append", choices=list(AXES))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    tables = {}
    for name in arguments.axis or list(AXES):
        tables[name] = grown(AXES[name])
        for row in [] if arguments.json else tables[name]:
            unit = AXES[name][0]
            print(
                f"{name:10} {row['size']:9,}  {row['cost']:9.2f} {unit:12} {row['to_linear']:7.3f} of linear",
                flush=True,
            )
    if arguments.json:
        units = {name: AXES[name][0] for name in tables}
        print(json.dumps({"units": units, "axes": tables}, indent=1))


if __name__ == "__main__":
    main()
