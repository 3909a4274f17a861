"""How cost grows: with clients, cohort, parameters, versions, threads, and of an event.

    python benchmarks/growth.py                                # all axes, two or three minutes
    python benchmarks/growth.py --axis cohort --axis versions --json
    python benchmarks/growth.py --pictures                     # docs/pictures/growth.json, and the picture of it

Medians over rounds, of which every size has three series in turn with the others, in processor time, since others may
share the machine; one thread on one core, but for `threads`. Rounds are full ones of FedAvg (sampling, training,
aggregation, history; evaluation off) on the linear model of W2, whose clients share its 60,000 samples; `parameters`
widens a hidden layer. `versions` is how many the 100 jobs of one training call start from. `threads` trains four
clients with an LSTM, a thread a client: what all threads take together, the same where sharing costs nothing.
`events` is FedBuff without training over a trace (`million.py`), 1,000 in flight. A ratio to linear of 1 is cost in
proportion, of 0.1 after ten times as much no growth at all.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

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

W2, LSTM = WORKLOADS["W2"], WORKLOADS["LSTM"]
COHORT, CLIENTS, ROUNDS = 100, 10_000, 8
LOCAL = LocalSGD(W2.lr, W2.epochs, batch_size=W2.batch)
PLAN = Plan(threads=1)
PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
EVERY_CORE = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


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


def round_ms(task: Task, population: Population, cohort: int, plan: Plan = PLAN) -> float:
    watch = Stopwatch()
    Simulation(
        task,
        population,
        FedAvg(LOCAL, Uniform(cohort)),
        plan=plan,
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


def with_threads(threads: int) -> float:
    """Rounds on all cores, of all threads together."""
    rows = Ragged(np.arange(LSTM.clients + 1) * LSTM.samples_per_client, np.arange(LSTM.samples))
    with cores(EVERY_CORE):
        return round_ms(Task(LSTM.model), Population(LSTM.inputs, LSTM.targets, rows), 4, Plan(threads=threads))


@contextmanager
def cores(some: set[int]) -> Iterator[None]:
    """Run on these cores only, where the system can be told."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, some)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def event_us(clients: int) -> float:
    population = million.people(clients, million.generated())
    return million.measure(population, 500, 1000, 30_000)["us_an_event"]


Axis = tuple[str, Callable[[int], float], list[int]]
AXES: dict[str, Axis] = {
    "clients": ("ms a round", with_clients, [1000, 10_000, 100_000, 1_000_000]),
    "cohort": ("ms a round", with_cohort, [10, 30, 100, 300, 1000]),
    "parameters": ("ms a round", with_parameters, [10_000, 30_000, 100_000, 300_000, 1_000_000]),
    "versions": ("ms a call", with_versions, [1, 3, 10, 30, 100]),
    "threads": ("ms a round, all together", with_threads, [1, 2, 4]),
    "events": ("us an event", event_us, [10_000, 100_000, 1_000_000]),
}


def grown(axis: Axis, series: int) -> list[dict[str, float]]:
    """Cost by size, and against the first one in proportion."""
    _, cost, sizes = axis
    turns = [[cost(size) for size in sizes] for _ in range(series)]
    costs = [statistics.median(turn[place] for turn in turns) for place in range(len(sizes))]
    return [
        {"size": size, "cost": found, "to_linear": found / costs[0] / (size / sizes[0])}
        for size, found in zip(sizes, costs, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axis", action="append", choices=list(AXES))
    parser.add_argument("--series", type=int, default=3, help="of every size, in turn")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pictures", action="store_true", help="keep what was measured in docs/pictures, and draw it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables = {}
    with cores({min(EVERY_CORE)}):
        for name in arguments.axis or list(AXES):
            tables[name] = grown(AXES[name], arguments.series)
            for row in [] if arguments.json else tables[name]:
                print(line(name, row), flush=True)
    report = {"units": {name: AXES[name][0] for name in tables}, "axes": tables}
    if arguments.json:
        print(json.dumps(report, indent=1))
    if arguments.pictures:
        kept = PICTURES / "growth.json"
        before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {part: {} for part in report}
        merged = {part: before[part] | found for part, found in report.items()}  # axes that were left out are as before
        kept.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
        runpy.run_path(str(PICTURES / "draw.py"), run_name="__main__")


def line(name: str, row: dict[str, float]) -> str:
    unit = AXES[name][0]
    return f"{name:10} {row['size']:9,}  {row['cost']:9.2f} {unit:12} {row['to_linear']:7.3f} of linear"


if __name__ == "__main__":
    main()
