"""Loss and metrics of a model over clients: the pool's samples are scored once, then averaged client by client.

A measure that looks at other samples of a batch is that of each client's samples at once: the mean of what it says of
them together. What measures of a whole set need is gathered client by client, in a pass of its own, and let go when the
client is measured; `engine.memory_mib` bounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from turnout.clients.population import Population
from turnout.core import random, trees
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.core.statistics import OVER_CLIENTS, UNDEFINED, lower_is_better
from turnout.core.trees import Tree
from turnout.engine.batches import Jobs
from turnout.engine.plan import MIB
from turnout.engine.store import ClientStore
from turnout.engine.train import Cohort
from turnout.local import job
from turnout.local.answers import Served
from turnout.local.sgd import LocalSGD, Named
from turnout.task.norms import Tail
from turnout.task.sets import Part, Sets
from turnout.task.task import Task

FloatArray = NDArray[np.float64]


@torch.no_grad()
def sample_measures(
    task: Task, model: Tensor, inputs: Tree, targets: Tree, chunk: int, rows: Tensor | None = None
) -> dict[str, FloatArray]:
    """Measure every sample of a pool, or those of some rows, `[n]` by name, but for measures that look at other
    samples. Only `chunk` samples are gathered at a time."""
    separate = [name for name in ("loss", *task.metrics) if name not in task.coupled]
    count = trees.rows(inputs) if rows is None else len(rows)
    if not separate or not count:
        return {name: np.zeros(0) for name in separate}
    found = {name: np.empty(count) for name in separate}  # before the rest: what stays does not lie between what goes
    for start in range(0, count, chunk):
        some = slice(start, start + chunk)
        x, y = trees.batch(inputs, targets, some if rows is None else rows[some], task.initial)
        for name, values in task.measures(task.outputs(model, x), y, leave_out=task.coupled).items():
            found[name][some] = values.double().cpu().numpy()
    return found


def check_separate(task: Task) -> None:
    """Raise unless a sample has a loss of its own."""
    if "loss" in task.coupled:
        raise UserError(f"attack: it compares the losses of single samples, and {task.alone}")


@torch.no_grad()
def set_measures(task: Task, model: Tensor, inputs: Tree, targets: Tree) -> dict[str, float]:
    """Take the measures that look at other samples, of all these at once."""
    if not task.coupled:
        return {}
    x, y = trees.batch(inputs, targets, slice(None), task.initial)
    return _means(task, task.outputs(model, x), y, task.coupled)


@torch.no_grad()
def gathered(
    task: Task, sets: Sets, model: Tensor, inputs: Tree, targets: Tree, chunk: int, rows: Tensor | None = None
) -> list[Part]:
    """Gather what measures of a whole set need of these samples, or of some rows of them; only `chunk` samples are
    passed at a time, unless the model looks at the others."""
    count = trees.rows(inputs) if rows is None else len(rows)
    parts, chunk = [], count if task.coupled else chunk
    for start in range(0, count, chunk):
        some = slice(start, start + chunk)
        x, y = trees.batch(inputs, targets, some if rows is None else rows[some], task.initial)
        parts.append(sets.part(task.outputs(model, x), y))
    return parts


def _means(task: Task, outputs: Tree, targets: Tree, names: Collection[str]) -> dict[str, float]:
    leave_out = {"loss", *task.metrics}.difference(names)
    return {name: float(values.double().mean()) for name, values in task.measures(outputs, targets, leave_out).items()}


def client_means(values: FloatArray, index: Ragged) -> FloatArray:
    """Average `values[row]` over each row of the index; NaN for an empty row."""
    means = np.full(len(index), np.nan)
    full = np.flatnonzero(index.counts)
    if len(full):
        means[full] = np.add.reduceat(values[index.values], index.offsets[full]) / index.counts[full]
    return means


@dataclass(frozen=True)
class Personal:
    """How clients serve when each has its own predictor. With `samples` (the training samples of some clients) they
    adapt first: train `work` from the global model and what they keep, which is forgotten afterwards."""

    work: LocalSGD
    samples: Callable[[NDArray[np.int64]], Ragged] | None = None
    seed: int = 0

    @classmethod
    def of(
        cls,
        adapted: LocalSGD | None,
        kept: LocalSGD | None,
        population: Population,
        version: int,
        now: float,
        seed: int,
        tail: Tail | None = None,
        batch_size: int = 32,
    ) -> Personal | None:
        """Choose how clients serve that adapt by one work before, or else predict by another from what they keep; None:
        they serve the global model. `now` is in seconds: they adapt on the samples they have then. Those that have
        normalisation layers of their own, the `tail` of a model, serve by them."""

        def samples(ids: NDArray[np.int64]) -> Ragged:
            return population.samples(ids, np.full(len(ids), now))

        keeps, passes = (False, False) if tail is None else (tail.keeps, tail.choice.own_pass)
        if passes and (kept is not None or (adapted is not None and not keeps)):
            raise UserError(
                "task.batchnorm: clients of this algorithm serve models of their own, and a pass over their inputs "
                "finds the statistics of the global one; take averaged, or local_statistics with unseen average"
            )
        if adapted is not None:
            return cls(adapted.at(version), samples, seed)
        if (passes or keeps) and kept is None:
            return cls(Served(0.0, batch_size=batch_size), samples if passes else None, seed)
        return None if kept is None else cls(kept)


@dataclass(frozen=True)
class Evaluator:
    """Measures over one split (train or test) of a fixed set of clients."""

    cohort: Cohort
    clients: NDArray[np.int64]
    index: Ragged  # one row for each of `clients`
    instead: Sets | None = None  # of whole sets, what is measured instead of what the task says

    def some(self, which: NDArray[np.bool_]) -> Evaluator:
        """Keep some of the clients."""
        return replace(self, clients=self.clients[which], index=self.index.rows(np.flatnonzero(which)))

    @property
    def sets(self) -> Sets:
        """Give the measures of a whole set."""
        return self.cohort.task.sets if self.instead is None else self.instead

    def global_model(self, model: Tensor) -> dict[str, FloatArray]:
        """Measure every client as served by `model`: `[len(clients)]` by measure."""
        rows, local = self._used
        cohort, task = self.cohort, self.cohort.task

        def together(_: int, rows: Tensor) -> dict[str, float]:
            return set_measures(task, model, *cohort.samples(rows))

        with cohort.all_threads():
            scored = sample_measures(task, model, *cohort.stored, self.chunk, rows)
            found = {name: client_means(values, local) for name, values in scored.items()}
            found |= self._by_client(task.coupled, together)
            found |= self._by_client(self.sets.names, lambda _, rows: self.sets.measured(self._gathered(model, rows)))
        return self._in_order(found)

    def _in_order(self, found: dict[str, FloatArray]) -> dict[str, FloatArray]:
        """Put measures in the order in which they were asked for."""
        return {name: found[name] for name in dict.fromkeys((*self.cohort.task.measured, *found)) if name in found}

    def _gathered(self, model: Tensor, rows: Tensor) -> list[Part]:
        """Gather what measures of a whole set need of one client's rows of the pool."""
        self._check_room(len(rows))
        return gathered(self.cohort.task, self.sets, model, *self.cohort.stored, self.chunk, rows)

    def _check_room(self, samples: int) -> None:
        """Raise where measures of a whole set need more of so many samples than there is room for."""
        self.sets.check_room(samples, self.cohort.plan.memory_mib)

    def _by_client(
        self, names: Collection[str], measured: Callable[[int, Tensor], dict[str, float]]
    ) -> dict[str, FloatArray]:
        """Measure each client with samples by itself, given its rows of the pool: `[len(clients)]` by measure, NaN for
        the others."""
        values = {name: np.full(len(self.clients), np.nan) for name in names}
        for i in np.flatnonzero(self.index.counts).tolist() if names else ():
            rows = torch.as_tensor(self.index.row(i), device=self.cohort.plan.device).long()
            for name, value in measured(i, rows).items():
                values[name][i] = value
        return values

    @cached_property
    def _used(self) -> tuple[Tensor | None, Ragged]:
        """Find the rows of the pool that these clients hold (None: all of them), and index into those."""
        used = np.unique(self.index.values)
        if len(used) == trees.rows(self.cohort.stored[0]):
            return None, self.index
        rows = torch.as_tensor(used, device=self.cohort.plan.device).long()
        return rows, Ragged(self.index.offsets, np.searchsorted(used, self.index.values))

    @torch.no_grad()
    def personal_models(self, personal: Personal, model: Tensor, store: ClientStore) -> dict[str, FloatArray]:
        """Measure every client as served by its own predictor: `[len(clients)]` by measure."""
        work, cohort = personal.work, self.cohort
        if cohort.task.alone or cohort.task.coupled:
            names = (*cohort.task.measured, *self.sets.names)
            return self._in_order(self._by_client(names, partial(self._served, personal, model, store)))
        sums = {name: np.zeros(len(self.clients)) for name in ("loss", *cohort.task.metrics)}
        width = max(1, min(int(self.index.counts.max(initial=1)), 64))
        prepared = self._prepared_bytes(personal)
        longest = int(self.index.counts.max(initial=0))
        self._check_room(longest)
        prepared += longest * self.sets.sample_bytes
        each = width * (cohort.sample_bytes + cohort.activations) + prepared
        measured = cohort.footprint.scoring(width) + width * cohort.sample_bytes + prepared
        limit = cohort.plan.clients_a_call(cohort.task, work, each, measured)
        order = np.argsort(-self.index.counts, kind="stable")
        whole = {name: np.full(len(self.clients), np.nan) for name in self.sets.names}
        for start in range(0, len(order), limit):
            rows = order[start : start + limit]
            picked = self._prepared(personal, model, store, self.clients[rows])
            counts = self.index.counts[rows]
            longest = int(counts.max())
            padded = torch.as_tensor(self.index.rows(rows).padded(longest), device=cohort.plan.device).long()
            parts: list[list[Part]] = [[] for _ in rows]
            for begin in range(0, longest, width):
                part = padded[:, begin : begin + width]
                inputs, targets = cohort.samples(part)
                with cohort.on_device():
                    outputs = vmap(lambda s, x: job.predict(work, cohort.task, model, s, x))(picked, inputs)
                real = np.arange(begin, begin + part.shape[1]) < counts[:, None]
                for name, values in vmap(cohort.task.measures)(outputs, targets).items():
                    sums[name][rows] += np.where(real, values.double().cpu().numpy(), 0).sum(1)
                for place, count in enumerate(real.sum(1).tolist() if self.sets else ()):
                    both = (trees.at(tree, (place, slice(count))) for tree in (outputs, targets))
                    parts[place] += [self.sets.part(*both)] if count else []
            for row, own in zip(rows.tolist(), parts, strict=True):
                for name, value in self.sets.measured(own).items() if own else ():
                    whole[name][row] = value
        with np.errstate(invalid="ignore"):
            means = {
                name: total / np.where(self.index.counts, self.index.counts, np.nan) for name, total in sums.items()
            }
        return self._in_order(means | whole)

    @torch.no_grad()
    def models(self, personal: Personal, model: Tensor, store: ClientStore) -> Tensor:
        """Give `[len(clients), P]` the model that each client serves."""
        work, cohort = personal.work, self.cohort
        limit = max(1, cohort.plan.clients_a_call(cohort.task, work, self._prepared_bytes(personal)))
        found = []
        for start in range(0, len(self.clients), limit):
            clients = self.clients[start : start + limit]
            picked = self._prepared(personal, model, store, clients)
            for row in range(len(clients)):
                state = {name: values[row] for name, values in picked.items()}
                found.append(job.serves(work, cohort.task, model, state))
        return torch.stack(found)

    def _served(
        self, personal: Personal, model: Tensor, store: ClientStore, client: int, rows: Tensor
    ) -> dict[str, float]:
        """Take every measure of one client's samples, all at once."""
        cohort, task = self.cohort, self.cohort.task
        prepared = self._prepared(personal, model, store, self.clients[client : client + 1])
        state = {name: values[0] for name, values in prepared.items()}
        inputs, targets = cohort.samples(rows)
        outputs = job.predict(personal.work, task, model, state, inputs)
        self._check_room(len(rows))
        found = self.sets.measured([self.sets.part(outputs, targets)]) if self.sets else {}
        return _means(task, outputs, targets, ("loss", *task.metrics)) | found

    def _prepared_bytes(self, personal: Personal) -> int:
        """Bound the bytes that a client's preparation takes."""
        if personal.samples is None:
            return 0
        longest = int(personal.samples(self.clients).counts.max(initial=0))
        return personal.work.prepared_numbers(self.cohort.task, longest) * self.cohort.plan.dtype.itemsize

    def _prepared(self, personal: Personal, model: Tensor, store: ClientStore, clients: NDArray[np.int64]) -> Named:
        """Make what each client predicts from, `[len(clients), ...]`."""
        work, cohort, samples = personal.work, self.cohort, personal.samples
        state = store.get(work.trained_shapes(cohort.task), clients)
        if samples is None:
            return state
        own = samples(clients)
        key = random.key(personal.seed, "adaptation", clients)
        jobs = Jobs(work, key, model[None], np.zeros(len(clients), np.int64), own, {}, state)
        return cohort.prepare(jobs, state | cohort.train(jobs).state)

    @property
    def chunk(self) -> int:
        """Count the samples that are scored in one go: as many as outputs of layers, and what is measured of a pass,
        leave room for."""
        cohort = self.cohort
        room, each = min(cohort.plan.memory_mib, 256) * MIB, cohort.sample_bytes + cohort.activations
        if not cohort.activations:  # an app computes elsewhere
            return max(1, room // max(1, each))
        with cohort.on_device():
            fixed, measured = cohort.footprint.passes
        return max(1, min(room // each, (room - fixed) // max(1, measured + cohort.sample_bytes)))


def evaluators(cohort: Cohort, population: Population, clients: NDArray[np.int64], train: bool) -> dict[str, Evaluator]:
    """Prepare the evaluation of some clients, by split: on their training samples if `train` or if there is nothing
    else, on samples for validation and on test samples."""
    splits = {"train": population.train} if train or population.test is None else {}
    if population.validation is not None:
        splits["validation"] = population.validation
    if population.test is not None:
        splits["test"] = population.test
    return {name: Evaluator(cohort, clients, index.rows(clients)) for name, index in splits.items()}


def distribution(
    prefix: str,
    measures: dict[str, FloatArray],
    importance: FloatArray,
    counts: NDArray[np.int64],
    of_sets: Collection[str] = (),
) -> dict[str, float]:
    """Summarise measures of clients: the weighted mean, and over clients the mean, the standard deviation and the worst
    10th percentile (of T clients the (T / 10)-th worst, at least the worst). Clients without samples in the split do
    not count. Those `of_sets` are not defined for every client: who has NaN is left out, and counted."""
    known = (counts > 0) & (importance > 0)
    if not known.any():
        return {}
    weights = importance[known]
    summary: dict[str, float] = {}
    for name, values in measures.items():
        seen, counted, down = values[known], weights, name == "loss"
        if name in of_sets:
            defined, down = ~np.isnan(seen), lower_is_better(name)
            seen, counted = seen[defined], weights[defined]
            summary |= {} if defined.all() else {f"{prefix}_{name}{UNDEFINED}": float((~defined).sum())}
        if not len(seen) or not np.isfinite(seen).all():  # diverged, or defined for nobody: no spread to speak of
            summary |= {f"{prefix}_{name}{part}": float("nan") for part in OVER_CLIENTS}
            continue
        summary[f"{prefix}_{name}"] = float(np.average(seen, weights=counted))
        summary[f"{prefix}_{name}_mean"] = float(seen.mean())
        summary[f"{prefix}_{name}_std"] = float(seen.std())
        worst_first = np.sort(seen)[:: -1 if down else 1]
        summary[f"{prefix}_{name}_worst_decile"] = float(worst_first[max(0, len(seen) // 10 - 1)])
    return summary
