"""What samplers cost: milliseconds a round to choose among many clients and to learn from their updates.

    python benchmarks/sampling.py                         # 1,000 clients, 100,000 parameters
    python benchmarks/sampling.py --sampler clustered_similarity --json

Each sampler runs in FedAvg with ten clients a round and one local step; only its own calls are timed. Medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

import turnout
from turnout.config import registry
from turnout.sampling._sampler import Sampler, Selection
from turnout.server.updates import Updates

SAMPLERS = ("uniform", "md", "clustered_size", "clustered_similarity", "afl", "oort", "unbiased", "cafed")


def timed(sampler: Sampler) -> list[float]:
    """The seconds of every round's calls, filled in while the sampler works."""
    seconds: list[float] = []
    sample, observe = sampler.sample, sampler.observe

    def sampling(server: turnout.Server) -> Selection:
        started = time.perf_counter()
        chosen = sample(server)
        seconds.append(time.perf_counter() - started)
        return chosen

    def observing(updates: Updates) -> None:
        _ = updates.deltas  # training is not the sampler's
        started = time.perf_counter()
        observe(updates)
        seconds[-1] += time.perf_counter() - started

    sampler.sample, sampler.observe = sampling, observing  # type: ignore[method-assign]
    return seconds


def milliseconds(name: str, clients: int, rounds: int, threads: int) -> float:
    cls = registry.find("sampler", name)
    sampler: Sampler = cls(clients_per_round=10) if "clients_per_round" in cls.__dataclass_fields__ else cls()
    seconds = timed(sampler)
    inputs = torch.randn(4 * clients, 316)
    rows = turnout.Ragged.from_rows([list(range(4 * i, 4 * i + 4)) for i in range(clients)])
    people = turnout.Population(inputs, torch.arange(4 * clients) % 316, rows)
    turnout.simulate(
        turnout.Task(lambda: torch.nn.Linear(316, 316)),
        people,
        turnout.FedAvg(turnout.LocalSGD(0.1, steps=1, batch_size=4), sampler),
        rounds,
        evaluation=turnout.Evaluation(rounds=None, clients=1),
        plan=turnout.Plan(threads=threads),
    )
    return 1000 * statistics.median(seconds[rounds // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampler", action="append", choices=registry.names("sampler"))
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        name: milliseconds(name, arguments.clients, arguments.rounds, arguments.threads)
        for name in arguments.sampler or SAMPLERS
    }
    if arguments.json:
        print(json.dumps({"clients": arguments.clients, "milliseconds_a_round": found}, indent=2))
        return
    for name, value in found.items():
        print(f"{name:22} {value:8.2f} ms a round")


if __name__ == "__main__":
    main()
