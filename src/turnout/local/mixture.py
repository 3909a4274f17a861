"""Mixtures: several models of one task trained side by side, and clients that weigh them each in its own way.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021
(FedEM, algorithm 1); Marfoq's thesis (2023), section 4.4, algorithm 17 (FEM-OMD).
A client's samples come from M shared distributions in proportions pi of its own. With l = -log p_m(y | x):

    q[i, m]  =  pi[m] exp(-l(theta_m; s_i)) / sum over components of the same        which one sample i is from (E-step)
    pi[m]    =  mean over samples of q[i, m]                                         (M-step of the weights)
    h(x)     =  sum_m pi[m] h_m(x)                                                   of outputs, never of logits
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from turnout.core.allowed import Count, Positive, Range
from turnout.core.errors import UserError
from turnout.local.optimisers import State
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.calls import Passes
from turnout.task.losses import LOSSES
from turnout.task.task import Task
from turnout.theory.mirror import floored, mirror_step

Outputs = Literal["logits", "values"]
Least = Annotated[float, Range(least=0, below=1)]  # weight of a component
_OUTPUTS: dict[str, Outputs] = {"cross_entropy": "logits", "nll": "logits", "mse": "values"}


def responsibilities(losses: Tensor, weights: Tensor) -> Tensor:
    """Compute `[..., M]` how likely each component is to have made a sample, from its losses `[..., M]` and weights
    `[M]`."""
    return torch.softmax((weights.log() - losses).movedim(-1, 0), 0).movedim(0, -1)  # faster than along a short end


def mixture_loss(losses: Tensor, weights: Tensor) -> Tensor:
    """Compute `[...]` -log sum_m pi[m] exp(-l[m])."""
    return -torch.logsumexp(weights.log() - losses, -1)


class MixtureTask(Task):
    """Hold `components` models of a task as one flat vector `[M * P]`, component after component, no two alike at
    first.

    The task's own loss and metrics apply to what the mixture gives: the logarithm of the averaged class probabilities
    where the models' `outputs` are logits (or log-probabilities), their mean where they are values. The losses
    cross_entropy and nll go with the first, mse with the second (of d values it is the likelihood of normal noise of
    variance d/2); with any other, say which.
    """

    section: ClassVar[str] = "algorithm"

    def __init__(self, component: Task, components: Count, outputs: Outputs | None = None) -> None:
        known = (kind for name, kind in _OUTPUTS.items() if type(component.loss) is LOSSES[name])
        vars(self).update(vars(component))  # module, layout, loss and metrics are a component's
        self.component, self.components, self.kind = component, components, outputs or next(known, None)
        self.initial = component.initials(components).flatten()

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> MixtureTask:
        moved = copy.copy(self)
        moved.component = self.component.to(device, dtype)
        moved.module = moved.component.module
        moved.initial = self.initial.to(device=device, dtype=dtype)
        return moved

    @property
    def size(self) -> int:
        return self.components * self.component.size

    def split(self, params: Tensor) -> Tensor:
        """Split into `[..., M, P]` the components in `[..., M * P]`."""
        return params.view(*params.shape[:-1], self.components, self.component.size)

    def layers(self, params: Tensor) -> dict[str, Tensor]:
        """Name views of `params` `[..., M * P]`: `[..., M, *shape]`."""
        return self.layout.unflatten(self.split(params))

    def vector(self, layers: Mapping[str, Tensor]) -> Tensor:
        return self.layout.flatten(layers, 2).flatten(1)

    def models(
        self, layers: dict[str, Tensor], weights: Tensor, key: Tensor
    ) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
        for m in range(self.components):
            own = {name: layer.select(key.ndim, m) for name, layer in layers.items()}
            yield own, weights[..., m], self.key(key, m)

    @staticmethod
    def key(key: Tensor, component: int) -> Tensor:
        """Derive the randomness of a component's step; the first has that of a single model."""
        return key ^ (component << 32)

    def component_losses(self, params: Tensor, inputs: Tensor, targets: Tensor, key: Tensor | None = None) -> Tensor:
        """Compute `[B, M]` loss of each sample by each component. With a key the models are in training mode."""
        keys = [None if key is None else self.key(key, m) for m in range(self.components)]
        models = zip(self.split(params).unbind(), keys, strict=True)
        return torch.stack([self.component.losses(mine, inputs, targets, own) for mine, own in models], -1)

    def mixed(self, params: Tensor, weights: Tensor, inputs: Tensor, key: Tensor | None = None) -> Tensor:
        """Compute what components weighed by `[M]` give together."""
        if self.components == 1:
            return self.component.outputs(params, inputs, key)
        if self.kind is None:
            raise UserError(
                "algorithm.outputs: this loss is not known here; say whether the model gives logits or values"
            )
        parts = [self.component.outputs(mine, inputs, key) for mine in self.split(params).unbind()]
        outputs = torch.stack(parts, -1)
        if self.kind == "values":
            return outputs @ weights
        return torch.logsumexp(F.log_softmax(outputs, -2) + weights.log(), -1)

    def outputs(self, params: Tensor, inputs: Tensor, key: Tensor | None = None) -> Tensor:
        """Compute what equally weighed components give together."""
        return self.mixed(params, params.new_full((self.components,), 1 / self.components), inputs, key)

    def represented(self, params: Tensor, inputs: Tensor, layer: str | None) -> tuple[Tensor, Tensor]:
        raise UserError("layer: a mixture has none of its own to look at; its components have")

    def examine(self, inputs: Tensor, targets: Tensor) -> int:
        one, total = self.component, self.components * self.component.examine(inputs, targets)
        if "loss" in one.coupled:
            raise UserError(f"algorithm: a mixture weighs the losses of single samples, and {one.alone}")
        self.loss, self.metrics, self.sets, self.layer_shapes = one.loss, one.metrics, one.sets, one.layer_shapes
        self.coupled, self.alone, self.draws, self.recomputes = one.coupled, one.alone, one.draws, one.recomputes
        self.idle = one.idle
        return total

    @property
    def _passes(self) -> Passes:
        return self.component._passes

    def state_dict(self, params: Tensor) -> dict[str, Tensor]:
        """Make the state of a `torch.nn.ModuleList` over the components."""
        states = [self.component.state_dict(mine) for mine in self.split(params).unbind()]
        return {f"{m}.{name}": value.clone() for m, state in enumerate(states) for name, value in state.items()}

    @property
    def frozen(self) -> set[str]:
        return {f"{m}.{name}" for m in range(self.components) for name in self.component.frozen}

    def from_state_dict(self, state: Mapping[str, Tensor]) -> Tensor:
        parts = ({name: state[f"{m}.{name}"] for name in self.layout.names} for m in range(self.components))
        return torch.cat([self.component.from_state_dict(part) for part in parts])


