"""Models people use, trained as they come, against a plain `torch.optim` loop: a row a model.

    python benchmarks/zoo.py                                 # on the CPU
    python benchmarks/zoo.py --device cuda --json
    python benchmarks/zoo.py --only 'LoRA|BERT' --keep zoo.json    # rows that are kept there already are not run again
    python benchmarks/zoo.py --table cpu.json cuda.json

Two rounds of FedAvg over three clients of `zoo_rows.py`, with batches of two, and the same in a plain loop: the user's
own module, `torch.optim.SGD`, the loss as torch has it, the same batches and draws. `float64` and `float32` are the
largest difference of a number of the final model (float32: after one round, tf32 off). `bits`: whether a second run,
one with two threads and a resumed one had the same. Milliseconds a round are those of the second. Memory is the most
that the process had after Turnout had trained (every row has one of its own), on CUDA the most allocated there. What is
not torch (`zoo_python.py`) is computed on the CPU.
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
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import turnout
import zoo_python
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


def plain(row: Row, rounds: int, device: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], float]:
    """What is trained and what changes beside it in the end, by name, and the seconds of the last round."""
    module = placed(row.model, device, dtype)
    inputs, targets = (
        trees.map_leaves(lambda leaf: leaf.to(device, dtype if leaf.is_floating_point() else None), part)
        for part in (row.inputs, row.targets)
    )
    state, own, unsent = Roles.of(row, module)
    model = {name: tensor.detach().clone() for name, tensor in state.items()}
    kept: list[dict[str, Tensor]] = [{} for _ in COUNTS]
    keys, seconds = random.key(0, "local work", np.arange(len(COUNTS))), 0.0
    for number in range(rounds):
        began, total = time.perf_counter(), {name: torch.zeros_like(tensor) for name, tensor in model.items()}
        rest(row, module, number)
        for client, key in enumerate(random.fold(keys, np.full(len(keys), number))):
            with torch.no_grad():
                for name, tensor in state.items():
                    tensor.copy_((model | kept[client])[name])
            own_rows = torch.arange(COUNTS[client], device=device) + sum(COUNTS[:client])
            train(row, module, trees.at(inputs, own_rows), trees.at(targets, own_rows), int(key))
            for name, tensor in state.items():
                total[name] += tensor.detach() * (COUNTS[client] / sum(COUNTS))
            kept[client] = {name: state[name].detach().clone() for name in own}
        model |= {name: value for name, value in total.items() if name not in unsent}
        seconds = time.perf_counter() - began
    return model, seconds


class Roles(NamedTuple):
    """What of a module is trained or changes, by name; of it what every client has of its own, and what is not sent."""

    state: dict[str, Tensor]
    own: set[str]
    unsent: set[str]

    @classmethod
    def of(cls, row: Row, module: nn.Module) -> Roles:
        trained = {name: part for name, part in module.named_parameters() if part.requires_grad}
        choice, buffers = row.task.get("batchnorm"), row.task.get("buffers")
        private = {name for name in trained if row.private and name.startswith(f"{row.private}.")}
        layers = [f"{name}." for name in norms(module)]
        changing = {f"{name}{own}" for name in layers for own in ("running_mean", "running_var")} if choice else set()
        loose = {name for name, own in module.named_buffers() if own.is_floating_point()} if buffers else set()
        state = trained | {name: module.get_buffer(name) for name in changing | loose}
        own = private | (changing if choice in ("local", "local_statistics") else set())
        own |= {name for name in trained if name.startswith(tuple(layers))} if choice == "local" else set()
        own |= loose if buffers == "kept" else set()
        unsent = private | (changing if choice in ("batch", "frozen") else set())
        return cls(state, own, unsent | (loose if buffers == "frozen" else set()))


def norms(module: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)}


def rest(row: Row, module: nn.Module, number: int) -> None:
    """Let batch normalisation go by the statistics it has, from some round on or always."""
    choice = row.task.get("batchnorm")
    since = 0 if choice == "frozen" else getattr(choice, "fixed_from", np.inf)
    for layer in norms(module).values():
        layer.train(number < since)


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
    row, clock, plan = made(name), Clock(), turnout.Plan(device=device, threads=1)
    before = peak(device)
    result = turnout.execute(experiment(row, ROUNDS, plan))
    found: dict[str, Any] = {"before_mib": before, "peak_mib": peak(device)}
    turnout.execute(experiment(made(name), ROUNDS + 1, plan), observers=[clock])  # the last round is always evaluated
    for precision, rounds in (("float64", ROUNDS), ("float32", 1)):
        exact = turnout.Plan(device=device, precision=precision, threads=1)
        expected, _ = plain(made(name), rounds, device, DTYPES[precision])
        found[precision] = difference(turnout.execute(experiment(made(name), rounds, exact)), expected)
    found["ms"] = 1e3 * (clock.times[ROUNDS - 1] - clock.times[ROUNDS - 2])
    found["plain_ms"] = 1e3 * plain(made(name), ROUNDS, device, torch.float32)[1]
    found["path"] = "; ".join(f"{path['name']}: {path['why']}" for path in result.server.paths[:1])
    found["parameters"] = len(result.model)
    found["rough"] = row.rough
    found["bits"] = same_bits(name, result.model, plan)
    return found


def difference(result: turnout.Result, expected: dict[str, Tensor]) -> float:
    """The largest difference of a number of the final model."""
    state = result.state_dict()
    return max(float((state[name] - value.to(state[name])).abs().max()) for name, value in expected.items())


def peak(device: str) -> float:
    """The most MiB taken until now: of the device since this was asked last, or by this process."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    most = torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.reset_peak_memory_stats()
    return most


