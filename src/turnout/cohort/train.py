"""Train a cohort: many jobs, possibly from different versions of the model, in as few calls as memory allows.

`vectorised` maps the one-client functions of a local work over stacked flat parameters. `sequential` runs them one
client after another, on several threads of one-thread kernels, so that neither the number of threads nor the company
changes a bit. Clients are sorted by their number of steps: at each step the still active ones are a prefix, and
nobody is padded with steps of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from turnout.cohort import plain_sgd
from turnout.cohort.batches import BatchPlan
from turnout.cohort.batches import plan as plan_batches
from turnout.cohort.graphs import WORTH_STEPS, Graphs
from turnout.cohort.memory import keep_freed_memory
from turnout.cohort.plan import Plan
from turnout.local import reports
from turnout.local.sgd import Batch, ClientData, LocalSGD, Named
from turnout.population.ragged import Ragged
from turnout.random import mix
from turnout.task import Task

GATHER_AT_ONCE = 64 << 20  # bytes
FiveTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


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


def _take(pool: Tensor, rows: Tensor) -> Tensor:
    """`[*rows.shape, ...]` those rows of the pool."""
    return pool.index_select(0, rows.flatten()).view(*rows.shape, *pool.shape[1:])


def _rows(tree: Any, rows: slice) -> Any:
    return tree_map(lambda tensor: tensor[rows], tree)


class Cohort:
    """The engine: a task, the clients' samples on its device, and a resolved plan."""

    def __init__(self, task: Task, inputs: Tensor, targets: Tensor, plan: Plan) -> None:
        self.plan = plan
        self.task = task.to(plan.device, plan.dtype)
        self.inputs = self.place(inputs)
        self.targets = self.place(targets)
        self.sample_bytes = self.inputs[:1].numel() * self.inputs.element_size()
        self.activations = self.task.activations(self.inputs[:1], self.targets[:1])
        workers = plan.threads if plan.device == "cpu" else 1
        self._single = [self.task.to() for _ in range(workers)] if plan.engine == "sequential" else []
        for task in self._single:
            task.vectorised = False
        if plan.device == "cpu":
            keep_freed_memory()
        else:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = plan.precision == "tf32"
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        self._graphs = Graphs(partial(plain_sgd.descend, self.task)) if plan.device != "cpu" else None

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
        shuffles = 24 * widest * (1 + int(steps.max()) * jobs.work.batch_size // max(1, int(counts.min())))
        sample = self.sample_bytes + self.activations
        limit = self.plan.clients_a_call(self.task, jobs.work, batch * sample + shuffles)
        parts = []
        for start in range(0, len(order), limit):
            rows = order[start : start + limit]
            parts.append(run(jobs.take(rows), steps[rows], keep_params))
        back = torch.as_tensor(np.argsort(order), device=self.plan.device)
        joined = parts[0] if len(parts) == 1 else tree_map(lambda *x: torch.cat(x), *parts)
        if not np.array_equal(order, np.arange(len(order))):
            joined = tree_map(lambda x: x[back], joined)
        return Trained(*joined)

    @torch.no_grad()
    def prepare(self, jobs: Jobs, state: Named) -> Named:
        """What each client's `prepare` makes of its state `[k, ...]` and its samples; rows as the jobs."""
        counts, device, work = jobs.samples.counts, self.plan.device, jobs.work
        index = torch.as_tensor(jobs.samples.padded(np.arange(len(counts)), int(counts.max())), device=device).long()
        weights = (torch.arange(index.shape[1], device=device) < torch.as_tensor(counts, device=device)[:, None]).to(
            self.plan.dtype
        )
        local = (index, weights, weights.sum(1), torch.as_tensor(jobs.keys, device=device))
        chunk = min(index.shape[1], work.batch_size)

        def one(received: Tensor, state: Named, local: Any) -> Named:
            return work.prepare(self.task, received, state, self._client(chunk, local))

        prepared: Named
        if len(jobs.models) == 1:  # layers that all share are not copied for each
            prepared = vmap(one, in_dims=(None, 0, 0))(jobs.models[0], state, local)
        else:
            prepared = vmap(one)(jobs.models[torch.as_tensor(jobs.received, device=device)], state, local)
        return prepared

    def _tensors(self, jobs: Jobs, steps: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor, BatchPlan | None]:
        """Padded index [C, n], counts [C], a key for each step [C, S] and the mini-batches, on the device."""
        device, counts = self.plan.device, jobs.samples.counts
        index = torch.as_tensor(
            jobs.samples.padded(np.arange(len(counts)), max(1, int(counts.max()))), device=device
        ).long()
        counted = torch.as_tensor(counts, device=device)
        keys = torch.as_tensor(jobs.keys, device=device)
        batches = plan_batches(jobs.work, keys, counts, steps) if steps[0] else None
        step_keys = mix(keys[:, None] ^ torch.arange(1, int(steps[0]) + 1, device=device))
        return index, counted, step_keys, batches

    def _client(self, chunk: int, local: tuple[Tensor, ...]) -> ClientData:
        """Of index, weights, count and key, and the scores if any."""
        index, weights, count, key, *scores = local
        return ClientData(self.inputs, self.targets, index, weights, count, key, chunk, *scores)

    def _scores(self, jobs: Jobs, received: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """`[C, n, ...]` the score of every sample; 0 for padding. Clients are sorted: in every chunk those that still
        have samples are in a prefix, and only that is looked at. A model that all have received is not copied for each.
        """
        shared = len(jobs.models) == 1
        score = vmap(partial(jobs.work.score, self.task), in_dims=(None if shared else 0, 0, 0))
        wide = 3 * jobs.work.batch_size  # without gradients there is room for that
        parts = []
        for start in range(0, index.shape[1], wide):
            active = int(np.flatnonzero(jobs.samples.counts > start).max(initial=0)) + 1
            rows = index[:active, start : start + wide]
            samples = (_take(pool, rows) for pool in (self.inputs, self.targets))
            values = score(jobs.models[0] if shared else received[:active], *samples)
            parts.append(torch.cat([values, values.new_zeros(len(index) - active, *values.shape[1:])]))
        scores = torch.cat(parts, 1)
        return torch.where(weights.view(*weights.shape, *(1,) * (scores.ndim - 2)) > 0, scores, 0.0)

    def _vectorised(self, jobs: Jobs, steps: NDArray[np.int64], keep: bool) -> tuple[Named, Named, Named]:
        task, work, device, dtype = self.task, jobs.work, self.plan.device, self.plan.dtype
        index, counts, keys, batches = self._tensors(jobs, steps)
        weights = (torch.arange(index.shape[1], device=device) < counts[:, None]).to(dtype)
        local: tuple[Tensor, ...] = (index, weights, counts.to(dtype), torch.as_tensor(jobs.keys, device=device))
        chunk = min(index.shape[1], work.batch_size)
        options = {name: torch.as_tensor(values, device=device, dtype=dtype) for name, values in jobs.options.items()}
        if len(jobs.models) == 1:
            received = jobs.models.expand(len(steps), -1)
        elif np.array_equal(jobs.received, np.arange(len(jobs.models))):  # everybody has a version of his own
            received = jobs.models
        else:
            received = jobs.models[torch.as_tensor(jobs.received, device=device)]

        def start(option: Named, received: Tensor, state: Named, local: Any) -> Any:
            return work.bind(option).start(task, received, state, self._client(chunk, local))

        def step(option: Named, params: Tensor, carry: Any, batch: FiveTensors, number: int) -> Any:
            return work.bind(option).step(task, params, carry, Batch(*batch, number))

        def finish(option: Named, received: Tensor, params: Tensor, carry: Any, state: Named, local: Any) -> Any:
            return work.bind(option).answer(task, received, params, carry, state, self._client(chunk, local))

        def report(received: Tensor, local: Any) -> Named:
            return reports.values(work.report, task, received, self._client(chunk, local))

        def mini_batches() -> Iterator[Batch]:
            if batches is None:
                return
            rows, batch_weights = batches.rows(index), batches.weights(dtype)
            at_once = rows.numel() * self.sample_bytes <= GATHER_AT_ONCE  # fewer launches, where it costs little memory
            gathered = [_take(pool, rows) for pool in (self.inputs, self.targets)] if at_once else []
            for number in range(int(steps[0])):
                active = int(np.searchsorted(-steps, -number))  # clients with more than `number` steps: a prefix
                place = slice(active), batches.stored(number)
                inputs, targets = (
                    (part[place] for part in gathered)
                    if at_once
                    else (_take(pool, rows[place]) for pool in (self.inputs, self.targets))
                )
                positions = batches.positions[place]
                yield Batch(inputs, targets, batch_weights[place], positions, keys[:active, number], number)

        def counted(carry: Any, batch: FiveTensors, number: int) -> Tensor:
            return work.counted(carry, Batch(*batch, number))

        def counted_batches(carry: Any) -> Iterator[Batch]:
            for batch in mini_batches():
                own = _rows(carry, slice(len(batch.inputs)))
                yield batch._replace(weights=vmap(counted, in_dims=(0, 0, None))(own, batch[:5], batch.number))

        plain, lr = plain_sgd.applies(task, work, options), options.get("lr", work.lr)
        together = int(steps[-1])  # steps of the whole cohort
        graphs = self._graphs if together >= WORTH_STEPS else None
        if plain and type(work).finish is LocalSGD.finish:
            layers = plain_sgd.run_cohort(task, received, lr, mini_batches(), graphs)
            delta = plain_sgd.difference(task, layers, received)
            reported = vmap(report)(received, local) if work.report else {}
            return {"delta": delta, **reported}, {}, {"params": received + delta} if keep else {}
        if type(work).score is not LocalSGD.score:
            local = (*local, self._scores(jobs, received, index, weights))
        params, carry = vmap(start)(options, received, jobs.state, local)
        if plain:
            params = task.vector(plain_sgd.run_cohort(task, params, lr, counted_batches(carry), graphs))
        ended: list[Any] = []  # parameters and carry of clients that have done all their steps
        running = options
        for batch in mini_batches() if not plain else ():
            active = len(batch.inputs)
            if active < len(params):
                ended.append(_rows((params, carry), slice(active, None)))
                params, carry, running = _rows((params, carry, running), slice(active))
            params, carry = vmap(step, in_dims=(0, 0, 0, 0, None))(running, params, carry, batch[:5], batch.number)
        if ended:
            params, carry = tree_map(lambda *parts: torch.cat(parts), (params, carry), *reversed(ended))
        payload, state = vmap(finish)(options, received, params, carry, jobs.state, local)
        return payload, state, {"params": params} if keep else {}

    def _sequential(self, jobs: Jobs, steps: NDArray[np.int64], keep: bool) -> tuple[Named, Named, Named]:
        index, counts, keys, batches = self._tensors(jobs, steps)
        rows = index if batches is None else batches.rows(index)
        sizes = [] if batches is None else batches.sizes.tolist()
        workers = min(len(self._single), len(steps))
        kept: list[Any] = [None] * len(steps)
        payload, new_state = (
            {name: self.inputs.new_empty((len(steps), *shape), dtype=self.plan.dtype) for name, shape in shapes.items()}
            for shapes in (jobs.work.sends(self.task), jobs.work.state_shapes(self.task))
        )

        def one(task: Task, i: int) -> tuple[Named, Named, Tensor]:
            n = int(jobs.samples.counts[i])
            work = jobs.work.bind({name: float(values[i]) for name, values in jobs.options.items()})
            received = jobs.models[jobs.received[i]]
            state = {name: values[i] for name, values in jobs.state.items()}
            ones = torch.ones(n, dtype=self.plan.dtype, device=self.plan.device)
            key = torch.as_tensor(jobs.keys[i], device=self.plan.device)
            data = self._client(min(n, 1024), (index[i, :n], ones, counts[i].to(self.plan.dtype), key))
            if type(work).score is not LocalSGD.score:
                data = replace(data, scores=data.scan(partial(work.score, task, received)))

            def mini_batches() -> Iterator[Batch]:
                for number in range(int(steps[i])):
                    assert batches is not None
                    stored = batches.stored(number)
                    size = sizes[i][stored]
                    inputs, targets = (p.index_select(0, rows[i, stored, :size]) for p in (self.inputs, self.targets))
                    if inputs.ndim == 4:  # images: the layout a CPU convolves fastest
                        inputs = inputs.contiguous(memory_format=torch.channels_last)
                    weights = inputs.new_full((size,), 1 / size, dtype=self.plan.dtype)
                    yield Batch(inputs, targets, weights, batches.positions[i, stored, :size], keys[i, number], number)

            params, carry = work.start(task, received, state, data)
            if plain_sgd.applies(task, work, ()):
                counted = (batch._replace(weights=work.counted(carry, batch)) for batch in mini_batches())
                params = plain_sgd.run_client(task, params, work.lr, counted)
            else:
                for batch in mini_batches():
                    params, carry = work.step(task, params, carry, batch)
            return *work.answer(task, received, params, carry, state, data), params

        def share(worker: int) -> None:
            with torch.no_grad():
                for i in range(worker, len(steps), workers):
                    *blocks, params = one(self._single[worker], i)
                    for block, named in zip((payload, new_state), blocks, strict=True):
                        for name, value in named.items():
                            block[name][i].copy_(value)
                    if keep:
                        kept[i] = params

        with threads(1), ThreadPoolExecutor(workers) as pool:
            list(pool.map(share, range(workers)))
        return payload, new_state, {"params": torch.stack(kept)} if keep else {}
