"""The memory of the driver and the time of a round, with local work shared by Ray workers or done on one machine.

    python benchmarks/ray_workers.py             # cohorts of 50, 200 and 800; a model of 1.6 million parameters
    python benchmarks/ray_workers.py --workers 4 --cohorts 50 200 --json

Every figure comes from a process of its own: rounds of FedAvg with everybody, one step of a batch of 10 each, no
evaluation. The peak is the resident memory of the driver, in which Ray counts what it has read of its shared memory;
the first round, in which workers start, is in the peak and not in the time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import turnout
from turnout import Evaluation, FedAvg, Full, LocalSGD, Observer, Plan, Population, Ragged, Task
from turnout.core.random import key, normal
from turnout.server.observer import Round

SAMPLES = 10  # of each client


class Stopwatch(Observer):
    """The time at which every round closed."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round(self, server: turnout.Server, record: Round) -> None:
        self.times.append(time.perf_counter())


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 800), nn.ReLU(), nn.Linear(800, 10))


def measure(engine: str, cohort: int, rounds: int, plan: Plan) -> dict[str, Any]:
    total = cohort * SAMPLES
    inputs = torch.from_numpy(normal(key(0, "benchmark", np.arange(total)), 784)).float().reshape(total, 784)
    rows = Ragged(np.arange(0, total + 1, SAMPLES), np.arange(total))
    people, watch = Population(inputs, torch.arange(total) % 10, rows), Stopwatch()
    task = Task(model)
    turnout.simulate(
        task,
        people,
        FedAvg(LocalSGD(0.05, batch_size=SAMPLES), Full()),
        rounds + 1,
        plan=plan,
        evaluation=Evaluation(rounds=None, clients=1),
        observers=[watch],
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = statistics.median(np.diff(watch.times).tolist())
    return {"engine": engine, "cohort": cohort, "parameters": task.size, "driver_mib": peak, "round_seconds": seconds}


def elsewhere(engine: str, cohort: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """`measure` in a process of its own."""
    words = [sys.executable, __file__, "--one", engine, "--cohorts", str(cohort), "--rounds", str(arguments.rounds)]
    words += ["--workers", str(arguments.workers), "--blocks", str(arguments.blocks), "--address", arguments.address]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, nargs="+", default=[50, 200, 800])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="0: one a core")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--address", default="", help="of a cluster")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=["vectorised", "ray"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        plan = Plan(engine=arguments.one, workers=arguments.workers, blocks=arguments.blocks, address=arguments.address)
        print(json.dumps(measure(arguments.one, arguments.cohorts[0], arguments.rounds, plan)))
        return
    rows = [elsewhere(engine, cohort, arguments) for engine in ("vectorised", "ray") for cohort in arguments.cohorts]
    if arguments.json:
        print(json.dumps({"cores": os.cpu_count(), "workers": arguments.workers, "rows": rows}, indent=1))
        return
    print(f"{'engine':<12}{'cohort':>8}{'driver, MiB':>14}{'s a round':>12}")
    for row in rows:
        print(f"{row['engine']:<12}{row['cohort']:>8}{row['driver_mib']:>14.0f}{row['round_seconds']:>12.2f}")


if __name__ == "__main__":
    main()
