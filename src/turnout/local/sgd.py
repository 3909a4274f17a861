"""Local SGD: the local work of FedAvg, and the base of every other local work.

A local work is pure functions for *one* client. The engine calls, for every job (by `turnout.local.job`),

    params, carry  = start(task, received, state, data)
    params, carry  = step(task, params, carry, batch)            # for each mini-batch
    payload, state = finish(task, received, params, carry, state, data)

under `vmap` over the cohort, or one client after another. Shapes in the signatures are therefore those of one client.
Fields that hold a number may be given per client by `Server.invite`; inside these functions they are then scalars of
that client. Tensor fields are the same for all (models to choose from that the server sends along). `modifiers` are
threaded beside: every gradient that a work takes by `self.gradient` is theirs to change, see `turnout.local.modifiers`.
Every step that it takes by `self.descend` is its `optimiser`'s, see `turnout.local.optimisers`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.core import random, trees
from turnout.core.allowed import Finite, OneOf, Range
from turnout.core.errors import UserError
from turnout.core.trees import Tree
from turnout.local import reports, schedules, transforms
from turnout.local.exchange import Exchange
from turnout.local.modifiers import Modifier
from turnout.local.optimisers import OPTIMISERS, SGD, Optimiser, State, Update, chosen, used
from turnout.local.schedules import Schedule
from turnout.task.task import Task

Carry = Any  # whatever a work keeps between two steps of one job: tensors in tuples, lists or dicts
Named = dict[str, Tensor]
_Length = Annotated[int, Range(0, 10**9)]
_PLAIN = SGD()
Stepping = Annotated[Optimiser | Update | str, OneOf(tuple(OPTIMISERS))]


class Batch(NamedTuple):
    """One mini-batch of one client. Padding has weight 0; the weights of real samples sum to 1."""

    inputs: Tree  # [B, ...]
    targets: Tree  # [B, ...]
    weights: Tensor  # [B]
    positions: Tensor  # [B] which of the client's samples: rows of what `ClientData.scan` returned
    key: Tensor  # int64 scalar: the randomness of this step (dropout)
    number: int  # the step's number, from 0
    lr: float | Tensor = 0.0  # of the work, for modifiers


@dataclass(frozen=True)
class ClientData:
    """All samples of one client at the time its job starts."""

    inputs: Tree  # the pool shared by all clients, as it is stored: `chunks` gives what a model computes with
    targets: Tree
    index: Tensor  # [n_max] rows of the pool; beyond `count` it is padding
    weights: Tensor  # [n_max] 1 for a sample, 0 for padding
    count: Tensor  # scalar
    key: Tensor  # int64 scalar: the randomness of this job
    chunk: int  # samples a scan looks at in one go
    scores: Tensor | None = None  # [n_max, ...] where the work gives every sample one; 0 for padding

    def chunks(self) -> Iterator[tuple[Tree, Tree, Tensor]]:
        """Yield inputs, targets and weights of all samples, some at a time."""
        for index, weights in zip(*(torch.split(part, self.chunk) for part in (self.index, self.weights)), strict=True):
            yield *trees.batch(self.inputs, self.targets, index, self.weights), weights

    def labels(self) -> Tree:
        """Gather the targets of all samples, `[n_max, ...]`."""
        return trees.batch((), self.targets, self.index, self.weights)[1]

    def scan(self, function: Callable[[Tree, Tree], Tensor]) -> Tensor:
        """Map `function(inputs [c, ...], targets [c, ...]) -> [c, ...]` over all samples, in chunks: `[n_max, ...]`.

        Rows of padding are zero, so that a sum over rows is a sum over the client's samples.
        """
        rows = []
        for inputs, targets, weights in self.chunks():
            values = function(inputs, targets)
            rows.append(torch.where(weights.view(-1, *(1,) * (values.ndim - 1)) > 0, values, torch.zeros_like(values)))
        return torch.cat(rows)

    def shuffled(self, size: int) -> Iterator[Tree]:
        """Yield the inputs of all samples in an order of their own, so many at a time."""
        count = int(self.count)
        order = np.argsort(random.bits(random.mix(self.key.reshape(1).cpu().numpy())[0], count), kind="stable")
        for rows in np.array_split(order, np.arange(size, count, size)):
            yield trees.batch(self.inputs, (), self.index[torch.as_tensor(rows).to(self.index.device)], self.weights)[0]

    def mean(self, values: Tensor) -> Tensor:
        """Average over the client's samples what a scan returned."""
        return values.sum(0) / self.count


