"""What personal models cost: milliseconds a round of FedEM beside FedAvg, on the same clients.

    python benchmarks/personal.py                         # the synthetic mixture of the paper, W2 and W3-mlp
    python benchmarks/personal.py --workload W2 --components 5 --json

A round is a full one, as in `rounds.py`. FedEM trains that many models and looks at every sample once more before: with
three components and one epoch that is four times the arithmetic of FedAvg. Medians; the two take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import numpy as np

from rounds import Stopwatch
from turnout import Evaluation, FedAvg, LocalSGD, Plan, Population, Ragged, Simulation, Stopping, Task, Uniform
from turnout import data as datasets
from turnout.algorithms.fedem import FedEM
from turnout.task.models import linear
from workloads import WORKLOADS


def setting(name: str) -> tuple[Task, Population, LocalSGD, int]:
    """Task, population, local work and clients a round."""
    if name == "synthetic":
        data = datasets.load("linear_mixture", test_samples=0)
        people = Population.of(data, 300, "natural", test="none")
        return Task(lambda: linear(150, 2)), people, LocalSGD(0.1, batch_size=128), 300
    workload = WORKLOADS[name]
    offsets = np.arange(workload.clients + 1) * workload.samples_per_client
    people = Population(workload.inputs, workload.targets, Ragged(offsets, np.arange(workload.samples)))
    return (
        Task(workload.model),
        people,
        LocalSGD(workload.lr, workload.epochs, batch_size=workload.batch),
        workload.cohort,
    )


def seconds(name: str, components: int | None, rounds: int, plan: Plan) -> list[float]:
    """Of each round after the first; without components of FedAvg."""
    task, people, work, cohort = setting(name)
    sampler = Uniform(cohort)
    algorithm = FedAvg(work, sampler) if components is None else FedEM(work, sampler, components=components)
    watch = Stopwatch()
    evaluation = Evaluation(rounds=10**9, clients=1, train=True)
    Simulation(
        task, people, algorithm, plan=plan, stopping=Stopping(rounds + 1), evaluation=evaluation, observers=[watch]
    ).run()
    return np.diff(watch.times).tolist()


def measured(name: str, components: int, rounds: int, plan: Plan) -> dict[str, float]:
    """Milliseconds a round of both, and how many times longer FedEM takes."""
    times: dict[str, list[float]] = {"fedavg": [], "fedem": []}
    for _ in range(3):
        times["fedavg"] += seconds(name, None, rounds, plan)
        times["fedem"] += seconds(name, components, rounds, plan)
    found = {f"{algorithm}_ms": 1000 * statistics.median(spent) for algorithm, spent in times.items()}
    return found | {"ratio": found["fedem_ms"] / found["fedavg_ms"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=["synthetic", *WORKLOADS])
    parser.add_argument("--components", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "float64"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plan = Plan(arguments.device, "auto", arguments.precision, arguments.threads)
    rows: dict[str, Any] = {}
    for name in arguments.workload or ["synthetic", "W2", "W3-mlp"]:
        rows[name] = row = measured(name, arguments.components, arguments.rounds, plan)
        if not arguments.json:
            print(
                f"{name:10} fedavg {row['fedavg_ms']:9.2f} ms, fedem with {arguments.components} components "
                f"{row['fedem_ms']:9.2f} ms a round: {row['ratio']:.2f} x",
                flush=True,
            )
    if arguments.json:
        print(json.dumps({"device": arguments.device, "components": arguments.components, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
