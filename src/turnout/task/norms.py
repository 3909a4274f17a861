"""What a model changes beside its parameters: the running statistics of BatchNorm, and other buffers.

They lie behind the parameters in the vector `[P]` of a model, so that whatever holds a model holds them. A batch
normalisation is known by its class, never by its name.

| `task.batchnorm` | values are normalised in training by | running statistics | gamma and beta |
|---|---|---|---|
| `frozen` | the statistics given | stay what they are | shared |
| `averaged` | the batch | averaged | shared |
| `local_statistics` | the batch | kept by each client (SiloBN) | shared |
| `local` | the batch | kept by each client (FedBN) | kept by each client |
| `batch` | the batch | none: who serves computes them from its own inputs | shared |
| `fixed` | the batch, from a version on the statistics | averaged, then constant (FixBN) | shared |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from turnout.core.allowed import OneOf, WholeNumber
from turnout.core.errors import UserError, unknown
from turnout.core.flat import Layout
from turnout.core.random import mix
from turnout.core.spelling import Spelt
from turnout.core.trees import Tree

if TYPE_CHECKING:
    from turnout.task.task import Task

_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class BatchNorm(Spelt):
    """Say what becomes of the running statistics of a model's normalisation layers."""

    keeps_statistics: ClassVar[bool] = False  # whether every client has its own
    keeps_parameters: ClassVar[bool] = False  # and its own gamma and beta
    sends: ClassVar[bool] = True  # whether clients send their statistics
    own_pass: ClassVar[bool] = False  # whether who has none computes them from its own inputs before it serves
    from_average: ClassVar[bool] = False  # whether a client's first job begins with the server's average
    pooled: ClassVar[bool] = False  # whether an average of variances counts how far the means are apart
    remembers: ClassVar[bool] = False  # whether silent clients count with their last ones
    fixed_from: ClassVar[float] = math.inf  # the version of the model from which they are constant


@dataclass(frozen=True)
class Frozen(BatchNorm):
    """Normalise by the statistics given, pretrained ones: they do not change."""


@dataclass(frozen=True)
class Averaged(BatchNorm):
    """Average the clients' statistics as models are averaged, by weight. `moments` pooled adds to the mean of their
    variances how far their means are apart: that is the variance of all samples. Where they are `remembered`, every
    client that ever reported counts its importance with what it sent last."""

    section: ClassVar[str] = "task.averaged"

    moments: Annotated[str, OneOf(("plain", "pooled"))] = "plain"  # how variances are averaged
    remembered: bool = False  # whether silent clients count with the last ones they sent

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self.remembered

    @property
    def pooled(self) -> bool:  # type: ignore[override]
        return self.moments == "pooled"


@dataclass(frozen=True)
class LocalStatistics(BatchNorm):
    """Let every client keep its statistics, and share gamma and beta.

    Andreux, du Terrail, Beguier, Tramel, "Siloed federated learning for multi-centric histopathology datasets", 2020
    (SiloBN).
    """

    section: ClassVar[str] = "task.local_statistics"
    keeps_statistics: ClassVar[bool] = True

    start: Annotated[str, OneOf(("initial", "average"))] = "initial"  # what a client's first job begins with
    unseen: Annotated[str, OneOf(("average", "own"))] = "average"  # what serves who never trained; own: a pass over
    # its inputs, and then no statistics are sent

    @property
    def from_average(self) -> bool:  # type: ignore[override]
        return self.start == "average"

    @property
    def own_pass(self) -> bool:  # type: ignore[override]
        return self.unseen == "own"

    @property
    def sends(self) -> bool:  # type: ignore[override]
        return self.unseen == "average"


@dataclass(frozen=True)
class Local(LocalStatistics):
    """Let every client keep its normalisation layers whole: statistics, gamma and beta.

    Li, Jiang, Zhang, Kamp, Dou, "FedBN: federated learning on non-IID features via local batch normalization", ICLR
    2021.
    """

    section: ClassVar[str] = "task.local"
    keeps_parameters: ClassVar[bool] = True


@dataclass(frozen=True)
class OfBatch(BatchNorm):
    """Have no running statistics: who serves computes them from its own training inputs."""

    sends: ClassVar[bool] = False
    own_pass: ClassVar[bool] = True


@dataclass(frozen=True)
class Fixed(BatchNorm):
    """Average statistics, and hold them from a version of the model on: they then normalise in training, too.

    Zhong, Chen, Chao, "Making batch normalization great in federated deep learning", 2023 (FixBN).
    """

    section: ClassVar[str] = "task.fixed"

    after: WholeNumber = 50  # the version of the model from which statistics are constant

    @property
    def fixed_from(self) -> float:  # type: ignore[override]
        return self.after


BATCHNORM: dict[str, type[BatchNorm]] = {
    "frozen": Frozen,
    "averaged": Averaged,
    "local_statistics": LocalStatistics,
    "local": Local,
    "batch": OfBatch,
    "fixed": Fixed,
}
Buffers = Annotated[str, OneOf(("frozen", "averaged", "kept"))]


