"""Models people use, trained as they come, against a plain `torch.optim` loop: a row a model.

    python benchmarks/zoo.py                                 # on the CPU
    python benchmarks/zoo.py --device cuda --json
    python benchmarks/zoo.py --only 'LoRA|BERT'

Two rounds of FedAvg over three clients of `zoo_rows.py`, with batches of two, and the same in a plain loop: the user's
own module, `torch.optim.SGD`, the loss as torch has it, the same batches and draws. `float64` and `float32` are the
largest difference of a number of the final model (float32: after one round, tf32 off). `bits`: whether a second run,
one with two threads and a resumed one had the same. Milliseconds a round are those of the second.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import turnout
from turnout.core import random, trees
from turnout.core.ragged import Ragged
from turnout.core.random import bits, mix
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.draws import KeyedDraws
from turnout.task.dropout import KeyedDropout, key_dropout
from zoo_rows import COUNTS, ROWS, Row

BATCH, ROUNDS = 2, 2
DTYPES = {"float64": torch.float64, "float32": torch.float32}
LIMITS = {"float64": 1e-9, "float32": 5e-6}


def made(name: str) -> Row:
    torch.manual_seed(0)
    return ROWS[name]()


# -- by Turnout -------------------------------------------------------------------------------------------------


def experiment(row: Row, rounds: int, plan: turnout.Plan) -> turnout.Experiment:
    offsets = np.cumsum([0, *COUNTS])
    people = turnout.Population(row.inputs, row.targets, Ragged(offsets, np.arange(offsets[-1])))
    local = turnout.LocalSGD(row.lr, batch_size=BATCH)
    kept: dict[str, Any] = {"head": row.private, "local": local, "sampler": turnout.Full()}
    method = turnout.algorithms.FedPer(**kept) if row.private else turnout.FedAvg(local, turnout.Full())
    task = turnout.Task(row.model, row.loss, **row.task)
    return turnout.Experiment(task, people, method, 0, Stopping(rounds), Evaluation(rounds=10**6), plan)


def same_bits(name: str, whole: Tensor, plan: turnout.Plan) -> bool:
    """Say whether the same comes out again, with two threads, and after a resume."""
    others = [turnout.execute(experiment(made(name), ROUNDS, plan)).model]
    if plan.device == "cpu":
        two = turnout.Plan(threads=2, precision=plan.precision)
        others.append(turnout.execute(experiment(made(name), ROUNDS, two)).model)
    with tempfile.TemporaryDirectory() as folder:
        turnout.execute(experiment(made(name), 1, plan), Path(folder) / "run", checkpoint_every=1)
        again = turnout.execute(experiment(made(name), ROUNDS, plan), Path(folder) / "run", resume=True)
        others.append(again.model)
    return all(torch.equal(whole, other) for other in others)


# -- by a plain loop --------------------------------------------------------------------------------------------


def plain(row: Row, rounds: int, device: str, dtype: torch.dtype) -> tuple[Tensor, float]:
    """The trained parameters `[P]` in the end, and the seconds of the last round."""
    module = placed(row.model, device, dtype)
    inputs, targets = (
        trees.map_leaves(lambda leaf: leaf.to(device, dtype if leaf.is_floating_point() else None), part)
        for part in (row.inputs, row.targets)
    )
    trained = {name: own for name, own in module.named_parameters() if own.requires_grad}
    private = {name for name in trained if row.private and name.startswith(f"{row.private}.")}
    model = {name: own.detach().clone() for name, own in trained.items()}
    kept: list[dict[str, Tensor]] = [{} for _ in COUNTS]
    keys, seconds = random.key(0, "local work", np.arange(len(COUNTS))), 0.0
    for number in range(rounds):
        began, total = time.perf_counter(), {name: torch.zeros_like(own) for name, own in model.items()}
        for client, key in enumerate(random.fold(keys, np.full(len(keys), number))):
            with torch.no_grad():
                for name, own in trained.items():
                    own.copy_((model | kept[client])[name])
            own_rows = torch.arange(COUNTS[client], device=device) + sum(COUNTS[:client])
            train(row, module, trees.at(inputs, own_rows), trees.at(targets, own_rows), int(key))
            for name, own in trained.items():
                total[name] += own.detach() * (COUNTS[client] / sum(COUNTS))
            kept[client] = {name: trained[name].detach().clone() for name in private}
        model |= {name: value for name, value in total.items() if name not in private}
        seconds = time.perf_counter() - began
    return torch.cat([value.flatten() for value in model.values()]), seconds


def placed(model: nn.Module, device: str, dtype: torch.dtype) -> nn.Module:
    """Copy a model; what is of the precision of the trained parameters gets another."""
    module = copy.deepcopy(model).to(device).train()
    key_dropout(module)  # its layers of dropout draw as Turnout's do
    main = next(own.dtype for own in module.parameters() if own.requires_grad)
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.to(dtype) if tensor.dtype == main else tensor.data
    return module


def train(row: Row, module: nn.Module, inputs: Any, targets: Any, key: int) -> None:
    """One pass over a client's samples."""
    optimiser = torch.optim.SGD([own for own in module.parameters() if own.requires_grad], row.lr)
    dropped = [layer for layer in module.modules() if isinstance(layer, KeyedDropout)]
    count = trees.rows(inputs)
    order = np.argsort(bits(mix(np.asarray([key], np.int64))[0], count), kind="stable")
    for number, start in enumerate(range(0, count, BATCH)):
        rows = torch.as_tensor(order[start : start + BATCH], device=trees.leaves(inputs)[0].device)
        step = mix(torch.tensor(key, device=rows.device) ^ (number + 1))
        optimiser.zero_grad()
        for place, layer in enumerate(dropped, 1):
            layer.key = mix(step ^ place)
        with KeyedDraws(step, len(dropped)):
            loss = row.plain(module, trees.at(inputs, rows), trees.at(targets, rows))
            loss.backward()
        optimiser.step()


