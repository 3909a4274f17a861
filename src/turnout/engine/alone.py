"""Clients one after another, on threads of one-thread kernels: no bit depends on how many threads there are."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core import trees
from turnout.core.threads import threads
from turnout.engine import plain_sgd
from turnout.engine.batches import Jobs, Size
from turnout.engine.plain_sgd import ENOUGH, as_convolved
from turnout.local import job
from turnout.local.sgd import Batch, LocalSGD, Named
from turnout.task.task import Task

if TYPE_CHECKING:
    from turnout.engine.train import Cohort


def train_alone(cohort: Cohort, jobs: Jobs, size: Size, keep: bool) -> tuple[Named, Named, Named]:
    """Train clients one after another, on as many threads as there is memory for; each into its row."""
    count, steps = len(size.steps), size.steps
    payload, state = (
        {name: cohort.task.initial.new_empty((count, *shape)) for name, shape in shapes.items()}
        for shapes in (jobs.work.sends(cohort.task), jobs.work.trained_shapes(cohort.task))
    )
    kept: list[Tensor] = []
    for start in range(0, count, size.limit):
        part = slice(start, min(count, start + size.limit))
        some = jobs if count <= size.limit else jobs.take(np.arange(part.start, part.stop))
        own = [{name: values[part] for name, values in named.items()} for named in (payload, state)]
        kept += _on_threads(cohort, some, steps[part], own, keep)
    return payload, state, {"params": torch.stack(kept)} if keep else {}


def _on_threads(cohort: Cohort, jobs: Jobs, steps: NDArray[np.int64], results: list[Named], keep: bool) -> list[Tensor]:
    """Train clients on threads, those with most to do first, and leave payload and state of each in its row; the
    parameters that they end with, if they are to be kept."""
    drawn = cohort._drawn(jobs, steps)
    rows, sizes = drawn.rows(), drawn.sizes.tolist()
    workers = min(len(cohort._single), len(steps))
    general = cohort._plain.chain is None and plain_sgd.applies(cohort.task, jobs.work, ())
    kernels = cohort._plain.kernels if general else frozenset[str]()
    order = np.lexsort((np.arange(len(steps)), -jobs.samples.counts, -steps)).tolist()
    kept = dict[int, Tensor]()

    def one(task: Task, i: int) -> tuple[Named, Named, Tensor]:
        n = int(jobs.samples.counts[i])
        work = jobs.work.bind({name: float(values[i]) for name, values in jobs.options.items()})
        received = jobs.models[jobs.received[i]]
        state = {name: values[i] for name, values in jobs.state.items()}
        ones = torch.ones(n, dtype=cohort.plan.dtype, device=cohort.plan.device)
        count, key = drawn.counts[i].to(cohort.plan.dtype), torch.as_tensor(jobs.keys[i], device=cohort.plan.device)
        data = cohort._client(cohort._chunk(n, 1024), (drawn.indices[i, :n], ones, count, key))
        if type(work).score is not LocalSGD.score:
            data = replace(data, scores=data.scan(partial(work.score, task, received)))

        plain = plain_sgd.applies(task, work, ())

        def mini_batches() -> Iterator[Batch]:
            for number in range(int(steps[i])):
                stored = drawn.stored(number)
                size = sizes[i][stored]
                inputs, targets = cohort.samples(rows[i, stored, :size])
                if plain or size >= ENOUGH:
                    inputs = trees.map_leaves(as_convolved, inputs)
                weights = received.new_full((size,), 1 / size)
                positions, key = drawn.positions[i, stored, :size], drawn.keys[i, number]
                yield Batch(inputs, targets, weights, positions, key, number)

        params, carry = job.begin(work, task, received, state, data)
        if plain:
            most = int(steps[i]) * rows.shape[-1]
            counted = (b._replace(weights=work.counted(carry, b.weights, b.positions)) for b in mini_batches())
            params = params + cohort._plain.run_client(task, params, work.lr, most, counted, kernels)
        else:
            for batch in mini_batches():
                params, carry = job.advance(work, task, params, carry, batch)
        return *job.conclude(work, task, received, params, carry, state, data), params

    def share(worker: int) -> None:
        with torch.no_grad():
            for i in order[worker::workers]:
                *brought, params = one(cohort._single[worker], i)
                for rows_of, values in zip(results, brought, strict=True):
                    for name, value in values.items():
                        rows_of[name][i].copy_(value)
                if keep:
                    kept[i] = params

    with threads(1), ThreadPoolExecutor(workers, initializer=torch.get_num_threads) as pool:
        list(pool.map(share, range(workers)))
    return [kept[i] for i in sorted(kept)]
