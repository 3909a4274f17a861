"""Rounds a second with a million clients that come and go: who is online is looked up, nobody is trained.

    python benchmarks/availability.py                     # a million clients, 1,000 of those online invited a round
    python benchmarks/availability.py --clients 100000 --json

Full rounds of FedAvg with uniform sampling on one core, in processor time; an update is a number. `everybody` is what
it takes to look up all clients at once, as samplers do that watch them all.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time

import numpy as np
import torch

import turnout
from turnout import FedAvg, LocalSGD, Observer, Population, Ragged, Uniform
from turnout.clients.availability import Always, Availability
from turnout.clients.chains import Bernoulli, Diurnal, Grouped, Markov
from turnout.core.random import key, uniform
from turnout.server.observer import Round


class Stopwatch(Observer):
    """The processor time at which every round closed."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round(self, server: turnout.Server, record: Round) -> None:
        self.times.append(time.process_time())


def models(clients: int) -> dict[str, Availability]:
    """Shares from 0.1 to 0.9 and correlations from 0 to 0.99, client by client."""
    draws = uniform(key(0, "benchmark", np.arange(clients)), 2)
    share, correlation = 0.1 + 0.8 * draws[:, 0], 0.99 * draws[:, 1]
    return {
        "always": Always(),
        "bernoulli": Bernoulli(share),
        "markov": Markov(share, correlation),
        "markov, seconds": Markov(share, correlation, clock="seconds", interval=10.0),
        "diurnal": Diurnal(share, 0.3, correlation, zones=24),
        "grouped": Grouped(Markov(share[:1000], correlation[:1000]), 1000),
    }


def measure(model: Availability, clients: int, cohort: int, rounds: int) -> dict[str, float]:
    one_sample = Ragged(np.arange(clients + 1), np.zeros(clients, np.int32))
    people = Population(torch.zeros(1, 1), torch.zeros(1), one_sample, availability=model)
    watch = Stopwatch()
    turnout.rehearse(FedAvg(LocalSGD(0.1), Uniform(cohort)), people, rounds + 1, observers=[watch])
    begun = time.process_time()
    model.online(0, people.ids, 5.0)
    looked_up = time.process_time() - begun
    return {
        "rounds_a_second": 1 / statistics.median(np.diff(watch.times).tolist()),
        "everybody_ms": 1e3 * looked_up,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    rows = {}
    for name, model in models(arguments.clients).items():
        rows[name] = measure(model, arguments.clients, arguments.cohort, arguments.rounds)
        if not arguments.json:
            pace, everybody, peak = rows[name].values()
            print(f"{name:16} {pace:7.1f} rounds a second   everybody {everybody:6.0f} ms   peak {peak:5.0f} MiB")
    if arguments.json:
        print(json.dumps({"clients": arguments.clients, "cohort": arguments.cohort, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
