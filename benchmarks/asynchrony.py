"""What asynchrony costs: client updates a second of asynchronous methods against synchronous FedAvg, and of schedules.

    python benchmarks/asynchrony.py                       # W4, W3, W3-mlp and W2, 100 clients, F80
    python benchmarks/asynchrony.py --workload W3-mlp --json

All train the same population with the same model in one process, taking turns, full rounds with history and audit,
evaluation off; medians over the turns. The first updates (two of every client) are not counted; what is trained ahead
when a run ends counts for nothing, so runs should be long. A schedule has no model at all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

import numpy as np

import turnout
from turnout import (
    Algorithm,
    AsyncFedAvg,
    Evaluation,
    Experiment,
    FedAvg,
    FedBuff,
    FedFix,
    Full,
    LocalSGD,
    Observer,
    Plan,
    Population,
    Ragged,
    Stopping,
    Task,
    devices,
)
from turnout.server.observer import Round
from workloads import WORKLOADS, Workload

CLIENTS = 100


class Pace(Observer):
    """Updates a second, after the first of them."""

    def __init__(self, skip: int) -> None:
        self.skip, self.seen, self.counted = skip, 0, 0
        self.begun = self.ended = 0.0

    def on_round(self, server: turnout.Server, record: Round) -> None:
        self.ended = time.perf_counter()
        used = int(record.facts["used"])
        if self.seen >= self.skip:
            self.counted += used
        else:
            self.begun = self.ended
        self.seen += used

    @property
    def updates_a_second(self) -> float:
        return self.counted / (self.ended - self.begun)


def people(workload: Workload) -> Population:
    per, count = workload.samples_per_client, workload.samples_per_client * CLIENTS
    rows = Ragged(np.arange(CLIENTS + 1) * per, np.arange(count))
    return Population(workload.inputs[:count], workload.targets[:count], rows, devices=devices.fx(80, CLIENTS))


def pace(workload: Workload, algorithm: Algorithm, rounds: int, threads: int) -> float:
    watch = Pace(2 * CLIENTS)
    turnout.execute(
        Experiment(
            Task(workload.model),
            people(workload),
            algorithm,
            stopping=Stopping(rounds),
            evaluation=Evaluation(rounds=None, clients=1),
            plan=Plan(threads=threads),
        ),
        observers=[watch],
    )
    return watch.updates_a_second


def compare(workload: Workload, updates: int, threads: int, repeats: int) -> dict[str, dict[str, float]]:
    """Medians over repetitions, all taking turns; ratios are of the same turn."""
    local = LocalSGD(workload.lr, workload.epochs, batch_size=workload.batch)
    kinds: dict[str, tuple[Algorithm, int]] = {  # and how many updates a round has
        "sync": (FedAvg(local, Full()), CLIENTS),
        "async": (AsyncFedAvg(local), 1),
        "fedbuff 10": (FedBuff(local, buffer_size=10), 10),
        "fedfix 0.5": (FedFix(local, window=0.5), 69),  # 37 or 38 of them every time, the slower ones every other
    }
    turns = [
        {name: pace(workload, kind, updates // size, threads) for name, (kind, size) in kinds.items()}
        for _ in range(repeats)
    ]
    found = {}
    for name in kinds:
        ratios = sorted(turn[name] / turn["sync"] for turn in turns)
        found[name] = {
            "updates_a_second": statistics.median(turn[name] for turn in turns),
            "ratio": statistics.median(ratios),
            "ratio_min": ratios[0],
            "ratio_max": ratios[-1],
        }
    return found


def schedules(events: int) -> dict[str, float]:
    """Arrivals a second on one core."""
    local = LocalSGD(0.1)
    everybody = people(WORKLOADS["W2"])
    paces = {}
    for name, algorithm in (
        ("async_fedavg", AsyncFedAvg(local)),
        ("fedbuff restart 10", FedBuff(local, buffer_size=10, mode="restart")),
        ("fedbuff wait 10", FedBuff(local, buffer_size=10)),
        ("fedfix 0.1", FedFix(local, window=0.1)),
    ):
        started = time.perf_counter()
        rows = turnout.schedule(algorithm, everybody, seconds=events / 202)  # F80 brings 202 arrivals a second
        paces[name] = len(rows) / (time.perf_counter() - started)
    return paces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = arguments.workload or ["W4", "W3", "W3-mlp", "W2"]
    found = {name: compare(WORKLOADS[name], arguments.updates, arguments.threads, arguments.repeats) for name in names}
    bare = schedules(200_000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if arguments.json:
        print(json.dumps({"workloads": found, "schedule_arrivals_a_second": bare, "peak_mib": peak}, indent=2))
        return
    for workload, kinds in found.items():
        for name, row in kinds.items():
            spread = f"{row['ratio']:5.2f} x ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
            print(f"{workload:8} {name:12} {row['updates_a_second']:8.0f} updates a second  {spread}")
    for name, arrivals in bare.items():
        print(f"schedule {name:20} {arrivals:10,.0f} arrivals a second")
    print(f"peak {peak:,} MiB")


if __name__ == "__main__":
    main()