def running(module: nn.Module) -> dict[str, _NormBase]:
    """Find the layers that keep running statistics, by name."""
    layers = module.named_modules()
    return {name: layer for name, layer in layers if isinstance(layer, _NormBase) and layer.running_mean is not None}


def chosen(model: nn.Module, given: str | BatchNorm | None, resting: Iterable[str]) -> BatchNorm | None:
    """Find what was chosen for layers that would change their statistics in training; None: there are none. Those
    `resting` are in evaluation mode."""
    if isinstance(given, str):
        if given not in BATCHNORM:
            raise unknown("task.batchnorm", given, BATCHNORM)
        given = BATCHNORM[given]()
    if given is not None and not isinstance(given, BatchNorm):
        raise UserError(f"task.batchnorm: {given!r} is none of {', '.join(BATCHNORM)}")
    found = {name: layer for name, layer in running(model).items() if name not in set(resting)}
    if found and given is None:
        name, layer = next(iter(found.items()))
        raise UserError(
            f"model: layer {name or 'itself'} is {type(layer).__name__}, whose running statistics differ between "
            f"clients; say what becomes of them with task.batchnorm ({', '.join(BATCHNORM)}), or convert the model "
            "with turnout.models.batchnorm_to_groupnorm(model), which learns better from clients that differ"
        )
    if given is not None and not found:
        raise UserError("task.batchnorm: no layer of the model would change running statistics; leave it out")
    return given


def laid_out(
    model: nn.Module, choice: BatchNorm | None, buffers: str | None, resting: list[str]
) -> tuple[Tail | None, Layout]:
    """Lay a model out as a vector: its parameters, and behind them what else changes in training. Layers that are
    frozen rest, too."""
    if isinstance(choice, Frozen):
        resting += [name for name in running(model) if name not in resting]
    if buffers is None and isinstance(choice, Frozen | None):
        return None, Layout(model)
    tail = Tail(model, choice or Frozen(), buffers, resting)
    return tail, tail.layout


class Tail:
    """Where the statistics and buffers of a model lie in its vector, and what is done with each.

    Numbers before `learnt` move by differences. Those before `averaged` are averaged as they are, those behind it not
    sent. Those from `kept` on are every client's own.
    """

    def __init__(self, model: nn.Module, choice: BatchNorm, buffers: str | None, resting: Iterable[str]) -> None:
        self.choice = choice
        norms = {} if isinstance(choice, Frozen) else {n: x for n, x in running(model).items() if n not in resting}
        self.norms = list(norms)
        self._affine = [_inside(name, part) for name, layer in norms.items() for part, _ in layer.named_parameters()]
        held = {_inside(name, own) for name in running(model) for own in ("running_mean", "running_var", _COUNTER)}
        given = [_inside(name, own) for name, layer in norms.items() for own in layer._buffers]
        loose = {_inside(name, _COUNTER) for name, layer in norms.items() if layer.momentum is not None}
        others = [name for name in _numbers(model) if name not in held] if buffers else []
        if buffers and not others:
            raise UserError("task.buffers: the model has no buffer that could change in training; leave it out")
        ranks = dict.fromkeys(given, 3 if not choice.sends else 2 if choice.keeps_statistics else 1)
        ranks |= dict.fromkeys(others, 2 if buffers == "kept" else 1)
        if choice.keeps_parameters:
            ranks |= dict.fromkeys(self._affine, 2)
        moving = [name for name in given if name not in loose] + (others if buffers != "frozen" else [])
        self.loose = [name for name in given if name in loose] + (others if buffers == "frozen" else [])
        self.layout = Layout(model, moving, ranks)
        placed = list(zip(self.layout.names, self.layout.sizes, strict=True))
        self.size = self.layout.size
        self.learnt, self.kept, self.averaged = (
            sum(size for name, size in placed if ranks.get(name, 0) <= most) for most in range(3)
        )
        if not choice.keeps_statistics and buffers != "kept":  # what nobody sends is not kept either
            self.kept = self.size
        self.counters = {name for name in moving if not model.get_buffer(name).is_floating_point()}
        self._shared = self.layout.only([name for name, _ in placed if 0 < ranks.get(name, 0) < 3])
        self._moments = [tuple(_inside(name, own) for own in ("running_mean", "running_var")) for name in norms]

    @property
    def keeps(self) -> bool:
        """Say whether clients have numbers of their own."""
        return self.kept < self.size

    @property
    def changing(self) -> list[str]:
        """Name the buffers that a pass in training may change."""
        return [*self.layout.buffers, *self.loose]

    def given(self, module: nn.Module, named: Mapping[str, Tensor], training: bool) -> dict[str, Tensor]:
        """Make what a pass finds in the places of buffers: in training copies, which it may change. Gamma and beta are
        copied with them: cuDNN reads four numbers at once, and fails where a vector begins between them."""
        made = {name: named[name].clone() for name in self._affine if training and name in named}
        for name in self.changing:
            own = module.get_buffer(name)
            value = named[name].detach() if name in named else own
            value = value.round() if name in self.counters else value
            made[name] = value.to(own.dtype, copy=training)
        return made

    def found(self, module: nn.Module) -> dict[str, Tensor]:
        """Copy what a pass has left in their places."""
        return {name: module.get_buffer(name).detach().clone() for name in self.layout.buffers}

    def settled(self, params: Tensor, found: Mapping[str, Tensor]) -> Tensor:
        """Put what a pass has left behind the parameters `[P]`."""
        settled = params.clone()
        named = self.layout.unflatten(settled)
        for name, value in found.items():
            named[name].copy_(value)
        return settled

    def statistics(self, params: Tensor) -> dict[str, Tensor]:
        """Name the running statistics among these numbers."""
        norms = tuple(_inside(name, "") for name in self.norms)
        return {name: own for name, own in self._buffers_in(params).items() if name.startswith(norms)}

    def _buffers_in(self, vector: Tensor) -> dict[str, Tensor]:
        named = self.layout.unflatten(vector)
        return {name: named[name] for name in self.layout.buffers}

    def parameters_of(self, vector: Tensor) -> Tensor:
        """Copy a vector `[P]`, with nothing in the places of buffers."""
        return self.settled(vector, {name: torch.zeros_like(own) for name, own in self._buffers_in(vector).items()})

    def sent(self, delta: Tensor, params: Tensor, received: Tensor) -> Tensor:
        """Compute the difference `[P]` that a client sends, whose job made `delta` of the model received and what it
        had of its own, and ended with `params`: what is not sent is 0."""
        start = min(self.kept, self.averaged)
        averaged = (params - received)[start : self.averaged]
        return torch.cat([delta[:start], averaged, torch.zeros_like(params[self.averaged :])])

    def real(self, returned: Tensor) -> Tensor:
        """Cut variances `[k, averaged - learnt]` that clients have sent at 0: whoever sends less is lying."""
        cut = returned.clone()
        named = self._shared.unflatten(cut)
        for _, variance in self._moments:
            if variance in named:
                named[variance].clamp_(min=0)
        return cut

    def average(self, before: Tensor, returned: Tensor, weights: Tensor, share: float) -> Tensor:
        """Average what clients returned, `[k, averaged - learnt]`, by weights `[k]` that sum to 1, and go that share of
        the way from there from what the model `[P]` had before: the numbers behind `learnt`."""
        old = before[self.learnt : self.averaged]
        mean = weights @ returned
        named, rows = self._shared.unflatten(mean), self._shared.unflatten(returned)
        for at, of in self._moments if self.choice.pooled else ():
            spread = (rows[at] - named[at]).square()
            named[of].add_((weights @ spread.flatten(1)).view_as(named[of]))
        moved = torch.lerp(old, mean, share)
        now, then = self._shared.unflatten(moved), self._shared.unflatten(old)
        for name in self.counters & set(now):
            now[name].copy_(torch.maximum(then[name], rows[name].amax(0)))
        return torch.cat([moved, before[self.averaged :]])


