"""How far the updates of a cohort are from those in double precision, by precision and by form of the same sums.

    python benchmarks/precision.py                       # on the CPU
    python benchmarks/precision.py --device cuda --json

A row is norm(delta - exact) / norm(exact), the largest of ten clients after one pass over their samples.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from torch import Tensor

from turnout import LocalSGD, Plan, Ragged, Task
from turnout.core.random import key
from turnout.engine.batches import Jobs
from turnout.engine.train import Cohort
from workloads import WORKLOADS, Workload

CLIENTS = 10


def deltas(workload: Workload, plan: Plan) -> Tensor:
    task, clients = Task(workload.model), np.arange(CLIENTS)
    count = CLIENTS * workload.samples_per_client
    cohort = Cohort(task, workload.inputs[:count], workload.targets[:count], plan.resolve())
    samples = Ragged(np.arange(CLIENTS + 1) * workload.samples_per_client, np.arange(count))
    work = LocalSGD(workload.lr, workload.epochs, batch_size=workload.batch)
    jobs = Jobs(work, key(0, "job", clients), cohort.task.initial[None], np.zeros_like(clients), samples, {}, {})
    return cohort.train(jobs).payload["delta"].double().cpu()


def measure(name: str, device: str) -> dict[str, float]:
    exact = deltas(WORKLOADS[name], Plan("cpu", precision="float64", kernels="general"))
    plans = {
        f"{precision}, {kernels}": Plan(device, precision=precision, kernels=kernels)
        for precision in ("float64", "float32", *(["tf32"] if device != "cpu" else []), "bf16")
        for kernels in ("auto", "general")
    }
    distances = {}
    for title, plan in plans.items():
        off = deltas(WORKLOADS[name], plan) - exact
        distances[title] = float((off.norm(dim=1) / exact.norm(dim=1)).max())
    return distances


def main() -> None:
    parser = argparse.ArgumentParser(description="How exact every precision is.")
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    table = {name: measure(name, arguments.device) for name in arguments.workload or list(WORKLOADS)}
    if arguments.json:
        print(json.dumps({"device": arguments.device, "torch": torch.__version__, "rows": table}, indent=1))
        return
    for name, distances in table.items():
        for title, distance in distances.items():
            print(f"{name:8} {title:18} {distance:.1e}")


if __name__ == "__main__":
    main()
