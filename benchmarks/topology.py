"""Seconds to design every overlay for silos scattered over a continent, on one core.

    python benchmarks/topology.py                          # 200 silos
    python benchmarks/topology.py --silos 100 --json

Silos lie at random in a square of 4,000 km; those nearer than 500 km are linked, and a spanning tree links the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np

from turnout.core.random import key, uniform
from turnout.peers.design import NAMES, design
from turnout.peers.network import Exchange, Network
from turnout.peers.overlays import prim
from turnout.peers.underlays import parse

SIDE_KM, NEAR_KM = 4000.0, 500.0
EXCHANGE = Exchange(32 * 11.2e6, 25.4e-3)


def scattered(silos: int, seed: int, access: float) -> Network:
    places = SIDE_KM * uniform(key(seed, "places", np.arange(silos)), 2)
    km = np.linalg.norm(places[:, None] - places, axis=-1)
    links = np.argwhere(np.triu((km < NEAR_KM) | prim(km), 1)).tolist()
    nodes = [{"id": silo} for silo in range(silos)]
    return parse({"nodes": nodes, "links": [{"source": i, "target": j, "km": km[i, j]} for i, j in links]}).network(
        access
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--access", type=float, default=1e9, help="bits a second")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    begun = time.perf_counter()
    network = scattered(arguments.silos, arguments.seed, arguments.access)
    seconds = {"network": time.perf_counter() - begun}
    cycle_ms = {}
    for name in NAMES:
        begun = time.perf_counter()
        (row,) = design(network, EXCHANGE, [name])
        seconds[name], cycle_ms[name] = time.perf_counter() - begun, 1e3 * row.cycle_time
    seconds["all"] = sum(seconds.values())
    if arguments.json:
        print(json.dumps({"silos": arguments.silos, "seconds": seconds, "cycle_time_ms": cycle_ms}, indent=1))
        return
    for name, taken in seconds.items():
        cycle = f"   a round {cycle_ms[name]:10.1f} ms" if name in cycle_ms else ""
        print(f"{name:12} {taken:6.2f} s{cycle}")


if __name__ == "__main__":
    main()