def attempt(name: str, device: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of operations that are mapped one by one
    try:
        return zoo_python.measure(name) if name in zoo_python.ROWS else measure(name, device)
    except (turnout.UserError, ImportError) as error:
        return {"refused": str(error)}


def alone(name: str, device: str) -> dict[str, Any]:
    """Attempt a row in a process of its own, whose memory is that of the row."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(attempt, name, device).result()


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


def document(device: str, rows: dict[str, Any]) -> str:
    """Write down results, and where they are from."""
    return json.dumps({"torch": torch.__version__, "device": device, "rows": rows}, indent=1) + "\n"


def kept(path: Path | None) -> dict[str, Any]:
    """Read the results of a file, if it is there."""
    return json.loads(path.read_text())["rows"] if path is not None and path.exists() else {}


def table(documents: list[dict[str, Any]]) -> str:
    """Lay out results as a table of Markdown: a row a model, columns for each device."""
    head, rule, rows = ["model", "path, and why not another"], ["---", "---"], []
    for each in documents:
        head += [f"{each['device']}: {what}" for what in ("float64", "float32", "ms", "plain", "MiB")]
        rule += ["---:"] * 5
    for name, first in documents[0]["rows"].items():
        others = [
            each
            for each in documents
            if each["rows"].get(name, first)["path"].split(":")[0] != first["path"].split(":")[0]
        ]
        ways = [first["path"], *(f"{each['device']}: {each['rows'][name]['path'].split(':')[0]}" for each in others)]
        cells = [name, "; ".join(ways).replace("|", "/")]
        for found in (each["rows"].get(name, {}) for each in documents):
            cells += figures(found) if "path" in found else [*"     "]
        rows.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def figures(found: dict[str, Any]) -> list[str]:
    """What a table says of a row: a star where rounding grows, and what is not right in bold."""
    differs = [f"{found[precision]:.0e}{' *' * (found[precision] > limit)}" for precision, limit in LIMITS.items()]
    cells = [*differs, *(f"{found[name]:.0f}" for name in ("ms", "plain_ms", "peak_mib"))]
    return cells if right(found) else [f"**{cell}**" for cell in cells]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", metavar="REGEX", help="of the names of rows")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="file of results, written after every row")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print a table of kept results")
    arguments = parser.parse_args()
    if arguments.table:
        print(table([json.loads(path.read_text()) for path in arguments.table]))
        return 0
    rows, carried_out = kept(arguments.keep), alone if arguments.device == "cpu" else attempt
    for name in [*ROWS, *zoo_python.ROWS]:
        if re.search(arguments.only, name) and name not in rows:
            rows[name] = carried_out(name, arguments.device)
            if arguments.keep:
                arguments.keep.write_text(document(arguments.device, rows))
            if not arguments.json:
                print(line(name, rows[name]), flush=True)
    wrong = [name for name, found in rows.items() if not right(found)]
    if arguments.json:
        print(document(arguments.device, rows))
    print(
        f"{len(rows) - len(wrong)} of {len(rows)} rows right{'; not: ' if wrong else ''}{', '.join(wrong)}",
        file=sys.stderr,
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
