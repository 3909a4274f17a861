"""How much memory a frozen base takes that many threads train adapters on.

    python benchmarks/frozen_base.py --mb 200 --threads 8

makes a model of so many MB whose layers are frozen, with an adapter of rank 4 beside each, trains it with one client
after another on so many threads and evaluates it, and prints by how much the most anonymous memory of the process grew,
less what the same run takes with the adapters alone. Exit code 1: it is more than the bound, in sizes of the base.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch
from torch import Tensor, nn

import turnout
from large_pool import anonymous, watched

LAYERS, CLIENTS = 8, 16


class Adapted(nn.Module):
    """`W x + B A x`: W is frozen, or without a base 1."""

    def __init__(self, width: int, based: bool) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(False) if based else nn.Identity()
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.base(x) + self.up(self.down(x)))


def grown(megabytes: float, threads: int, based: bool) -> float:
    """Train adapters, on a base of that size or without it; the MB that memory grew by at most."""
    width = int((megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    inputs, targets = torch.randn(8 * CLIENTS, 16), torch.arange(8 * CLIENTS) % 3
    before = anonymous()
    with watched() as most:
        layers = [Adapted(width, based) for _ in range(LAYERS)]
        model = nn.Sequential(nn.Linear(16, width), *layers, nn.Linear(width, 3))
        people = turnout.Population.of(turnout.Dataset.of(inputs, targets), clients=CLIENTS, seed=0)
        work, plan = turnout.LocalSGD(lr=0.01, batch_size=4), turnout.Plan(threads=threads, engine="sequential")
        turnout.simulate(turnout.Task(model), people, turnout.FedAvg(work, turnout.Full()), rounds=3, plan=plan)
    return (most[0] - before) * 2**20 / 1e6


def measured(megabytes: float, threads: int, what: str) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--mb", str(megabytes), "--threads", str(threads), "--one", what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mb", type=float, default=200.0, help="size of the base")
    options.add_argument("--threads", type=int, default=8)
    options.add_argument("--bound", type=float, default=1.1, help="times the size of the base")
    options.add_argument("--one", choices=["base", "adapters"], help="print the growth of one run, and nothing else")
    given = options.parse_args()
    if given.one:
        print(grown(given.mb, given.threads, given.one == "base"))
        return 0
    whole, rest = (measured(given.mb, given.threads, what) for what in ("base", "adapters"))
    times = (whole - rest) / given.mb
    print(f"base of {given.mb:g} MB, {given.threads} threads: memory grew by {whole:.0f} MB; {rest:.0f} MB without it")
    print(f"the base took {times:.2f} times its size; bound {given.bound}")
    return int(times > given.bound)


if __name__ == "__main__":
    sys.exit(main())
