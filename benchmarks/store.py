"""What it costs that clients keep a model each: time to read and write rows, and the memory that takes.

    python benchmarks/store.py                            # 100,000 clients, 1,000 parameters, 64 MiB for them
    python benchmarks/store.py --parameters 10000 --json

Clients come in random order, a hundred at a time, as the cohorts of a run do. Memory is what the process holds of its
own (RssAnon of Linux) beyond what it held before; pages of the file are the system's to drop.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from turnout.engine.store import ClientStore

COHORT = 100


def own_mib() -> float:
    """Memory that only this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def measure(clients: int, parameters: int, memory_mib: int) -> dict[str, float]:
    store = ClientStore(clients, "cpu", torch.float32, memory_mib)
    shapes: dict[str, tuple[int, ...]] = {"model": (parameters,), "started": ()}
    cohorts = np.array_split(np.random.default_rng(0).permutation(clients), clients // COHORT)
    rows = {"model": torch.ones(len(cohorts[0]) + 1, parameters), "started": torch.ones(len(cohorts[0]) + 1)}
    before, seconds = own_mib(), {"first_write": 0.0, "read": 0.0, "write": 0.0}
    for name in seconds:
        started = time.perf_counter()
        for cohort in cohorts:
            if name == "read":
                store.get(shapes, cohort)
            else:
                store.put(cohort, {key: values[: len(cohort)] for key, values in rows.items()})
        seconds[name] = 1000 * (time.perf_counter() - started) / len(cohorts)
    return {
        "clients": clients,
        "parameters": parameters,
        "state_mib": clients * (parameters + 1) * 4 / 2**20,
        "budget_mib": memory_mib,
        "memory_mib": own_mib() - before,
        **{f"{name}_ms": value for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--parameters", type=int, default=1000)
    parser.add_argument("--memory-mib", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(given.clients, given.parameters, given.memory_mib)
    if given.json:
        print(json.dumps(found))
        return
    print(f"{found['clients']:,} clients keep {found['state_mib']:,.0f} MiB; {found['budget_mib']} MiB allowed")
    print(f"memory taken                {found['memory_mib']:8.1f} MiB")
    for name, words in (("first_write", "first write"), ("read", "read"), ("write", "write")):
        print(f"{words + f' of {COHORT} clients':28s}{found[name + '_ms']:8.2f} ms")


if __name__ == "__main__":
    main()