@dataclass(frozen=True)
class LocalSGD(Exchange):
    """Train by `theta <- theta - lr * grad`, over mini-batches, from the model received.

    How much: `epochs` passes, or exactly `steps` steps. Which samples: `batching` is

    - `epochs`: a fresh shuffle a pass, last batch possibly smaller;
    - `draws`: `batch_size` distinct samples drawn anew at each step;
    - `fixed`: one drawn batch for all steps of the job;
    - `full`: all samples at every step.

    An `optimiser` other than sgd makes the step of the gradient. What it remembers, momentum too, starts from zero in
    every job, unless the client keeps it. `clip_norm` bounds the norm of each mini-batch gradient. A job that begins
    from version t of the model has the learning rate `lr * lr_decay^t / (t + 1)^lr_power`, times what `schedules` say.
    """

    section: ClassVar[str] = "local"
    gone: ClassVar[Mapping[str, Callable[[Any], UserError]]] = {"transform": transforms.gone}
    plain_for: ClassVar[type[Task]] = Task  # where the parts this class defines are those of `engine.plain_sgd`
    restates: ClassVar[bool] = False  # whether it says where its own model is, not what changed of one received
    one_optimiser: ClassVar[bool] = True  # whether the steps of a job are those of one optimiser, which can be kept
    looks_after: ClassVar[Literal["kept", "shared", "none"]] = "kept"  # statistics of a model that it can train
    trains: ClassVar[bool] = True  # whether what a client keeps of its model follows from it
    version: ClassVar[float] = 0  # of the model received, where the engine says it
    job_steps: ClassVar[float] = 0  # of a job under way, which `paces` go by: the engine says
    decaying: ClassVar[Any] = None  # of a gradient `[P]` where weights decay, 1 or 0; None: everywhere

    lr: Finite  # learning rate
    epochs: _Length = 1  # passes over the samples
    steps: _Length | None = None  # of a job; none: as many as the epochs have
    batch_size: Annotated[int, Range(least=1, below=math.inf)] = 32  # samples of a mini-batch
    batching: Annotated[str, OneOf(("epochs", "draws", "fixed", "full"))] = "epochs"  # which samples a step has
    momentum: Finite = 0.0  # share of its speed that a step keeps; each job begins with 0
    weight_decay: Finite = 0.0  # pull of the parameters towards 0
    clip_norm: Annotated[float, Range(above=0)] | None = None  # largest norm of a mini-batch gradient; none: no limit
    lr_decay: Finite = 1.0  # factor of the learning rate from one version to the next
    lr_power: Finite = 0.0  # the learning rate falls as (version + 1)^-power
    report: str = ""  # what clients also say of the model they received: see `turnout.local.reports`
    modifiers: tuple[Modifier, ...] = ()  # what is added to it: see `turnout.local.modifiers` and `.transforms`
    nesterov: bool = False  # whether a step with momentum looks ahead along its speed
    optimiser: Stepping = _PLAIN  # what takes the steps
    optimiser_state: Annotated[str, OneOf(("discarded", "kept"))] = "discarded"  # what it remembers, after a job
    schedules: tuple[Schedule, ...] = ()  # how lr changes in a job and over versions: see `turnout.local.schedules`

    def __post_init__(self) -> None:
        reports.parse(self.report)
        object.__setattr__(self, "optimiser", chosen(self.optimiser))
        object.__setattr__(self, "schedules", schedules.listed(self.schedules))
        self.stepper.check(self)
        if self.optimiser_state == "kept" and not self.one_optimiser:
            raise UserError(
                f"local.optimiser_state: a job of {type(self).__name__} has not one optimiser from its first step to "
                "its last; leave it at discarded"
            )
        object.__setattr__(self, "modifiers", transforms.listed(self.modifiers))
        transforms.check_all(self)

    @classmethod
    def extend(cls, base: LocalSGD, **more: Any) -> Self:
        """Make this kind of work with the settings of another, of which nothing may be lost: it is a `LocalSGD`, or
        this kind is made of that one and replaces none of the numbers that one adds."""
        added = {part.name for part in fields(base)} - {part.name for part in fields(LocalSGD)}
        if not issubclass(cls, type(base)) or added & more.keys():
            raise base.lost_to(cls.__name__)
        return cls(**{part.name: getattr(base, part.name) for part in fields(base)} | more)

    @classmethod
    def like(cls, training: LocalSGD, **more: Any) -> Self:
        """Make this kind of work, which does not train, for clients that train like that."""
        settings = {part.name: getattr(training, part.name) for part in fields(LocalSGD)}
        return cls(**settings | {"modifiers": (), "optimiser_state": "discarded"} | more)

    def lost_to(self, other: str) -> UserError:
        """Say that another work would take the place of this one."""
        return UserError(
            f"local: the {type(self).__name__} given would be replaced by {other}, and what it adds to LocalSGD lost; "
            "give a plain LocalSGD, or take an algorithm that leaves the local work as it is, such as fedavg"
        )

    def bind(self, options: Mapping[str, Any]) -> Self:
        """Replace numbers, by arrays over clients or scalars; `modifiers.0.mu` is its first one."""
        if not options:
            return self
        bound = copy.copy(self)
        for name, value in options.items():
            if not name.startswith("modifiers."):
                object.__setattr__(bound, name, value)
                continue
            _, place, own = name.split(".")
            modifiers = list(bound.modifiers)
            modifiers[int(place)] = modifiers[int(place)].bind({own: value})
            object.__setattr__(bound, "modifiers", tuple(modifiers))
        return bound

    def modified(self, *more: Modifier) -> Self:
        """Make the same work with these modifiers after its own."""
        work = self.bind({"modifiers": (*self.modifiers, *more)})
        transforms.check_all(work)
        return work

    def reporting(self, report: str) -> Self:
        """Make the same work whose clients also report this."""
        asked = self.report.split(",")
        missing = [part for part in report.split(",") if part not in ("", *asked)]
        return self.bind({"report": ",".join([*filter(None, asked), *missing])}) if missing else self

    def alone(self) -> Self:
        """The same work without modifiers that need a server: for a client that adapts a model of its own."""
        own = tuple(modifier for modifier in self.modifiers if not modifier.held)
        return self if len(own) == len(self.modifiers) else self.bind({"modifiers": own})

    @property
    def keeps(self) -> bool:
        """Say whether a client keeps what its optimiser remembers."""
        return self.optimiser_state == "kept"

    @property
    def stepper(self) -> Optimiser:
        """Give the optimiser, as which a name or a function was taken."""
        return cast(Optimiser, self.optimiser)

    @property
    def parts(self) -> dict[str, LocalSGD | Modifier]:
        """Name the work and its modifiers, by what stands before the names of their numbers in `bind`."""
        return {"": self} | {f"modifiers.{place}.": modifier for place, modifier in enumerate(self.modifiers)}

    def lr_factor(self, version: ArrayLike) -> NDArray[np.float64]:
        """Compute what the learning rate is multiplied by in jobs that begin from that version."""
        t = np.asarray(version, np.float64)
        factor: NDArray[np.float64] = self.lr_decay**t / (t + 1) ** self.lr_power
        if over := [schedule for schedule in self.schedules if not schedule.in_job]:
            factor = factor * schedules.product(over, torch.from_numpy(t), torch.ones(())).numpy()
        return factor

    def at(self, version: int) -> Self:
        """Make the same work with the learning rate of jobs that begin from that version."""
        if not self.scheduled:
            return self
        now = {"lr": self.lr * float(self.lr_factor(version)), "lr_decay": 1.0, "lr_power": 0.0}
        return self.bind(now | {"schedules": self.paces})

    @property
    def scheduled(self) -> bool:
        """Say whether the learning rate changes from version to version."""
        return self.lr_decay != 1 or self.lr_power != 0 or len(self.paces) < len(self.schedules)

    @property
    def paces(self) -> tuple[Schedule, ...]:
        """List the schedules by which the learning rate changes from step to step of a job."""
        return tuple(schedule for schedule in self.schedules if schedule.in_job)

    def at_step(self, number: int, steps: float | Tensor) -> Self:
        """Make the same work with the learning rate of that step of a job of so many."""
        total = steps if isinstance(steps, Tensor) else torch.tensor(steps, dtype=torch.float64)
        return self.bind({"lr": self.lr * schedules.product(self.paces, torch.full_like(total, number), total)})

    def num_steps(self, counts: ArrayLike) -> NDArray[np.int64]:
        """Count the steps of a job on `counts` samples."""
        counts = np.asarray(counts, np.int64)
        if self.steps is not None:
            return np.broadcast_to(np.asarray(self.steps, np.int64), counts.shape)
        steps: NDArray[np.int64] = np.asarray(self.epochs, np.int64) * self.steps_a_pass(counts)
        return steps

    def steps_a_pass(self, counts: ArrayLike) -> NDArray[np.int64]:
        """Count the steps in which each of `counts` samples is seen once."""
        counts = np.asarray(counts, np.int64)
        return np.ones_like(counts) if self.batching == "full" else -(-counts // self.batch_size)

    def busy(self, counts: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
        """Count steps and samples in time: a step of two gradients counts twice, and a pass besides the steps takes as
        long as one of the training."""
        steps = self.num_steps(counts)
        gradients = self.gradients * math.prod(modifier.gradients for modifier in self.modifiers)
        if not self.passes and gradients == 1:
            return steps, counts
        extra = self.passes * self.steps_a_pass(counts) + (gradients - 1) * steps
        return steps + extra, np.asarray(counts) * (1 + extra / np.maximum(1, steps))

    def effective_steps(self, steps: ArrayLike) -> NDArray[np.float64]:
        """Compute |a|_1, the total weight of the local gradients in the difference returned (FedNova's a_i): K for
        plain SGD, (1 - (1 - lr pull)^K) / (lr pull) when each step is pulled back, the momentum sum A with momentum (K
        + momentum A with Nesterov's), the sum of the factors of a schedule."""
        if type(self.optimiser) is not SGD:
            raise UserError(
                f"local.optimiser: FedNova's weights know the effective steps of sgd, not of {self.optimiser}"
            )
        steps = np.asarray(steps, np.float64)
        pull = np.broadcast_to(np.asarray(self.lr, np.float64) * self.pull, steps.shape)
        if self.paces:
            if self.momentum or np.any(pull):
                raise UserError(
                    "local.schedules: FedNova's weights know the effective steps of a schedule in a job without "
                    "local.momentum and without a pull (mu, weight_decay)"
                )
            return self._paced_steps(steps)
        if self.momentum:
            if np.any(pull):
                raise UserError(
                    "fednova: it knows the effective steps with local.momentum or with a pull (mu, weight_decay)"
                )
            rho = self.momentum
            total: NDArray[np.float64] = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
            return steps + rho * total if self.nesterov else total
        effective: NDArray[np.float64] = np.divide(1 - (1 - pull) ** steps, pull, out=steps.copy(), where=pull > 0)
        return effective

    def _paced_steps(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum what the learning rate of each step of a job is multiplied by."""
        kinds, place = np.unique(steps, return_inverse=True)
        numbers = (torch.arange(count, dtype=torch.float64) for count in kinds)
        sums = [float(schedules.product(self.paces, each, torch.full_like(each, len(each))).sum()) for each in numbers]
        return np.array(sums)[place].reshape(steps.shape)

    @property
    def gradients(self) -> int:
        """Count the gradients that a step takes by `self.gradient`."""
        return 1

    @property
    def passes(self) -> int:
        """Count the passes over the samples besides the steps."""
        return reports.passes(self.report) + sum(modifier.passes for modifier in self.modifiers)

    @property
    def pull(self) -> float:
        """Tell how strongly each step is pulled towards a fixed point, besides the gradient."""
        return self.weight_decay + sum(modifier.pull for modifier in self.modifiers)

    def score(self, task: Task, received: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Score `[c, ...]` each of these samples by the model received: where a work overrides this, `start` finds the
        scores of all samples in `data.scores`, which the engine knows to compute faster than a scan."""
        raise NotImplementedError

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        return received, self.start_momentum(received)

    def start_momentum(self, params: Tensor) -> State:
        """Make what `descend` carries from step to step: of sgd the speed, of other optimisers what they remember."""
        return self.stepper.start(self, params)

    def remembered(self, carry: Carry) -> State:
        """Find in the carry what `start_momentum` has made and `descend` has changed."""
        return carry

    def counted(self, carry: Carry, weights: Tensor, positions: Tensor) -> Tensor:
        """Weigh samples at these positions of mini-batches `[..., B]`, which have these weights."""
        return weights

    def objective(self, task: Task, params: Tensor, batch: Batch) -> Tensor:
        """Compute the weighted mean loss of the batch."""
        return (task.losses(params, batch.inputs, batch.targets, batch.key) * batch.weights).sum()

    def gradient(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> Tensor:
        """Differentiate the objective, `[P]`: the usual thing to override."""
        return task.gradient(lambda p: self.objective(task, p, batch), params)

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        return self.descend(params, self.gradient(task, params, carry, batch), carry)

    def descend(self, params: Tensor, gradient: Tensor, velocity: State) -> tuple[Tensor, State]:
        """Take one step as torch.optim does: clip, decay, and what the optimiser makes of it."""
        if self.clip_norm is not None:
            gradient = gradient * (self.clip_norm / gradient.norm().clamp(min=self.clip_norm))
        decay, decaying = self.weight_decay, self.decaying
        work = self if decaying is None else self.bind({"weight_decay": decay * decaying(gradient)})
        if used(work.weight_decay) and not self.stepper.decoupled:
            gradient = gradient + work.weight_decay * params
        return self.stepper.step(work, gradient, velocity, params)

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {"delta": params - received}, {}

    def answer(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        """Give what `finish` says, and the reports."""
        payload, state = self.finish(task, received, params, carry, state, data)
        return payload | reports.values(self.report, task, received, data), state

    def prepare(self, task: Task, received: Tensor, state: Named, data: ClientData) -> Named:
        """Make what `predict` gets as its state: here what the client keeps; it may also look at its samples once."""
        return state

    def prepared_numbers(self, task: Task, samples: int) -> int:
        """Count the numbers that `prepare` and `predict` hold for a client of so many samples, beside its state."""
        return 0

    def serves(self, task: Task, received: Tensor, state: Named) -> Tensor:
        """Give the model `[P]` that this client serves: here the global one."""
        return received

    def predict(self, task: Task, received: Tensor, state: Named, inputs: Tensor) -> Tensor:
        """Compute what this client answers, where that is more than the outputs of one model."""
        return task.outputs(self.serves(task, received, state), inputs)
