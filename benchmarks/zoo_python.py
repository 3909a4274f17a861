"""Models that are not torch, as `examples/sklearn` has them, against plain loops: a row a model.

    python benchmarks/zoo_python.py
    python benchmarks/zoo_python.py --json

Full participation. `float64` and `float32` are the largest difference of a number of the final model to the plain
loop's in the same precision; `bits` says whether a second run, one with two threads and a resumed one had the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import runpy
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import turnout
from turnout.core import random
from turnout.server.stopping import Evaluation, Stopping

EXAMPLES = Path(__file__).parents[1] / "examples/sklearn"
MODELS = ("sgd_classifier", "boosting")
Arrays = dict[str, NDArray[Any]]


class Example(NamedTuple):
    """What an example of the documentation defines."""

    task: turnout.ArrayTask
    people: turnout.Population
    fit: Any

    @classmethod
    def of(cls, name: str) -> Example:
        with redirect_stdout(sys.stderr):
            shown = runpy.run_path(str(EXAMPLES / f"{name}.py"))
        people = turnout.Population.of(turnout.datasets.load(_data(name)), 8, seed=0)
        return cls(shown["task"], people, shown["fit"])

    def experiment(self, rounds: int, plan: turnout.Plan) -> turnout.Experiment:
        method, never = turnout.FedAvg(turnout.PythonWork(self.fit), turnout.Full()), Evaluation(rounds=10**6)
        return turnout.Experiment(self.task, self.people, method, 0, Stopping(rounds), never, plan)


def _data(name: str) -> str:
    return "digits" if name == "sgd_classifier" else "breast_cancer"


def plain(example: Example, rounds: int, precision: str) -> Arrays:
    """The same in a plain loop: every client on its own arrays, then their weighted mean, or all members together."""
    people, grows = example.people, isinstance(example.task, turnout.EnsembleTask)
    inputs, targets = people.inputs.numpy().astype(precision), people.targets.numpy()
    model = {name: array.astype(precision) for name, array in example.task.arrays(example.task.initial).items()}
    keys = random.key(0, "local work", people.ids)
    for number in range(rounds):
        returned = []
        for client, key in enumerate(random.fold(keys, np.full(len(keys), number))):
            rows, own = people.train.row(client), {name: array.copy() for name, array in model.items()}
            returned.append(example.fit(own, inputs[rows], targets[rows], random.generator(key))[0])
        for name in model:
            found = [arrays[name] for arrays in returned]
            mean = np.tensordot(people.base_importance, np.stack(found), 1)
            model[name] = (np.concatenate([model[name], *found]) if grows else mean).astype(precision)
    return model


def same_bits(example: Example, rounds: int, whole: torch.Tensor, plan: turnout.Plan) -> bool:
    others = [turnout.execute(example.experiment(rounds, turnout.Plan(threads=count))) for count in (1, 2)]
    with tempfile.TemporaryDirectory() as folder:
        turnout.execute(example.experiment(rounds // 2, plan), Path(folder) / "run", checkpoint_every=1)
        others.append(turnout.execute(example.experiment(rounds, plan), Path(folder) / "run", resume=True))
    return all(torch.equal(whole, other.model) for other in others)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Run one example in both precisions, beside its plain loop."""
    example, row = Example.of(name), dict[str, Any]()
    for precision in ("float64", "float32"):
        plan = turnout.Plan(precision=precision, threads=1)
        began = time.perf_counter()
        result = turnout.execute(example.experiment(rounds, plan))
        ours, began = time.perf_counter() - began, time.perf_counter()
        expected = plain(example, rounds, precision)
        row |= {"ms": 1e3 * ours / rounds, "plain_ms": 1e3 * (time.perf_counter() - began) / rounds}
        found = example.task.arrays(result.model)
        row[precision] = max(float(np.abs(found[part] - array).max()) for part, array in expected.items())
    path = result.server.paths[0]
    row["bits"] = same_bits(example, rounds, result.model, plan)
    row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"path": f"{path['name']}: {path['why']}", **row}


def main() -> None:
    parser = argparse.ArgumentParser(description="Models that are not torch against plain loops.")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--rounds", type=int, default=10, help="the ensemble has room for ten")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = {name: measure(name, arguments.rounds) for name in arguments.model or MODELS}
    if arguments.json:
        print(json.dumps({"python": sys.version, "torch": torch.__version__, "rows": rows}, indent=1))
        return
    for name, row in rows.items():
        print(
            f"{name:15} float64 {row['float64']:.1e}  float32 {row['float32']:.1e}  same bits {row['bits']}  "
            f"{row['ms']:.1f} ms a round, plain {row['plain_ms']:.1f}  peak {row['peak_mib']:.0f} MiB  {row['path']}"
        )


if __name__ == "__main__":
    main()