# -- both -------------------------------------------------------------------------------------------------------


class Clock(turnout.Observer):
    """When each round closed."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round(self, server: turnout.Server, record: Any) -> None:
        self.times.append(time.perf_counter())


def measure(name: str, device: str) -> dict[str, Any]:
    """Carry out a row in both precisions, beside its plain loop."""
    found: dict[str, Any] = {}
    for precision, rounds in (("float64", ROUNDS), ("float32", 1)):
        plan = turnout.Plan(device=device, precision=precision, threads=1)
        expected, _ = plain(made(name), rounds, device, DTYPES[precision])
        result = turnout.execute(experiment(made(name), rounds, plan))
        found[precision] = float((result.model - expected.to(result.model)).abs().max())
    row, clock = made(name), Clock()
    result = turnout.execute(experiment(row, ROUNDS, turnout.Plan(device=device, threads=1)), observers=[clock])
    found["ms"] = 1e3 * (clock.times[-1] - clock.times[-2])
    found["plain_ms"] = 1e3 * plain(made(name), ROUNDS, device, torch.float32)[1]
    found["path"] = "; ".join(f"{path['name']}: {path['why']}" for path in result.server.paths[:1])
    found["parameters"] = len(result.model)
    found["rough"] = row.rough
    found["bits"] = same_bits(name, result.model, turnout.Plan(device=device, threads=1))
    peak = torch.cuda.max_memory_allocated() / 2**20 if device != "cpu" else 0
    found["peak_mib"] = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def attempt(name: str, device: str) -> dict[str, Any]:
    try:
        return measure(name, device)
    except (turnout.UserError, ImportError) as error:
        return {"refused": str(error)}


def line(name: str, found: dict[str, Any]) -> str:
    if "refused" in found:
        return f"{name:36} refused: {found['refused']}"
    differs = "  ".join(f"{precision} {found[precision]:.1e}" for precision in LIMITS)
    times = f"{found['ms']:.1f} ms, plain {found['plain_ms']:.1f}"
    return f"{name:36} {differs}  bits {found['bits']}  {times}  {found['peak_mib']:.0f} MiB  {found['path']}"


def right(found: dict[str, Any]) -> bool:
    """Say whether a row is as it should be."""
    close = {name: found.get(name, np.inf) <= limit for name, limit in LIMITS.items()}
    return bool(found.get("bits")) and close["float64"] and (close["float32"] or bool(found["rough"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", metavar="REGEX", help="of the names of rows")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of operations that are mapped one by one
    rows = {}
    for name in ROWS:
        if re.search(arguments.only, name):
            rows[name] = attempt(name, arguments.device)
            if not arguments.json:
                print(line(name, rows[name]), flush=True)
    wrong = [name for name, found in rows.items() if not right(found)]
    if arguments.json:
        print(json.dumps({"torch": torch.__version__, "device": arguments.device, "rows": rows}, indent=1))
    print(
        f"{len(rows) - len(wrong)} of {len(rows)} rows right{'; not: ' if wrong else ''}{', '.join(wrong)}",
        file=sys.stderr,
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
