"""What a message to a deployed client costs: one that stays loaded, and Flower's SuperNode, which starts a process for
each. Both over TLS with node keys on loopback, one after the other, with W2's model (7,850 parameters).

    python benchmarks/loaded.py [--json] [--clients 1] [--loaded 60] [--supernode 4]

Seconds are from the sending of a job to its arrival, the client's computing included, as the run's record has them.
Seconds of the processor are those of all programs (SuperLink, server, clients), by the difference of a long and a short
run. Only these and ratios mean anything on a machine that others use, too. Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from turnout.clients.population import Population
from turnout.config import config
from turnout.core.ragged import Ragged
from turnout.data.dataset import Dataset
from turnout.deploy.folder import prepare
from turnout.deploy.link import Link, node, stop_all
from workloads import WORKLOADS

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: what a program leaves behind becomes a child of this one
_SHORT = 2  # rounds
_SIMULATED = ("availability", "crashes", "links")


def folders(place: Path, clients: int, rounds: int) -> None:
    """The folders of a server and its clients."""
    work = replace(WORKLOADS["W2"], clients=clients)
    options = [f"clients.count={clients}", "model.name=linear", "sampler.name=full", "deploy.evaluate=server"]
    options += [f"local.{name}={value}" for name, value in (("lr", work.lr), ("epochs", 1), ("batch_size", work.batch))]
    options += [f"run.rounds={rounds}", "evaluation.rounds=100000", "engine.threads=1"]
    settings = {name: part for name, part in config.read("digits", options).items() if name not in _SIMULATED}
    train = Ragged.from_rows(list(work.index.numpy()))
    people = Population(work.inputs, work.targets, train, central=(work.inputs[:100], work.targets[:100]))
    known = Dataset("W2", work.inputs, work.targets, work.classes), people
    built, _, complete = config.build(settings, known=known)
    prepare(place, built.population, work.classes, config.as_toml(complete), ["127.0.0.1"], True)


def spent() -> float:
    """Seconds of the processor of all that has been started and has ended."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime


def deployed(place: Path, clients: int, rounds: int, supernode: bool) -> tuple[float, list[dict[str, Any]], bytes]:
    """Carry out so many rounds; seconds of the processor, the record of its jobs, the model."""
    folders(place, clients, rounds)
    before, nodes, run = spent(), [], place / "run"
    with Link(place / "server") as link:
        try:
            for number in range(clients):
                nodes.append(node(place / "clients" / str(number), link.address, supernode))
            link.carry_out(run)
        finally:
            stop_all(nodes)
    jobs = [row for path in sorted((run / "jobs").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return spent() - before, jobs, (run / "model.safetensors").read_bytes()


def measure(place: Path, clients: int, messages: int, supernode: bool) -> tuple[dict[str, Any], bytes]:
    short, _, model = deployed(place / "short", clients, _SHORT, supernode)
    long, jobs, _ = deployed(place / "long", clients, _SHORT + messages, supernode)
    took = np.array([job["ended_at"] - job["sent_at"] for job in jobs if job["version"] >= _SHORT])
    computed = np.array([job["compute_seconds"] for job in jobs if job["version"] >= _SHORT])
    assert all(job["outcome"] == "arrived" for job in jobs)
    found = {
        "messages": len(took),
        "median_ms": 1e3 * float(np.median(took)),
        "fastest_ms": 1e3 * float(took.min()),
        "p90_ms": 1e3 * float(np.quantile(took, 0.9)),
        "computing_ms": 1e3 * float(np.median(computed)),
        "cpu_ms": 1e3 * (long - short) / len(took),
    }
    return found, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--loaded", type=int, default=60, help="rounds that are measured of clients that stay loaded")
    parser.add_argument("--supernode", type=int, default=4, help="rounds that are measured of SuperNodes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="turnout-loaded-") as folder:
        for name, rounds in (("loaded", options.loaded), ("supernode", options.supernode)):
            print(f"{name}: {_SHORT} and {_SHORT + rounds} rounds ...", file=sys.stderr)
            found[name], model = measure(Path(folder) / name, options.clients, rounds, name == "supernode")
            found["same_bits"] = found.setdefault("_model", model) == model
    del found["_model"]
    found["times_fewer_cpu"] = found["supernode"]["cpu_ms"] / found["loaded"]["cpu_ms"]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'':12}{'messages':>9}{'median':>10}{'fastest':>10}{'90 %':>10}{'computing':>11}{'processor':>11}   (ms)")
    for name in ("loaded", "supernode"):
        row = found[name]
        times = "".join(f"{row[f'{key}_ms']:10.0f}" for key in ("median", "fastest", "p90"))
        print(f"{name:12}{row['messages']:9}{times}{row['computing_ms']:11.1f}{row['cpu_ms']:11.0f}")
    print(f"{found['times_fewer_cpu']:.1f} times fewer seconds of the processor; the same bits: {found['same_bits']}")


if __name__ == "__main__":
    main()