@dataclass(frozen=True)
class MixtureSGD(LocalSGD):
    """Train all components of a `MixtureTask`, sample i counting q[i, m] in component m's mini-batches.

    The weights pi are the client's own: it keeps them, equal at first, and sends none. They are updated `weight_steps`
    times, by the components received, before it trains. None falls below `min_weight`; with 0, one that is 0 stays.
    """

    looks_after: ClassVar[Literal["kept", "shared", "none"]] = "none"
    plain_for: ClassVar[type[Task]] = MixtureTask

    components: int = 1
    min_weight: float = 0.0
    weight_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_weight * self.components < 1:
            raise UserError(f"algorithm.min_weight: {self.min_weight} must be at least 0 and below 1 / components")
        if self.weight_steps < 1:
            raise UserError(f"algorithm.unseen_steps: {self.weight_steps} must be at least 1")

    @property
    def gradients(self) -> int:
        return self.components

    @property
    def passes(self) -> int:
        return super().passes + (self.components if self.components > 1 else 0)

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {"weights": (self.components,)}

    def weights(self, state: Named) -> Tensor:
        """Look up `[M]` pi: equal where the client has none yet."""
        kept = state["weights"]
        return torch.where(kept.sum() > 0, kept, 1 / self.components)

    def score(self, task: Task, received: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return _mixture(task).component_losses(received, inputs, targets)

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        assert data.scores is not None
        weights = self.weights(state)
        for _ in range(self.weight_steps):
            shares = responsibilities(data.scores, weights) * data.weights[:, None]  # [n, M] q; 0 for padding
            weights = torch.where(data.count > 0, data.mean(shares), weights)
            if self.min_weight:
                above = (weights - self.min_weight).clamp(min=0)
                weights = self.min_weight + (1 - self.components * self.min_weight) * above / above.sum()
        return received, (shares, weights, self.start_momentum(received))

    def counted(self, carry: Carry, weights: Tensor, positions: Tensor) -> Tensor:
        """Weigh samples for each component, `[..., B, M]`."""
        shares: Tensor = carry[0]
        return weights[..., None] * shares[positions]

    def objective(self, task: Task, params: Tensor, batch: Batch) -> Tensor:
        """Sum the losses of all components, of which none sees another's parameters."""
        losses = _mixture(task).component_losses(params, batch.inputs, batch.targets, batch.key)
        return (losses * batch.weights).sum()

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        shares, weights, velocity = carry
        batch = batch._replace(weights=self.counted(carry, batch.weights, batch.positions))
        params, velocity = super().step(task, params, velocity, batch)
        return params, (shares, weights, velocity)

    def remembered(self, carry: Carry) -> State:
        return carry[2]

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        _, weights, _ = carry
        return {"delta": params - received}, {"weights": weights}

    def predict(self, task: Task, received: Tensor, state: Named, inputs: Tensor) -> Tensor:
        return _mixture(task).mixed(received, self.weights(state), inputs)


def _mixture(task: Task) -> MixtureTask:
    return cast(MixtureTask, task)


@dataclass(frozen=True)
class OnlineMixtureSGD(MixtureSGD):
    """Explain the samples from equal weights, `weight_steps` times, and train every component on its share. The
    weights pi that it plays next are a mirror step from those it played, with the gradient at its samples and the rate
    `scale` sqrt(log M / t) of its t-th time; none falls below `min_weight`.

    The gradient is by the components received: the next ones do not exist before everybody has answered.
    """

    plain_for: ClassVar[type[Task]] = MixtureTask

    scale: Positive = 0.1

    def state_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {**super().state_shapes(task), "times": ()}

    def start(self, task: Task, received: Tensor, state: Named, data: ClientData) -> tuple[Tensor, Carry]:
        assert data.scores is not None
        explained = received.new_full((self.components,), 1 / self.components)
        for _ in range(self.weight_steps):
            shares = responsibilities(data.scores, explained) * data.weights[:, None]
            explained = data.mean(shares)
        played = self.weights(state)
        gradient = -data.mean(responsibilities(data.scores, played) * data.weights[:, None]) / played
        lr = self.scale * math.sqrt(math.log(max(self.components, 2))) / torch.sqrt(state["times"] + 1)
        weights = floored(mirror_step(played, gradient, lr), self.min_weight)
        return received, (shares, weights, self.start_momentum(received))

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        payload, kept = super().finish(task, received, params, carry, state, data)
        return payload, {**kept, "times": state["times"] + 1}
