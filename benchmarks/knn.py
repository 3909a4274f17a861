"""Seconds to serve many clients from their own memories: kNN-Per on all clients at once.

    python benchmarks/knn.py                              # 500 clients, 200 test samples each, 500 in every memory
    python benchmarks/knn.py --width 256 --threads 1 --json

`memories` represents every client's samples and tunes its lambda; `queries` searches, votes and mixes for every test
sample; `processor` is the processor time of both, `global` what the model alone takes. Medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import turnout
from turnout import LocalSGD, Plan, Ragged, Task
from turnout.core.random import key
from turnout.core.threads import threads
from turnout.engine.batches import Jobs
from turnout.engine.evaluate import Evaluator, Personal
from turnout.engine.store import ClientStore
from turnout.engine.train import Cohort
from turnout.local.serving import Neighbours

INPUTS, CLASSES = 32, 10


def seconds(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """On the wall, and of the processor."""
    call()
    found = []
    for _ in range(repeats):
        started = time.perf_counter(), time.process_time()
        call()
        found.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    wall, processor = zip(*found, strict=True)
    return statistics.median(wall), statistics.median(processor)


def measure(clients: int, stored: int, tested: int, width: int, k: int, repeats: int, plan: Plan) -> dict[str, float]:
    rows = np.arange(clients * (stored + tested)).reshape(clients, stored + tested)
    own, test = (Ragged.from_rows(list(part)) for part in (rows[:, :stored], rows[:, stored:]))
    task = Task(lambda: turnout.models.mlp(INPUTS, [width], CLASSES))
    inputs = torch.randn(rows.size, INPUTS, generator=torch.Generator().manual_seed(0))
    cohort = Cohort(task, inputs, inputs[:, :CLASSES].argmax(1), plan)
    evaluator, model = Evaluator(cohort, np.arange(clients), test), cohort.task.initial
    work = Neighbours(k=k).adaptation(LocalSGD(0.1, batch_size=128))
    jobs = Jobs(work, key(0, "benchmark", np.arange(clients)), model[None], np.zeros(clients, np.int64), own, {}, {})
    store = ClientStore(clients, plan.device, plan.dtype, 64)
    with threads(plan.threads):
        memories, _ = seconds(lambda: cohort.prepare(jobs, {}), repeats)
        total, processor = seconds(lambda: evaluator.personal_models(Personal(work, own.rows), model, store), repeats)
        alone, _ = seconds(lambda: evaluator.global_model(model), repeats)
    parts = {"memories": memories, "queries": total - memories, "total": total}
    return parts | {"processor": processor, "global": alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--stored", type=int, default=500, help="samples in a memory")
    parser.add_argument("--tested", type=int, default=200, help="test samples of a client")
    parser.add_argument("--width", type=int, default=64, help="numbers in a key")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plan = Plan(device=arguments.device, engine="vectorised", threads=arguments.threads or torch.get_num_threads())
    setting = {name: getattr(arguments, name) for name in ("clients", "stored", "tested", "width", "k")}
    found = measure(**setting, repeats=arguments.repeats, plan=plan)
    if arguments.json:
        print(json.dumps({**setting, "threads": plan.threads, "device": plan.device, "seconds": found}, indent=1))
        return
    for name, value in found.items():
        print(f"{name:10} {value:7.2f} s")


if __name__ == "__main__":
    main()
