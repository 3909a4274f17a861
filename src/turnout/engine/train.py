"""Train a cohort: many jobs, possibly from different versions of the model, in as few calls as memory allows.

`vectorised` maps the one-client functions of a local work over stacked flat parameters. `sequential` runs them one
client after another, on several threads of one-thread kernels, so that the number of threads changes no bit. Work that
is nothing but plain SGD goes to `plain_sgd`. Clients are sorted by their number of steps: at each step the still active
ones are a prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from turnout.core import trees
from turnout.core.memory import keep_freed_memory, room_like
from turnout.core.threads import threads
from turnout.core.trees import Tree
from turnout.engine import paths, plain_sgd, trial
from turnout.engine.alone import train_alone
from turnout.engine.batches import Drawn, Extent, Jobs, Size, Trained, draw, packed
from turnout.engine.chain import Chain
from turnout.engine.footprint import Footprint
from turnout.engine.graphs import GraphedSGD
from turnout.engine.paths import THREADS, Path
from turnout.engine.plain_sgd import CLIENTS_A_BLOCK, Course, PlainSGD, some
from turnout.engine.plan import Plan, computing_on, stays
from turnout.engine.python_path import Caller
from turnout.local import job, reports
from turnout.local.python_work import PythonWork
from turnout.local.sgd import Batch, ClientData, LocalSGD, Named
from turnout.task.task import Task

FiveParts = tuple[Tree, Tree, Tensor, Tensor, Tensor]
_LENGTHS = {"steps", "epochs"}  # options that say how much a client does


def _rows(tree: Any, rows: slice) -> Any:
    return tree_map(lambda tensor: tensor[rows], tree)


class Cohort:
    """Trains the clients of a task: holds it, their samples on its device, and a resolved plan."""

    def __init__(self, task: Task, inputs: Tree, targets: Tree, plan: Plan) -> None:
        self.plan = plan
        self.task = task.to(plan.device, plan.dtype)
        self.task.bfloat16 = plan.precision == "bf16"
        self.stored = self.pool(inputs), self.pool(targets)
        self._sent = ""  # why samples are sent to the device batch by batch; "": they are there
        if {leaf.device for leaf in trees.leaves(self.stored)} != {self.task.initial.device}:
            self._sent = "; there are too many samples for the device: they are sent batch by batch, without graphs"
            self.plan = plan = replace(plan, graphs=False)
        self.sample_bytes = trees.row_bytes(self.stored[0], plan.dtype)
        self._may_attend = True
        with computing_on(self._precisely, may_attend=True):
            self.activations = self.task.examine(*self.stored)
        self.footprint = Footprint(self.task, *self.stored)
        self.falls_back = paths.falls_back(self.task, plan)
        engine = "sequential" if paths.reason_apart(self.task, plan) else "vectorised"
        self.plan = plan = replace(plan, engine=engine)
        workers = plan.threads if plan.device == "cpu" else 1
        self._single = [self.task.to() for _ in range(workers)] if plan.engine == "sequential" else []
        for task in self._single:
            task.vectorised = False
        if plan.device == "cpu":
            keep_freed_memory()
        with self.on_device():
            self.trial = trial.convolution(self.task, *self.stored, plan)
        self.plan = plan = replace(plan, convolution=self.trial.form)
        self._last_size: tuple[LocalSGD, tuple[Any, ...], tuple[Size, Path]] | None = None
        trees_given = not all(isinstance(pool, Tensor) for pool in self.stored)
        self._chain = "samples are trees of tensors" if trees_given else paths.chain_or_reason(self.task, plan)
        kind, chain = PlainSGD if plan.device == "cpu" or self._sent else GraphedSGD, self._chain
        self._plain = kind(self.task, *self.stored, plan, chain if isinstance(chain, Chain) else None)
        self.samples = self._plain.samples
        self._caller = Caller(self.task, *self.stored, plan)
        self._may_attend = self._plain.chain is None
        if self._plain.chain is not None:
            self.activations += self._plain.chain.window_numbers(self.task) * self.task.initial.element_size()

    @property
    def _precisely(self) -> Plan:
        """Give the plan without roundings that would look like differences between clients."""
        return self.plan if self.plan.dtype == torch.float64 else replace(self.plan, precision="float32")

    def on_device(self) -> AbstractContextManager[Any]:
        """Compute on the plan's device, as precisely as the plan says."""
        return computing_on(self.plan, self._may_attend)

    def pool(self, tree: Tree) -> Tree:
        """Place samples where the engine finds them."""
        return tree if stays(self.plan, tree) else self.place(tree)

    def place(self, tree: Tree) -> Tree:
        """Place tensors on the engine's device, in its precision."""
        device, dtype = self.plan.device, self.plan.dtype
        return trees.map_leaves(lambda leaf: leaf.to(device, dtype if leaf.is_floating_point() else None), tree)

    @property
    def inputs(self) -> Tree:
        """Give all inputs in the engine's numbers: a copy, where they are stored in others."""
        return trees.batch(self.stored[0], (), slice(None), self.task.initial)[0]

    @property
    def targets(self) -> Tree:
        """Give all targets, likewise."""
        return trees.batch((), self.stored[1], slice(None), self.task.initial)[1]

    @property
    def works_ahead(self) -> bool:
        """Say whether threads of their own train clients while the server goes on."""
        return self._plain.by_blocks and self.plan.engine == "sequential"

    def block(self, jobs: Jobs) -> int:
        """Count the jobs that are best carried out together, where nobody waits for the last."""
        by_blocks = self.works_ahead and self.path(jobs.work, jobs.options).whole
        return CLIENTS_A_BLOCK if by_blocks else len(jobs.keys)

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Give all threads to what follows, once training under way has finished."""
        self._plain.background.finish()
        with threads(self.plan.threads):
            yield

    def close(self) -> None:
        """Call off training that no thread has begun."""
        self._plain.background.call_off()

    @torch.no_grad()
    def train(self, jobs: Jobs, keep_params: bool = False, may_be_late: bool = False) -> Trained:
        """Train every job to its end. With `may_be_late`, for a caller with one thread, rows can still be under way
        then, and in another order."""
        may_be_late &= self.works_ahead and torch.get_num_threads() == 1
        with self.on_device():
            return self._train(jobs, keep_params, may_be_late)

    def _train(self, jobs: Jobs, keep_params: bool, may_be_late: bool) -> Trained:
        size, path = self._size(jobs)
        if jobs.work.schedules and jobs.work.paces:
            jobs = replace(jobs, options=jobs.options | {"job_steps": size.steps.astype(np.float64)})
        if path.name == THREADS and not isinstance(jobs.work, PythonWork):
            return Trained(*train_alone(self, jobs, size, keep_params))
        run = self._steps_alone if path.whole else self._vectorised
        if isinstance(jobs.work, PythonWork):
            run = self._caller.train
        clients = np.arange(len(size.steps))
        order = clients if size.even else np.lexsort((clients, -jobs.samples.counts, -size.steps))
        in_order = size.even or np.array_equal(order, clients)
        by_blocks = path.whole and self._plain.by_blocks and size.limit >= CLIENTS_A_BLOCK and not jobs.work.report
        a_call = len(order) if by_blocks else size.limit  # blocks keep within the limit themselves
        if may_be_late and by_blocks and size.steps.any() and not keep_params:
            if not in_order:
                jobs, size = jobs.take(order), size._replace(steps=size.steps[order])
            return self._begin(jobs, size, None if in_order else order)
        if in_order and len(order) <= a_call:
            return Trained(*run(jobs, size, keep_params))
        parts = []
        for start in range(0, len(order), a_call):
            rows = order[start : start + a_call]
            parts.append(run(jobs.take(rows), size._replace(steps=size.steps[rows]), keep_params))
        joined = parts[0] if len(parts) == 1 else tree_map(lambda *x: torch.cat(x), *parts)
        if not in_order:
            back = torch.as_tensor(np.argsort(order), device=self.plan.device)
            joined = tree_map(lambda x: x[back], joined)
        return Trained(*joined)

    def _begin(self, jobs: Jobs, size: Size, order: NDArray[np.int64] | None) -> Trained:
        """Begin to train blocks of clients. Rows of a block that goes ahead lie apart, so that memory is in pieces of
        one size and each can be let go by itself."""
        clients, model = len(size.steps), jobs.models[0]
        if jobs.ahead and clients <= CLIENTS_A_BLOCK:
            apart = [room_like(model) for _ in range(clients)]
            return Trained({}, {}, {}, self._plain.begin_training(jobs, size, apart), order, apart)
        delta = model.new_empty(clients, len(model))
        return Trained({"delta": delta}, {}, {}, self._plain.begin_training(jobs, size, delta), order)

    def _size(self, jobs: Jobs) -> tuple[Size, Path]:
        """Measure what there is to do, and choose how; the answer is remembered where it is the same for all, as in
        nearly every synchronous round."""
        counts, work = jobs.samples.counts, jobs.work
        fewest, widest = int(counts.min()), int(counts.max())
        even = fewest == widest and _LENGTHS.isdisjoint(jobs.options)
        known, name = self._last_size, (fewest, widest, *jobs.options)
        if even and known is not None and known[0] is work and known[1] == name:
            size, path = known[2]
            if len(size.steps) != len(counts):  # as many steps each, of more clients or fewer
                size = size._replace(steps=np.full(len(counts), size.steps[0]))
            return size, path
        steps = work.bind(jobs.options).num_steps(counts)
        batch = widest if work.batching == "full" else min(work.batch_size, widest)
        shuffles = 24 * widest * (1 + int(steps.max()) * work.batch_size // max(1, fewest))
        path, sample = self.path(work, jobs.options), self.sample_bytes + self.activations
        apart = path.name == paths.CHAIN or not self.activations  # what a chain holds is known, an app is elsewhere
        measured = 0 if apart else self.footprint.training(batch) + batch * self.sample_bytes + shuffles
        limit = self.plan.clients_a_call(self.task, work, batch * sample + shuffles, measured)
        found = Size(steps, even, limit), path
        self._last_size = work, name, found
        return found

    def path(self, work: LocalSGD, options: Collection[str], plan: Plan | None = None) -> Path:
        """Choose the path of a work of which these options differ between clients, by this plan or that of a run."""
        path = paths.select_path(self.task, work, options, plan or self.plan, self._chain)
        return path._replace(why=path.why + self._sent)

    def _steps_alone(self, jobs: Jobs, size: Size, keep: bool) -> tuple[Named, Named, Named]:
        steps = size.steps
        if steps[0]:
            delta = self._plain.train(jobs, size)
        else:
            delta = self.task.initial.new_zeros(len(steps), self.task.size)
        payload = {"delta": delta}
        if not jobs.work.report and not keep:
            return payload, {}, {}
        received = self._plain.received(jobs.models, jobs.received)
        if jobs.work.report:
            drawn = self._drawn(jobs, steps)
            chunk, local = self._local(jobs, drawn.indices, drawn.counts)
            payload |= vmap(
                lambda model, own: reports.values(jobs.work.report, self.task, model, self._client(chunk, own))
            )(received, local)
        return payload, {}, {"params": received + delta} if keep else {}

    @torch.no_grad()
    def prepare(self, jobs: Jobs, state: Named) -> Named:
        """Have each client's `prepare` make of its state `[k, ...]` and its samples what it predicts from; rows as the
        jobs."""
        counts = torch.as_tensor(jobs.samples.counts, device=self.plan.device)
        index = torch.as_tensor(jobs.samples.padded(int(jobs.samples.counts.max())), device=self.plan.device).long()
        chunk, local = self._local(jobs, index, counts)

        def one(received: Tensor, state: Named, local: tuple[Tensor, ...]) -> Named:
            return job.prepare(jobs.work, self.task, received, state, self._client(chunk, local))

        prepared: Named
        with self.on_device():
            if self.task.alone:
                all_of = PlainSGD.received(jobs.models, jobs.received), state, local
                rows = (tree_map(lambda values, i=i: values[i], all_of) for i in range(len(index)))
                prepared = tree_map(lambda *parts: torch.stack(parts), *(one(*row) for row in rows))
            elif len(jobs.models) == 1:  # layers that all share are not copied for each
                prepared = vmap(one, in_dims=(None, 0, 0))(jobs.models[0], state, local)
            else:
                prepared = vmap(one)(PlainSGD.received(jobs.models, jobs.received), state, local)
        return prepared

    def _scores(self, jobs: Jobs, received: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Score every sample of C clients by the models received `[C, P]`: `[C, n, ...]`, 0 for padding.

        `index` `[C, n]` are rows of the pool, `weights` `[C, n]` are 0 for padding. Clients are sorted: in every chunk
        the ones that still have samples are a prefix, and only that is scored. A model that all have received is not
        copied.
        """
        shared = len(jobs.models) == 1
        score = vmap(partial(jobs.work.score, self.task), in_dims=(None if shared else 0, 0, 0))
        wide = 3 * jobs.work.batch_size  # without gradients there is room for that
        parts = []
        for start in range(0, index.shape[1], wide):
            active = int(np.flatnonzero(jobs.samples.counts > start).max(initial=0)) + 1
            rows = index[:active, start : start + wide]
            values = score(jobs.models[0] if shared else received[:active], *self.samples(rows))
            parts.append(torch.cat([values, values.new_zeros(len(index) - active, *values.shape[1:])]))
        found = torch.cat(parts, 1)
        return torch.where(weights.view(*weights.shape, *(1,) * (found.ndim - 2)) > 0, found, 0.0)

    def _local(self, jobs: Jobs, index: Tensor, counts: Tensor) -> tuple[int, tuple[Tensor, ...]]:
        """Collect what `_client` needs of a cohort with samples `index` `[C, n]`: the samples of a chunk, and index,
        weights, counts and keys."""
        weights = (torch.arange(index.shape[1], device=index.device) < counts[:, None]).to(self.plan.dtype)
        keys = torch.as_tensor(jobs.keys, device=index.device)
        chunk = self._chunk(index.shape[1], jobs.work.batch_size)
        return chunk, (index, weights, counts.to(self.plan.dtype), keys)

    def _chunk(self, samples: int, most: int) -> int:
        """Count the samples of a client that are looked at in one go: all, where samples are coupled."""
        return samples if "loss" in self.task.coupled else min(samples, most)

    def _drawn(self, jobs: Jobs, steps: NDArray[np.int64]) -> Drawn:
        """Draw what the jobs see, on the device."""
        extent = Extent.of(jobs.work, jobs.samples.counts, steps)
        return draw(jobs.work, self.place(packed(jobs, steps, extent.samples)), extent)

    def _client(self, chunk: int, local: tuple[Tensor, ...]) -> ClientData:
        """Make one client's data of index, weights, count and key, and of scores if there are any."""
        index, weights, count, key, *scores = local
        return ClientData(*self.stored, index, weights, count, key, chunk, *scores)

    def _vectorised(self, jobs: Jobs, size: Size, keep: bool) -> tuple[Named, Named, Named]:
        steps = size.steps
        task, work, device, dtype = self.task, jobs.work, self.plan.device, self.plan.dtype
        drawn = self._drawn(jobs, steps)
        chunk, local = self._local(jobs, drawn.indices, drawn.counts)
        options = {name: torch.as_tensor(values, device=device, dtype=dtype) for name, values in jobs.options.items()}
        received = self._plain.received(jobs.models, jobs.received)

        def start(option: Named, received: Tensor, state: Named, local: Any) -> Any:
            return job.begin(work.bind(option), task, received, state, self._client(chunk, local))

        def step(option: Named, params: Tensor, carry: Any, batch: FiveParts, number: int) -> Any:
            return job.advance(work.bind(option), task, params, carry, Batch(*batch, number))

        def finish(option: Named, received: Tensor, params: Tensor, carry: Any, state: Named, local: Any) -> Any:
            return job.conclude(work.bind(option), task, received, params, carry, state, self._client(chunk, local))

        def mini_batches() -> Iterator[Batch]:
            rows, batch_weights = drawn.rows(), drawn.weights(dtype)
            # fewer launches, where it costs little memory
            at_once = self._plain.at_once(rows)
            gathered = [*self.samples(rows)] if at_once else []
            for number in range(int(steps[0])):
                active = int(np.searchsorted(-steps, -number))  # clients with more than `number` steps: a prefix
                place = slice(active), drawn.stored(number)
                inputs, targets = (some(part, place) for part in gathered) if at_once else self.samples(rows[place])
                positions = drawn.positions[place]
                yield Batch(inputs, targets, batch_weights[place], positions, drawn.keys[:active, number], number)

        if type(work).score is not LocalSGD.score:
            local = (*local, self._scores(jobs, received, drawn.indices, local[1]))
        params, carry = vmap(start)(options, received, jobs.state, local)
        plain = plain_sgd.applies(task, work, options)
        if plain and steps[0]:
            weights = vmap(work.counted)(carry, drawn.weights(dtype), drawn.positions)
            course = Course(drawn.rows(), weights, drawn.keys, steps)
            params = params + self._plain.run(params, np.arange(len(steps)), self._plain.rate(jobs.lr), course)
        ended: list[Any] = []  # parameters and carry of clients that have done all their steps
        running = options
        for batch in mini_batches() if not plain else ():
            active = len(batch.weights)
            if active < len(params):
                ended.append(_rows((params, carry), slice(active, None)))
                params, carry, running = _rows((params, carry, running), slice(active))
            params, carry = vmap(step, in_dims=(0, 0, 0, 0, None))(running, params, carry, batch[:5], batch.number)
        if ended:
            params, carry = tree_map(lambda *parts: torch.cat(parts), (params, carry), *reversed(ended))
        payload, state = vmap(finish)(options, received, params, carry, jobs.state, local)
        return payload, state, {"params": params} if keep else {}
