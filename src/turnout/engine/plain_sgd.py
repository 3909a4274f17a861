"""The steps of plain local SGD, for a whole cohort, without the copies the general form needs.

Same mathematics as `LocalSGD.step`, layer by layer and in place. Where the model is a `Chain` its backward pass is
written out; else gradients are those of automatic differentiation. On a CPU, where there are convolutions, blocks of
clients are spread over threads of one-thread kernels; on CUDA the steps are replayed from graphs (`graphs.py`). The
contract suite proves all of it equal to the general form and to a plain loop. The components of a mixture take the same
steps one after another, each by what the samples count for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from turnout.core import trees
from turnout.core.threads import threads
from turnout.core.trees import Tree
from turnout.engine import gradients
from turnout.engine.background import Background, Late
from turnout.engine.batches import Drawn, Extent, Jobs, Size, Vectors, draw, packed
from turnout.engine.chain import Chain
from turnout.engine.convolutions import HAS_TRITON
from turnout.engine.layers import Factored
from turnout.engine.plan import MIB, Plan
from turnout.local.optimisers import SGD
from turnout.local.sgd import Batch, LocalSGD, Named
from turnout.task.dropout import KeyedDropout
from turnout.task.task import Task

PARTS = ("start", "start_momentum", "counted", "step", "gradient", "objective", "descend", "finish", "answer")
GATHER_AT_ONCE = 64 << 20  # bytes
ENOUGH = 8  # images of a batch for which kernels that are laid out otherwise than images are worth another layout
CLIENTS_A_BLOCK = 8  # at most: what a thread has at a time, where there are convolutions


def applies(task: Task, work: LocalSGD, own_options: Collection[str]) -> bool:
    """Say whether this work is nothing but steps `params - lr * gradient of the batch loss` from the model received: it
    is `plain_for` such a task, has every part from a class that says so, and no modifier that acts in training."""
    if work.active or work.paces or type(work.optimiser) is not SGD or task.tail is not None:
        return False
    extras = {"momentum": work.momentum, "weight_decay": work.weight_decay, "clip_norm": work.clip_norm}
    kind: Any = type(work)
    ordinary = work.plain_for is type(task) and _has_plain_parts(kind)
    return ordinary and not any(value or name in own_options for name, value in extras.items())


@cache
def _has_plain_parts(work: type[object]) -> bool:
    makers = (next(kind for kind in work.__mro__ if name in vars(kind)) for name in PARTS)
    return all("plain_for" in vars(maker) for maker in makers)


class Course(NamedTuple):
    """The mini-batches of a cohort, clients sorted by their number of steps. One stored step serves them all."""

    rows: Tensor  # [C, S or 1, B] of the pool
    weights: Tensor  # [C, S or 1, B, ...] what each sample counts
    keys: Tensor  # [C, S]
    steps: NDArray[np.int64]  # [C], descending

    @classmethod
    def of(cls, drawn: Drawn, steps: NDArray[np.int64], dtype: torch.dtype) -> Course:
        return cls(drawn.rows(), drawn.weights(dtype), drawn.keys, steps)

    def some(self, clients: slice) -> Course:
        return Course(self.rows[clients], self.weights[clients], self.keys[clients], self.steps[clients])

    def padded(self, clients: int) -> Course:
        """Add clients up to so many; the new ones count nothing."""
        more = clients - len(self.steps)
        if not more:
            return self
        rows, weights = (F.pad(part, (*(0, 0) * (part.ndim - 1), 0, more)) for part in (self.rows, self.weights))
        return Course(rows, weights, F.pad(self.keys, (0, 0, 0, more)), np.pad(self.steps, (0, more)))

    def piece(self, first: int, count: int, clients: int) -> Course:
        """Take `count` steps of the first so many clients, each stored; clients that are done count nothing."""
        steps = torch.arange(first, first + count, device=self.rows.device)
        rows, weights = (
            part[:clients, first : first + count]
            if part.shape[1] > 1
            else part[:clients].expand(-1, count, *part.shape[2:])
            for part in (self.rows, self.weights)
        )
        own = self.steps[:clients]
        if own.min() < first + count:
            goes_on = steps < torch.as_tensor(own, device=steps.device)[:, None]
            weights = torch.where(goes_on.view(*goes_on.shape, *(1,) * (weights.ndim - 2)), weights, 0)
        return Course(rows, weights, self.keys[:clients, first : first + count], own)

    def active(self, number: int) -> int:
        """Count the clients, the first ones, that have more than `number` steps."""
        return int(np.searchsorted(-self.steps, -number))


@dataclass
class State:
    """What the steps move: `[C, ...]` parameters by name, and layers that are never formed by their prefix."""

    layers: Named
    factored: dict[str, Factored]

    def some(self, clients: slice) -> State:
        """Take views of some clients."""
        return State(
            {name: layer[clients] for name, layer in self.layers.items()},
            {name: layer.some(clients) for name, layer in self.factored.items()},
        )


class PlainSGD:
    """Carry plain local SGD out for a task, on pools of samples."""

    def __init__(self, task: Task, inputs: Tree, targets: Tree, plan: Plan, chain: Chain | None) -> None:
        self.task, self.inputs, self.targets, self.plan, self.chain = task, inputs, targets, plan, chain
        dropout = any(isinstance(layer, KeyedDropout) for layer in task.module.modules())
        self.keyed = dropout or task.draws or bool(task.augmenting)  # whether steps draw
        self.precision = torch.bfloat16 if plan.precision == "bf16" else plan.dtype  # of values between layers
        self.background, self.sample_bytes = Background(), trees.row_bytes(inputs, plan.dtype)

    def train(self, jobs: Jobs, size: Size) -> Tensor:
        """Train C clients, sorted by their number of steps, to their end: `[C, P]` what their parameters have moved
        by."""
        if self.by_blocks:
            moved = jobs.models[0].new_empty(len(jobs.received), len(jobs.models[0]))
            with threads(1):
                self.begin_training(jobs, size, moved).wait()
            return moved
        course = self._drawing(jobs, size.steps)(slice(None))
        return self.run(jobs.models, jobs.received, self.rate(jobs.lr), course)

    def begin_training(self, jobs: Jobs, size: Size, moved: Vectors) -> Late:
        """Begin to train blocks of clients into `moved`, `[C, P]`; the result says when rows are there. The caller
        keeps to one thread until then."""
        workers = min(self.plan.threads, max(1, size.limit // CLIENTS_A_BLOCK))
        parts = blocks(len(moved), jobs.ahead)
        course, lr = self._drawing(jobs, size.steps), self.rate(jobs.lr)
        return self._by_blocks(jobs.models, jobs.received, lr, course, moved, parts, workers)

    def _drawing(self, jobs: Jobs, steps: NDArray[np.int64]) -> Callable[[slice], Course]:
        """Prepare to draw the mini-batches of some of the jobs."""
        extent = Extent.of(jobs.work, jobs.samples.counts, steps)
        sent = packed(jobs, steps, extent.samples).to(self.plan.device)
        return lambda part: Course.of(draw(jobs.work, sent[part], extent, self.keyed), steps[part], self.plan.dtype)

    def rate(self, lr: float | NDArray[np.float64]) -> float | Tensor:
        """Place a learning rate for all, or that of each `[C]`, where the steps are taken."""
        if not isinstance(lr, np.ndarray):
            return float(lr)
        return torch.as_tensor(lr, device=self.plan.device, dtype=self.plan.dtype)

    def run(self, models: Vectors, received: NDArray[np.int64], lr: float | Tensor, course: Course) -> Tensor:
        """Take the steps of a course: `[C, P]` what every client's parameters have moved by. Client i starts from
        `models[received[i]]`; `lr` is a number or `[C]`."""
        moved = models[0].new_empty(len(received), len(models[0]))
        if self.by_blocks:
            parts = blocks(len(received))
            with threads(1):
                self._by_blocks(models, received, lr, course.some, moved, parts, self.plan.threads).wait()
        else:
            self._block(self.received(models, received), len(models) == 1, lr, course, moved)
        return moved

    @cached_property
    def side_by_side(self) -> frozenset[str]:
        """Name the kernels that products without windows read (`kernels/implicit.py`)."""
        if self.plan.device == "cpu" or not HAS_TRITON or self.task.alone:
            return frozenset()
        if self.chain is not None and self.plan.convolution != "implicit":
            return frozenset()
        layers = self.task.module.named_modules()
        return frozenset(f"{n}.weight" if n else "weight" for n, layer in layers if _convolves_plainly(layer))

    @cached_property
    def by_blocks(self) -> bool:
        """Say whether blocks of clients are trained by threads of one-thread kernels: that pays with convolutions."""
        return self.plan.device == "cpu" and self.chain is not None and self.chain.convolves

    def _by_blocks(
        self,
        models: Vectors,
        received: NDArray[np.int64],
        lr: float | Tensor,
        course: Callable[[slice], Course],
        moved: Vectors,
        parts: Sequence[slice],
        workers: int,
    ) -> Late:
        """Begin `run` block by block into `moved`, with the course of each."""

        def block(part: slice) -> None:
            own = lr[part] if isinstance(lr, Tensor) else lr
            self._block(self.received(models, received[part]), len(models) == 1, own, course(part), moved[part])

        return self.background.spread(block, parts, workers)

    @cached_property
    def kernels(self) -> frozenset[str]:
        """Name the kernels that are laid out as images while a client is trained: in another order they would be put
        in this one in every pass. None, where the model makes something else of its kernels."""
        if self.plan.device != "cpu":
            return frozenset()
        task, convolutions = self.task, [n for n, layer in self.task.module.named_modules() if type(layer) is nn.Conv2d]
        layers = task.layers(task.initial)
        names = frozenset(f"{name}.weight" if name else "weight" for name in convolutions) & layers.keys()
        laid = {name: _laid_out(layer, name in names) for name, layer in layers.items()}
        inputs, _ = self.samples(torch.zeros(2, dtype=torch.int64))
        weights, key = torch.ones(()).expand(1, 1 << 20), torch.ones((), dtype=torch.int64)  # for any number of models
        try:
            with torch.no_grad(), task.held() if task.recomputes else nullcontext():
                task.call(next(iter(task.models(laid, weights, key)))[0], inputs, key)
        except Exception:  # such as a view; what is wrong of itself is said when it trains
            return frozenset()
        return names

    @staticmethod
    def received(models: Vectors, received: NDArray[np.int64]) -> Tensor:
        """Line up the models received `[C, P]`, with a copy only where a view cannot be."""
        if len(models) == 1:
            return models[0].expand(len(received), -1)
        if not isinstance(models, Tensor):
            return torch.stack([models[version] for version in received])
        if np.array_equal(received, np.arange(received[0], received[0] + len(received))):
            return models[received[0] : received[0] + len(received)]
        return models[torch.as_tensor(received, device=models.device)]

    def _block(self, received: Tensor, shared: bool, lr: float | Tensor, course: Course, moved: Vectors) -> None:
        size, longest = course.rows.shape[2], int(course.steps[0])
        state = running = self.begin(received, shared, size * longest, bool((course.steps != longest).any()))
        active = len(received)
        at_once = self.at_once(course.rows)
        gathered = [*self.samples(course.rows)] if at_once else []
        if at_once and self.chain is not None and course.rows.shape[1] == longest:
            gathered[0] = gathered[0].to(self.precision)
            self.chain.look_ahead(state.factored, gathered[0])
        for number in range(longest):
            if course.active(number) < active:
                active = course.active(number)
                running = running.some(slice(active))
            place, counts = (
                (slice(active), number if part.shape[1] > 1 else 0) for part in (course.rows, course.weights)
            )
            rows = course.rows[place]
            inputs, targets = (some(part, place) for part in gathered) if at_once else self.samples(rows)
            batch = Batch(inputs, targets, course.weights[counts], rows, course.keys[:active, number], number)
            self.step(running, lr[:active] if isinstance(lr, Tensor) else lr, batch)
        for layer in state.factored.values():
            layer.at = size * longest
        if isinstance(moved, Tensor):
            self.difference(state, received, moved)
            return
        for client, own in enumerate(moved):
            alone = slice(client, client + 1)
            self.difference(state.some(alone), received[alone], own[None])

    def samples(self, rows: Tensor) -> tuple[Tree, Tree]:
        """Gather inputs and targets, `[*rows.shape, ...]` of every tensor."""
        return trees.batch(self.inputs, self.targets, rows, self.task.initial)

    def at_once(self, rows: Tensor) -> bool:
        """Say whether there is room for all these samples at once."""
        room = GATHER_AT_ONCE if self.chain is not None else min(GATHER_AT_ONCE, self.plan.memory_mib * MIB // 8)
        return rows.numel() * self.sample_bytes <= room

    def begin(self, received: Tensor, shared: bool, samples: int | None, uneven: bool = False) -> State:
        """Begin from models `[C, P]`, views of one if `shared`, for so many samples to come, if that is known."""
        layers, factored = self.task.layers(received), dict[str, Factored]()
        wide = self.chain.worth_factoring(layers, samples) if self.chain and samples and type(self.task) is Task else []
        for prefix in wide:
            weight, bias = layers.pop(f"{prefix}weight"), layers.pop(f"{prefix}bias", None)
            past = [
                self.new(f"layer.{prefix}{name}", torch.Size([len(weight), samples or 0, width]), self.precision)
                for name, width in (("inputs", weight.shape[2]), ("asked", weight.shape[1]))
            ]
            if uneven:  # some clients leave part of it empty
                for part in past:
                    part.zero_()
            own_bias = None if bias is None else self.new(f"layer.{prefix}bias", bias.shape).copy_(bias)
            start = self.steady(f"{prefix}weight", weight[0] if shared else weight)
            factored[prefix] = Factored(start, own_bias, *past)
        own = {name: self._room(name, layer.shape).copy_(layer) for name, layer in layers.items()}
        return State(own, factored)

    def _room(self, name: str, shape: torch.Size) -> Tensor:
        """Make room for a layer of all clients; for kernels, where ours read them, with what they have of a pixel side
        by side."""
        if name not in self.side_by_side:
            return self.new(f"layer.{name}", shape)
        clients, out, into, kh, kw = shape
        return self.new(f"layer.{name}", torch.Size([clients, out, kh, kw, into])).movedim(-1, 2)

    def new(self, name: str, shape: torch.Size, dtype: torch.dtype | None = None) -> Tensor:
        """Make room for what is called so."""
        return torch.empty(shape, dtype=dtype or self.plan.dtype, device=self.plan.device)

    def steady(self, name: str, tensor: Tensor) -> Tensor:
        """Convert a tensor that will not change to the precision between layers."""
        return tensor.to(self.precision)

    def step(self, state: State, lr: float | Tensor, batch: Batch) -> None:
        """Take one step of the cohort, in place; `lr` is a number or `[C]`."""
        for own, weights, key in self.task.models(state.layers, batch.weights, batch.key):
            seen = batch._replace(weights=weights, key=key)
            if self.chain is not None:
                aim = self.chain.aim(seen.targets, seen.weights, lr)
                self.chain.step(own, state.factored, seen.inputs.to(self.precision), aim, seen.key)
                continue
            if key.is_cuda:  # the loss is scaled in the place of every gradient, and all layers move at once
                rate = lr.view(-1, *(1,) * (weights.ndim - 1)) if isinstance(lr, Tensor) else lr
                moves = gradients.summed(self.task, own, seen._replace(weights=weights * rate))
                torch._foreach_sub_(list(own.values()), moves)
                continue
            asked = gradients.mapped(self.task, own, seen)
            for name, layer in own.items():
                if isinstance(lr, Tensor):
                    layer.addcmul_(asked[name], lr.view(-1, *(1,) * (layer.ndim - 1)), value=-1)
                else:
                    layer.add_(asked[name], alpha=-lr)

    def difference(self, state: State, received: Tensor, moved: Tensor) -> None:
        """Subtract `received` from the layers into `moved`, both `[C, P]`."""
        before, out = self.task.layers(received), self.task.layers(moved)
        for name, layer in state.layers.items():
            torch.sub(layer, before[name], out=out[name])
        for prefix, factored in state.factored.items():
            factored.difference(out[f"{prefix}weight"])
            if factored.bias is not None:
                torch.sub(factored.bias, before[f"{prefix}bias"], out=out[f"{prefix}bias"])

    def run_client(
        self,
        task: Task,
        received: Tensor,
        lr: float,
        samples: int,
        batches: Iterator[Batch],
        kernels: Collection[str] = (),
    ) -> Tensor:
        """Take the steps of one client: `[P]` what its parameters have moved by; with these `kernels` laid out as
        images. No other thread uses `task`."""
        if self.chain is not None:
            state, moved = self.begin(received[None], True, samples), torch.empty_like(received)[None]
            for batch in batches:
                parts = {name: trees.at(getattr(batch, name), None) for name in ("inputs", "targets", "weights", "key")}
                self.step(state, lr, batch._replace(**parts))
            self.difference(state, received[None], moved)
            return moved[0]
        layers = {name: _laid_out(layer, name in kernels) for name, layer in task.layers(received).items()}
        for batch in batches:
            for own, weights, key in task.models(layers, batch.weights, batch.key):
                leaves = {name: layer.detach().requires_grad_() for name, layer in own.items()}
                with torch.enable_grad(), task.held() if task.recomputes else nullcontext():
                    loss = gradients.objective(task, leaves, batch.inputs, batch.targets, weights, key)
                    moves = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
                for layer, gradient in zip(own.values(), moves, strict=True):
                    layer.add_(gradient, alpha=-lr)
        return task.vector({name: layer[None] for name, layer in layers.items()})[0] - received


def blocks(clients: int, ahead: bool = False) -> list[slice]:
    """Cut clients into a multiple of four blocks, where there are as many, as equal as can be: two or four threads end
    at about the same time. Where work goes `ahead` nobody waits for the last, and blocks are as large as they may be.
    The number of threads does not matter, and so changes no bit."""
    if ahead:
        return [slice(i, min(clients, i + CLIENTS_A_BLOCK)) for i in range(0, clients, CLIENTS_A_BLOCK)]
    count = min(clients, -(-clients // (4 * CLIENTS_A_BLOCK)) * 4)
    return [slice(clients * i // count, clients * (i + 1) // count) for i in range(count)]


def _laid_out(layer: Tensor, kernel: bool) -> Tensor:
    """Copy a layer; a kernel `[..., out, into, H, W]` with what it has of a pixel side by side."""
    if not kernel:
        return layer.clone()
    return layer.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


def as_convolved(inputs: Tensor) -> Tensor:
    """Lay images out as a CPU convolves them fastest."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


def some(samples: Tree, place: Any) -> Tree:
    """Index every tensor of some samples."""
    return samples[place] if isinstance(samples, Tensor) else trees.at(samples, place)


def _convolves_plainly(layer: nn.Module) -> bool:
    return type(layer) is nn.Conv2d and layer.groups == 1
