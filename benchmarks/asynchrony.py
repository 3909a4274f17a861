"""What asynchrony costs: client updates a second of asynchronous methods against synchronous FedAvg, and of schedules.

    python benchmarks/asynchrony.py                       # W4, W3, W3-mlp and W2, 100 clients, F80
    python benchmarks/asynchrony.py --workload W3-mlp --json
    python benchmarks/asynchrony.py --device cuda --precision tf32 --workload W1

All train the same population with the same model in one process, taking turns, full rounds with history and audit,
evaluation off; medians over the turns. Beside FedAvg with everybody in a round, they are compared with FedAvg whose
cohorts have as many jobs as the asynchronous method's schedule lets the engine train in a call, on average (`jobs a
call`). The first updates (two of every client) are not counted; what is trained ahead when a run ends counts for
nothing, so runs should be long. A schedule has no model at all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Sequence
from unittest import mock

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
    Uniform,
    devices,
)
from turnout.engine.batches import Jobs
from turnout.engine.engine import Engine, Results
from turnout.server.observer import Round
from turnout.server.stretch import Stretch
from workloads import WORKLOADS, Workload

CLIENTS = 100


class Pace(Observer):
    """Updates a second, after the first of them."""

    def __init__(self, skip: int) -> None:
        self.skip, self.seen, self.counted = skip, 0, 0
        self.begun = self.ended = 0.0

    def on_round(self, server: turnout.Server, record: Round) -> None:
        self._count(int(record.facts["used"]))

    def on_rounds(self, server: turnout.Server, stretch: Stretch) -> None:
        self._count(int(sum(stretch.facts["used"])))

    def _count(self, used: int) -> None:
        self.ended = time.perf_counter()
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


def pace(workload: Workload, algorithm: Algorithm, rounds: int, plan: Plan) -> tuple[float, float]:
    """Updates a second, and jobs a call of the engine."""
    watch, calls = Pace(2 * CLIENTS), list[int]()
    train = Engine.train

    def counted(engine: Engine, jobs: Jobs, versions: Sequence[int], keep_params: bool) -> list[Results]:
        calls.append(len(jobs.keys))
        return train(engine, jobs, versions, keep_params)

    with mock.patch.object(Engine, "train", counted):
        turnout.execute(
            Experiment(
                Task(workload.model),
                people(workload),
                algorithm,
                stopping=Stopping(rounds),
                evaluation=Evaluation(rounds=None, clients=1),
                plan=plan,
            ),
            observers=[watch],
        )
    return watch.updates_a_second, statistics.mean(calls[2:-1] or calls)


def compare(workload: Workload, updates: int, plan: Plan, repeats: int) -> dict[str, dict[str, float]]:
    """Medians over repetitions, all taking turns; ratios are of the same turn."""
    local = LocalSGD(workload.lr, workload.epochs, batch_size=workload.batch)
    kinds: dict[str, tuple[Algorithm, int]] = {  # and how many updates a round has
        "sync": (FedAvg(local, Full()), CLIENTS),
        "async": (AsyncFedAvg(local), 1),
        "fedbuff 10": (FedBuff(local, buffer_size=10), 10),
        "fedfix 0.5": (FedFix(local, window=0.5), 69),  # 37 or 38 of them every time, the slower ones every other
    }
    calls = {name: pace(workload, kind, 10 * CLIENTS // size, plan)[1] for name, (kind, size) in kinds.items()}
    for cohort in sorted({round(calls[name]) for name in kinds if name != "sync"}):
        kinds[f"sync of {cohort}"] = FedAvg(local, Uniform(cohort)), cohort
    turns = [
        {name: pace(workload, kind, updates // size, plan)[0] for name, (kind, size) in kinds.items()}
        for _ in range(repeats)
    ]
    found = {}
    for name in kinds:
        beside = f"sync of {round(calls[name])}" if name in calls and name != "sync" else name
        whole, alike = ([turn[name] / turn[other] for turn in turns] for other in ("sync", beside))
        found[name] = {
            "updates_a_second": statistics.median(turn[name] for turn in turns),
            "ratio": statistics.median(whole),
            "ratio_min": min(whole),
            "ratio_max": max(whole),
            "jobs_a_call": calls.get(name, 0.0),
            "ratio_to_such_cohorts": statistics.median(alike),
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
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = arguments.workload or ["W4", "W3", "W3-mlp", "W2"]
    plan = Plan(device=arguments.device, precision=arguments.precision, threads=arguments.threads)
    found = {name: compare(WORKLOADS[name], arguments.updates, plan, arguments.repeats) for name in names}
    bare = schedules(200_000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if arguments.json:
        print(json.dumps({"workloads": found, "schedule_arrivals_a_second": bare, "peak_mib": peak}, indent=2))
        return
    for workload, kinds in found.items():
        for name, row in kinds.items():
            spread = f"{row['ratio']:5.2f} x ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
            beside = f"{row['ratio_to_such_cohorts']:.2f} x sync with {row['jobs_a_call']:.0f} jobs a call"
            told = beside if row["jobs_a_call"] and name != "sync" else ""
            print(
                f"{workload:8} {name:12} {row['updates_a_second']:8.0f} updates a second  {spread}  {told}", flush=True
            )
    for name, arrivals in bare.items():
        print(f"schedule {name:20} {arrivals:10,.0f} arrivals a second")
    print(f"peak {peak:,} MiB")


if __name__ == "__main__":
    main()
