"""Carry out a `PythonWork`: its function is called for one client after another, on threads of one-thread kernels."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnout.core import random, trees
from turnout.core.errors import UserError, reason
from turnout.core.threads import one_thread, threads
from turnout.engine.batches import Jobs, Size
from turnout.engine.plan import Plan
from turnout.local import reports
from turnout.local.python_work import PythonWork
from turnout.local.sgd import ClientData, Named
from turnout.task.arrays import Arrays, ArrayTask, EnsembleTask, difference, numpy_of
from turnout.task.examine import draws_nothing
from turnout.task.task import Task

_INSTEAD = "draw from the generator `key` that it is given (scikit-learn: random_state=int(key.integers(2**31)))"


class Caller:
    """Calls functions on the clients of a task."""

    def __init__(self, task: Task, inputs: Any, targets: Any, plan: Plan) -> None:
        self.task, self.inputs, self.targets, self.plan = task, inputs, targets, plan
        self._repeated: set[str] = set()  # functions whose first job was done twice, with the same result

    def train(self, jobs: Jobs, size: Size, keep: bool) -> tuple[Named, Named, Named]:
        """Call the function of every job; rows as the jobs."""
        work, count = jobs.work, len(jobs.keys)
        assert isinstance(work, PythonWork)
        shapes = work.sends(self.task)
        payload = {name: self._zeros(count, *shape) for name, shape in shapes.items()}
        workers = min(count, self.plan.threads if self.plan.device == "cpu" else 1)

        def share(worker: int) -> None:
            with torch.no_grad(), one_thread("openmp"):
                for row in range(worker, count, workers):
                    for name, value in self._one(work, jobs, row).items():
                        payload[name][row] = value

        if work.called not in self._repeated:
            self._check_repeats(work, jobs)
        with self._alone(work), ThreadPoolExecutor(workers, initializer=torch.get_num_threads) as pool:
            list(pool.map(share, range(workers)))
        received = [jobs.models[version] for version in jobs.received] if keep else []
        return payload, {}, {"params": torch.stack(received) + payload["delta"]} if keep else {}

    @contextmanager
    def _alone(self, work: PythonWork) -> Iterator[None]:
        """Let functions run in threads of one, and draw nothing but from what they are given."""
        what = f"PythonWork: the function {work.called}"
        with draws_nothing(what, torch.device(self.plan.device), _INSTEAD), threads(1), one_thread("blas"):
            yield

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.plan.dtype, device=self.plan.device)

    def _one(self, work: PythonWork, jobs: Jobs, row: int) -> Named:
        """Carry out one job: what is sent."""
        received = jobs.models[jobs.received[row]]
        index = torch.as_tensor(jobs.samples.row(row), device=self.plan.device).long()
        if not len(index):  # nothing to learn from
            return {}
        change = torch.from_numpy(self._change(work, jobs, row, received, index)).to(received)
        if not work.report:
            return {"delta": change}
        ones = self._zeros(len(index)) + 1
        key = torch.as_tensor(jobs.keys[row], device=self.plan.device)
        data = ClientData(self.inputs, self.targets, index, ones, ones.sum(), key, len(index))
        return {"delta": change} | reports.values(work.report, self.task, received, data)

    def _change(
        self, work: PythonWork, jobs: Jobs, row: int, received: Tensor, index: Tensor
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Compute `[P]` what the function has changed, in the share of the samples that it used."""
        task, count = self.task, len(index)
        what = f"PythonWork: {work.called}{'' if jobs.clients is None else f' at client {jobs.clients[row]}'}"
        given = task.arrays(received) if isinstance(task, ArrayTask) else _layers(task, received)
        before = given if "place" in jobs.options else {name: array.copy() for name, array in given.items()}
        inputs, targets = trees.batch(self.inputs, self.targets, index, received)  # copies
        assert work.function is not None
        try:
            answer = work.function(given, numpy_of(inputs), numpy_of(targets), random.generator(jobs.keys[row]))
        except Exception as error:
            raise UserError(f"{what} failed: {type(error).__name__}: {reason(error)}") from error
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise UserError(f"{what} returned {type(answer).__name__}; it must return (arrays, samples)")
        arrays, used = answer
        if not isinstance(used, int | np.integer) or isinstance(used, bool) or not 0 <= used <= count:
            raise UserError(f"{what} says that it used {used!r} samples; it was given {count}")
        if isinstance(task, EnsembleTask):  # members count whole
            return task.added(f"{what} returned", arrays, int(jobs.options["place"][row]))
        change = difference(f"{what} returned", before, arrays)
        return change if used == count else change * (used / count)

    def _check_repeats(self, work: PythonWork, jobs: Jobs) -> None:
        """Raise unless the function gives the same for the same, in the first job of a run: what it draws elsewhere or
        remembers would be another thing after a resume."""
        with self._alone(work), one_thread("openmp"):
            once, again = (self._one(work, jobs, 0) for _ in range(2))
        if any(not torch.equal(value, again[name]) for name, value in once.items()):
            raise UserError(
                f"PythonWork: {work.called} returned other arrays when it was called again with the same; {_INSTEAD}, "
                "and remember nothing from one call to the next"
            )
        self._repeated.add(work.called)


def _layers(task: Task, params: Tensor) -> Arrays:
    return {name: np.array(numpy_of(value)) for name, value in task.layers(params).items()}
