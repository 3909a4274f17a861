"""What sensitivity tracking costs: the time of the same run without and with it, in one process, turn by turn.

    python benchmarks/unlearning.py                         # W2: 100 of 1,000 clients a round, logistic regression
    python benchmarks/unlearning.py --workload W3-mlp --retention frugal --json

Every turn runs both, first one and then the other; the ratio is the median over turns. Evaluation is off, and models
are kept in memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import get_args

import numpy as np
import torch

from turnout import Evaluation, FedAvg, LocalSGD, Plan, Population, Ragged, Simulation, Stopping, Task, Uniform
from turnout.record.sensitivity import Sensitivity
from turnout.record.unlearning import Retention, Unlearning
from workloads import WORKLOADS, Workload


def seconds(workload: Workload, rounds: int, plan: Plan, tracking: Unlearning | None) -> float:
    """Of one run."""
    offsets = np.arange(workload.clients + 1) * workload.samples_per_client
    people = Population(workload.inputs, workload.targets, Ragged(offsets, np.arange(workload.samples)))
    server = Simulation(
        Task(workload.model),
        people,
        FedAvg(LocalSGD(workload.lr, workload.epochs, batch_size=workload.batch), Uniform(workload.cohort)),
        plan=plan,
        stopping=Stopping(rounds),
        evaluation=Evaluation(rounds=10**9, clients=10),
        observers=[] if tracking is None else [Sensitivity(tracking)],
    )
    started = time.perf_counter()
    server.run()
    if plan.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), default="W2")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--retention", choices=get_args(Retention), default="all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    workload, plan = WORKLOADS[arguments.workload], Plan(arguments.device, threads=arguments.threads)
    tracking = Unlearning(retention=arguments.retention)
    seconds(workload, 2, plan, tracking)
    pairs = []
    for turn in range(arguments.turns):
        order = (None, tracking) if turn % 2 == 0 else (tracking, None)
        found = {each is None: seconds(workload, arguments.rounds, plan, each) for each in order}
        pairs.append((found[True], found[False]))
    plain, tracked = (1e3 * statistics.median(column) / arguments.rounds for column in zip(*pairs, strict=True))
    ratio = statistics.median(after / before for before, after in pairs)
    if arguments.json:
        print(json.dumps({"workload": workload.name, "ms": plain, "ms_tracked": tracked, "ratio": ratio}, indent=1))
    else:
        print(f"{workload.name}: {plain:.2f} ms a round, {tracked:.2f} ms with tracking ({100 * (ratio - 1):+.1f} %)")


if __name__ == "__main__":
    main()
