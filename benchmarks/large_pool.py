"""How much memory a pool of images on disk takes: bytes that are mapped, trained on and evaluated.

    python benchmarks/large_pool.py --gb 4

writes as many random images of 3 x 64 x 64 bytes into a temporary folder, trains a small convolutional network on them
for some rounds, evaluates it on every sample, and prints the most anonymous memory that the process had (`RssAnon` of
/proc/self/status, looked at every few milliseconds): pages of the file itself are the system's to drop. Exit code 1:
it is more than the bound.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

import turnout

IMAGE, CLASSES, CLIENTS = (3, 64, 64), 10, 400
MIB = 1 << 20


def anonymous() -> int:
    """Read the anonymous memory of this process, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) >> 10


@contextmanager
def watched() -> Iterator[list[int]]:
    """Look at the anonymous memory until the end: the most of it, in MiB."""
    most, over = [anonymous()], threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            most[0] = max(most[0], anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()
        most[0] = max(most[0], anonymous())


def write_pool(folder: Path, size: int) -> tuple[Path, Path]:
    """Write images of so many bytes, and the class of each: the brightness of its first rows."""
    count = size // int(np.prod(IMAGE))
    images, labels = folder / "images.npy", folder / "labels.npy"
    pool = np.lib.format.open_memmap(images, "w+", np.uint8, (count, *IMAGE))
    draws = np.random.default_rng(0)
    classes = draws.integers(0, CLASSES, count)
    block = draws.integers(0, 200, (256, *IMAGE), dtype=np.uint8)
    for start in range(0, count, len(block)):
        own = classes[start : start + len(block)]
        pool[start : start + len(own)] = block[: len(own)]
        pool[start : start + len(own), :, :8] = (20 * own).astype(np.uint8)[:, None, None, None]
        if start % (64 * len(block)) == 0:
            pool.flush()
    pool.flush()
    np.save(labels, classes)
    return images, labels


def network() -> nn.Module:
    layers = nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, CLASSES)
    return nn.Sequential(*layers)


def train(images: Path, labels: Path, rounds: int, clients: int = CLIENTS) -> turnout.Result:
    """Train on the files as they are, and evaluate every sample."""
    pool = np.load(images, mmap_mode="r")
    people = turnout.Population.of(turnout.Dataset.of(pool, np.load(labels)), clients=clients, seed=0)
    work = turnout.LocalSGD(lr=0.05, steps=5, batch_size=32)
    plan = turnout.Plan(threads=1, memory_mib=32)
    task = turnout.Task(network, seed=0, prepare="pixels")
    algorithm = turnout.FedAvg(work, turnout.Uniform(10))
    return turnout.simulate(
        task, people, algorithm, rounds=rounds, plan=plan, evaluation=turnout.Evaluation(train=True)
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gb", type=float, default=4.0, help="size of the pool")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--bound", type=int, default=600, help="MiB of anonymous memory")
    given = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = write_pool(Path(folder), int(given.gb * 1e9))
        before, begin = anonymous(), time.perf_counter()
        with watched() as most:
            result = train(*files, given.rounds)
        seconds = time.perf_counter() - begin
    loss = result.measures["test_loss"]
    print(f"pool {given.gb:g} GB, {given.rounds} rounds and evaluations in {seconds:.0f} s, test loss {loss:.3f}")
    print(f"anonymous memory: {before} MiB before, {most[0]} MiB at most; bound {given.bound} MiB")
    return int(most[0] > given.bound)


if __name__ == "__main__":
    sys.exit(main())