@torch.no_grad()
def measured(task: Task, params: Tensor, batches: Iterable[Tree], key: Tensor) -> Tensor:
    """Compute running statistics anew, as the mean over batches of inputs: `[P]` the parameters with them."""
    assert task.tail is not None
    layers = [task.module.get_submodule(name) for name in task.tail.norms]
    before, total, count = [layer.momentum for layer in layers], torch.zeros_like(params), 0
    try:
        for layer in layers:
            layer.momentum = 1.0  # type: ignore[assignment]
        for count, inputs in enumerate(batches, 1):
            task.outputs(params, inputs, mix(key ^ count))
            total += task.settled(params)
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.momentum = momentum
    return task.tail.settled(params, task.tail.statistics(total / count))


def _inside(layer: str, own: str) -> str:
    return f"{layer}.{own}" if layer else own


def _numbers(model: nn.Module) -> list[str]:
    """Name the buffers of numbers that a `state_dict` holds."""
    state = model.state_dict()
    return [name for name, buffer in model.named_buffers() if name in state and buffer.dtype != torch.bool]


def _rest(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Let a layer that is given one value a channel normalise by its statistics, for this call."""
    x = inputs[0]
    layer._rests = layer.training and x.numel() == x.shape[1 if x.ndim > 1 else 0]  # type: ignore[assignment]
    if layer._rests:
        layer.training = False
        warnings.warn(
            "model: BatchNorm was given one value a channel, the last batch of a client perhaps; it is normalised by "
            "the running statistics, which stay as they are",
            stacklevel=1,
        )


def _wake(layer: nn.Module, _inputs: object, _outputs: object) -> None:
    layer.training = layer.training or bool(layer._rests)


def rest_on_one_value(module: nn.Module, norms: Iterable[str]) -> None:
    """Let these layers take a batch of one value a channel, which has no variance."""
    for layer in (module.get_submodule(name) for name in norms):
        if isinstance(layer, _BatchNorm):
            layer.register_forward_pre_hook(_rest)
            layer.register_forward_hook(_wake, always_call=True)
