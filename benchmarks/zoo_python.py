"""Rows of `zoo.py` that are not torch, as `examples/sklearn` has them, against plain loops over ten rounds of eight
clients."""

from __future__ import annotations

import io
import resource
import runpy
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
ROWS = {"scikit-learn, SGDClassifier": "sgd_classifier", "scikit-learn, boosting": "boosting"}
ROUNDS = 10  # the ensemble has room for ten
Arrays = dict[str, NDArray[Any]]


class Example(NamedTuple):
    """What an example of the documentation defines."""

    task: turnout.ArrayTask
    people: turnout.Population
    fit: Any

    @classmethod
    def of(cls, name: str) -> Example:
        with redirect_stdout(io.StringIO()):  # its own score, which is no row of the table
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


def measure(name: str) -> dict[str, Any]:
    """Run one example in both precisions, beside its plain loop."""
    before = peak()
    example, row = Example.of(ROWS[name]), dict[str, Any]()
    for precision in ("float64", "float32"):
        plan = turnout.Plan(precision=precision, threads=1)
        began = time.perf_counter()
        result = turnout.execute(example.experiment(ROUNDS, plan))
        ours, began = time.perf_counter() - began, time.perf_counter()
        expected = plain(example, ROUNDS, precision)
        row |= {"ms": 1e3 * ours / ROUNDS, "plain_ms": 1e3 * (time.perf_counter() - began) / ROUNDS}
        found = example.task.arrays(result.model)
        row[precision] = max(float(np.abs(found[part] - array).max()) for part, array in expected.items())
    path = result.server.paths[0]
    row |= {"path": f"{path['name']}: {path['why']}", "parameters": len(result.model), "rough": ""}
    row |= {"before_mib": before, "peak_mib": peak()}
    row["bits"] = same_bits(example, ROUNDS, result.model, plan)
    return row


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
