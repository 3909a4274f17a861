"""Train a cohort: many jobs, possibly from different versions of the model, in as few calls as memory allows.

`vectorised` maps the one-client functions of a local work over stacked flat parameters. `sequential` runs them one
client after another, on several threads of one-thread kernels, so that neither the number of threads nor the company
changes a bit. Clients are sorted by their number of steps: at each step the still active ones are a prefix, and
nobody is padded with steps of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from turnout.cohort.batches import plan as plan_batches
from turnout.cohort.plan import Plan
from turnout.local.sgd import Batch, ClientData, LocalSGD, Named
from turnout.population.ragged import Ragged
from turnout.random import mix
from turnout.task import Task


@dataclass(frozen=True)
class Jobs:
    """What the engine needs to know of k jobs that share one local work."""

    work: LocalSGD
    keys: NDArray[np.int64]  # [k] the randomness of each job
    models: Tensor  # [V, P] the distinct models received
    received: NDArray[np.int64]  # [k] which of them
    samples: Ragged  # k rows: indices into the pool
    options: dict[str, NDArray[np.float64]]  # [k] numbers of the work that differ between clients
    state: Named  # [k, ...]

    def take(self, rows: NDArray[np.int64]) -> Jobs:
        picked = torch.as_tensor(rows, device=self.models.device)
        return replace(
            self,
            keys=self.keys[rows],
            received=self.received[rows],
            samples=self.samples.rows(rows),
            options={name: values[rows] for name, values in self.options.items()},
            state={name: values[picked] for name, values in self.state.items()},
        )


@dataclass(frozen=True)
class Trained:
    """Results by name, row for row as the jobs were given."""

    payload: Named  # [k, ...]
    state: Named  # [k, ...]
    local: Named  # {"params": [k, P']} what the clients end up with, if asked for


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with `count` intra-operation threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Cohort:
    """The engine: a task, the clients' samples on its device, and a resolved plan."""

    def __init__(self, task: Task, inputs: Tensor, targets: Tensor, plan: Plan) -> None:
        self.plan = plan
        self.task = task.to(plan.device, plan.dtype)
        self.inputs = self.place(inputs)
        self.targets = self.place(targets)
        self.sample_bytes = self.inputs[:1].numel() * self.inputs.element_size()
        self.activations = self.task.activations(self.inputs[:1])
        workers = plan.threads if plan.device == "cpu" else 1
        self._single = [self.task.to() for _ in range(workers)] if plan.engine == "sequential" else []
        for task in self._single:
            task.vectorised = False
        if plan.device != "cpu":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = plan.precision == "tf32"

    def place(self, tensor: Tensor) -> Tensor:
        """On the engine's device, in its precision."""
        return tensor.to(self.plan.device, self.plan.dtype if tensor.is_floating_point() else None)

    @torch.no_grad()
    def train(self, jobs: Jobs, keep_params: bool = False) -> Trained:
        """Run every job to its end."""
        counts = jobs.samples.counts
        steps = jobs.work.bind(jobs.options).num_steps(counts)
        order = np.lexsort((np.arange(len(counts)), -counts, -steps))
        widest = int(counts.max())
        batch = widest if jobs.work.batching == "full" else min(jobs.work.batch_size, widest)
        run = self._vectorised if self.plan.engine == "vectorised" else self._sequential
        limit = self.plan.clients_a_call(self.task, jobs.work, batch * (self.sample_bytes + self.activations))
        parts = []
        for start in range(0, len(order), limit):
            rows = order[start : start + limit]
            parts.append(run(jobs.take(rows), steps[rows], keep_params))
        back = torch.as_tensor(np.argsort(order), device=self.plan.device)
        joined = parts[0] if len(parts) == 1 else tree_map(lambda *x: torch.cat(x), *parts)
        if not np.array_equal(order, np.arange(len(order))):
            joined = tree_map(lambda x: x[back], joined)
        return Trained(*joined)

    def _tensors(self, jobs: Jobs, steps: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Padded index [C, n], counts [C], a key for each step [C, S] and the mini-batches, on the device."""
        device, counts = self.plan.device, jobs.samples.counts
        index = torch.as_tensor(jobs.samples.padded(np.arange(len(counts)), int(counts.max())), device=device).long()
        counted = torch.as_tensor(counts, device=device)
        keys = torch.as_tensor(jobs.keys, device=device)
        batches = plan_batches(jobs.work, keys, counted, torch.as_tensor(steps, device=device)) if steps[0] else None
        step_keys = mix(keys[:, None] ^ torch.arange(1, int(steps[0]) + 1, device=device))
        return index, counted, step_keys, batches

    def _client(self, index: Tensor, weights: Tensor, count: Tensor, chunk: int) -> ClientData:
        return ClientData(self.inputs, self.targets, index, weights, count, chunk)

    def _vectorised(self, jobs: Jobs, steps: NDArray[np.int64], keep: bool) -> tuple[Named, Named, Named]:
        task, work, device, dtype = self.task, jobs.work, self.plan.device, self.plan.dtype
        index, counts, keys, batches = self._tensors(jobs, steps)
        weights = (torch.arange(index.shape[1], device=device) < counts[:, None]).to(dtype)
        scan_chunk = max(1, min(index.shape[1], work.batch_size))
        local = (index, weights, counts.to(dtype))
        options = {name: torch.as_tensor(values, device=device, dtype=dtype) for name, values in jobs.options.items()}
        received = jobs.models[torch.as_tensor(jobs.received, device=device)]

        def over_clients(function: Callable[..., Any]) -> Callable[..., Any]:
            return vmap(lambda option, *rest: function(work.bind(option), *rest))

        params, carry = over_clients(
            lambda w, r, s, d: w.start(task, r, s, self._client(*d, scan_chunk))
        )(options, received, jobs.state, local)
        finished = []
        active = len(steps)
        for number in range(int(steps[0])):
            still = int(np.searchsorted(-steps, -number))  # clients with more than `number` steps: a prefix
            if still < active:
                finished.append(tree_map(lambda x, n=still: x[n:], (params, carry)))
                params, carry, options = tree_map(lambda x, n=still: x[:n], (params, carry, options))
                active = still
            positions, batch_weights = batches.step(number, active, dtype)
            rows = index[:active].gather(1, positions).flatten()
            shape = (active, positions.shape[1])
            batch = (
                self.inputs.index_select(0, rows).unflatten(0, shape),
                self.targets.index_select(0, rows).unflatten(0, shape),
                batch_weights,
                positions,
                keys[:active, number],
            )
            params, carry = over_clients(
                lambda w, p, c, b, n=number: w.step(task, p, c, Batch(*b, number=n))
            )(options, params, carry, batch)
        if finished:
            params, carry = tree_map(lambda *x: torch.cat(x), (params, carry), *reversed(finished))
            options = {name: torch.as_tensor(values, device=device, dtype=dtype) for name, values in jobs.options.items()}
        payload, state = over_clients(
            lambda w, r, p, c, s, d: w.finish(task, r, p, c, s, self._client(*d, scan_chunk))
        )(options, received, params, carry, jobs.state, local)
        return payload, state, {"params": params} if keep else {}

    def _sequential(self, jobs: Jobs, steps: NDArray[np.int64], keep: bool) -> tuple[Named, Named, Named]:
        index, counts, keys, batches = self._tensors(jobs, steps)
        positions = index[:, None].expand(-1, batches.positions.shape[1], -1).gather(2, batches.positions) if batches else index
        sizes = batches.sizes.tolist() if batches else []
        workers = min(len(self._single), len(steps))
        rows: list[Any] = [None] * len(steps)

        def one(task: Task, i: int) -> Any:
            n = int(jobs.samples.counts[i])
            work = jobs.work.bind({name: float(values[i]) for name, values in jobs.options.items()})
            received = jobs.models[jobs.received[i]]
            state = {name: values[i] for name, values in jobs.state.items()}
            data = self._client(index[i, :n], torch.ones(n, dtype=self.plan.dtype, device=self.plan.device), counts[i], min(n, 1024))
            params, carry = work.start(task, received, state, data)
            for number in range(int(steps[i])):
                stored = number if positions.shape[1] > 1 else 0
                size = sizes[i][stored]
                pool = positions[i, stored, :size]
                batch = Batch(
                    self.inputs.index_select(0, pool),
                    self.targets.index_select(0, pool),
                    torch.full((size,), 1 / size, dtype=self.plan.dtype, device=self.plan.device),
                    batches.positions[i, stored, :size],
                    keys[i, number],
                    number,
                )
                params, carry = work.step(task, params, carry, batch)
            payload, state = work.finish(task, received, params, carry, state, data)
            return payload, state, {"params": params} if keep else {}

        def share(worker: int) -> None:
            with torch.no_grad():
                for i in range(worker, len(steps), workers):
                    rows[i] = one(self._single[worker], i)

        with threads(1), ThreadPoolExecutor(workers) as pool:
            list(pool.map(share, range(workers)))
        return tree_map(lambda *x: torch.stack(x), *rows)
