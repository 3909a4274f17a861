"""Training without a server: the timeline alone; a round of DPASGD against a plain loop over silos, and FedAvg's.

    python benchmarks/decentral.py                        # 10,000 rounds of 100 silos; W2 and W3-mlp over a ring
    python benchmarks/decentral.py --workload W2 --json

All three train the same silos with the same model in one process, taking turns, full rounds with history and audit,
evaluation off; medians over the turns. The plain loop trains one silo after another with `torch.optim.SGD` on resident
data and mixes with one product of matrices; it records nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch
from torch.nn import functional as F

import turnout
from turnout import (
    Algorithm,
    Evaluation,
    Experiment,
    FedAvg,
    Full,
    LocalSGD,
    Observer,
    Plan,
    Population,
    Ragged,
    Stopping,
    Task,
)
from turnout.algorithms.dpasgd import DPASGD
from turnout.core.random import key, uniform
from turnout.peers.mixing import local_degree
from turnout.peers.network import Exchange, Network, Overlay, Star
from turnout.peers.peers import ring
from turnout.server.observer import Round
from turnout_studies.theory.timeline import timeline
from workloads import WORKLOADS, Workload

SILOS = 100


class Pace(Observer):
    """Milliseconds of each round."""

    def __init__(self) -> None:
        self.closed: list[float] = []

    def on_round(self, server: turnout.Server, record: Round) -> None:
        self.closed.append(1e3 * time.perf_counter())


def network(silos: int) -> Network:
    latency = 0.1 * uniform(key(0, "latency"), silos * silos).reshape(silos, silos)
    np.fill_diagonal(latency, 0)
    access = np.full(silos, 10e9)
    others = ~np.eye(silos, dtype=np.bool_)
    return Network(tuple(map(str, range(silos))), latency, np.full((silos, silos), 1e9), access, access, others)


def timelines(rounds: int) -> dict[str, float]:
    """Seconds for so many rounds over some overlays."""
    world, exchange = network(SILOS), Exchange(45e6, 0.025)
    complete = Overlay("complete", world.connected)
    seconds = {}
    for overlay in (ring(SILOS), complete, Star.around(0, SILOS)):
        start = time.perf_counter()
        timeline(overlay, world, exchange, rounds)
        seconds[overlay.name] = time.perf_counter() - start
    start = time.perf_counter()
    timeline(
        ring(SILOS), world, exchange, rounds, lambda k: np.full(SILOS, 0.025 + k / rounds), lambda _: world.latency
    )
    return {**seconds, "ring, stragglers and jitter": time.perf_counter() - start}


def round_ms(workload: Workload, algorithm: Algorithm, rounds: int, threads: int) -> float:
    watch, count = Pace(), workload.samples_per_client * SILOS
    rows = Ragged(np.arange(SILOS + 1) * workload.samples_per_client, np.arange(count))
    people = Population(workload.inputs[:count], workload.targets[:count], rows)
    turnout.execute(
        Experiment(
            Task(workload.model),
            people,
            algorithm,
            stopping=Stopping(rounds + 1),
            evaluation=Evaluation(rounds=None, clients=1),
            plan=Plan(threads=threads),
        ),
        observers=[watch],
    )
    return statistics.median(np.diff(watch.closed[:-1]).tolist())  # the last is evaluated


def plain_ms(workload: Workload, rounds: int, threads: int) -> float:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    module = workload.model()
    parameters = [parameter.detach() for parameter in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), workload.lr)
    mixing = torch.as_tensor(local_degree(ring(SILOS).graph), dtype=torch.float32)
    models = [torch.stack([value.flatten()] * SILOS) for value in parameters]
    inputs, targets, index = workload.inputs, workload.targets, workload.index
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for silo in range(SILOS):
            for value, model in zip(parameters, models, strict=True):
                value.copy_(model[silo].view_as(value))
            for _ in range(workload.epochs):
                order = index[silo][torch.randperm(workload.samples_per_client)]
                batches = (torch.split(pool[order], workload.batch) for pool in (inputs, targets))
                for x, y in zip(*batches, strict=True):
                    optimiser.zero_grad(set_to_none=True)
                    F.cross_entropy(module(x), y).backward()
                    optimiser.step()
            for value, model in zip(parameters, models, strict=True):
                model[silo] = value.flatten()
        models = [mixing @ model for model in models]
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def measure(workload: Workload, rounds: int, turns: int, threads: int) -> dict[str, float | str]:
    work = LocalSGD(workload.lr, epochs=workload.epochs, batch_size=workload.batch)
    times: dict[str, list[float]] = {"plain_loop": [], "fedavg": [], "dpasgd": []}
    for _ in range(turns):
        times["plain_loop"].append(plain_ms(workload, rounds, threads))
        times["fedavg"].append(round_ms(workload, FedAvg(work, Full()), rounds, threads))
        times["dpasgd"].append(round_ms(workload, DPASGD(work), rounds, threads))
    medians = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    return {
        "workload": workload.name,
        **medians,
        "times_faster_than_plain": medians["plain_loop_ms"] / medians["dpasgd_ms"],
        "of_fedavg": medians["dpasgd_ms"] / medians["fedavg_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of timelines; milliseconds a round of 100 silos on a ring.")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="default: W2 and W3-mlp")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeline-rounds", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    seconds = timelines(options.timeline_rounds)
    names = options.workload or ["W2", "W3-mlp"]
    rows = [measure(WORKLOADS[name], options.rounds, options.turns, options.threads) for name in names]
    if options.json:
        document = {"benchmark": "decentral", "silos": SILOS, "torch": torch.__version__, "threads": options.threads}
        timed = {"timeline_rounds": options.timeline_rounds, "timeline_seconds": seconds}
        print(json.dumps({**document, **timed, "workloads": rows}))
        return
    for name, value in seconds.items():
        print(f"timeline of {options.timeline_rounds} rounds, {SILOS} silos, {name}: {value:.2f} s")
    for row in rows:
        print(
            f"{row['workload']}  plain loop {row['plain_loop_ms']:.1f} ms  FedAvg {row['fedavg_ms']:.1f} ms  "
            f"DPASGD {row['dpasgd_ms']:.1f} ms a round: {row['times_faster_than_plain']:.1f} times faster than plain, "
            f"{row['of_fedavg']:.2f} of FedAvg"
        )


if __name__ == "__main__":
    main()
