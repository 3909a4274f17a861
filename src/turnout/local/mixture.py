"""FedEM's client: find out which component each sample is from, then train every component on its share.

Marfoq et al., "Federated multi-task learning under a mixture of distributions", NeurIPS 2021, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.local.mixture_task import MixtureTask, responsibilities
from turnout.local.sgd import Batch, Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class MixtureSGD(LocalSGD):
    """Local SGD on all components of a `MixtureTask`, sample i counting q[i, m] in component m's mini-batches.

    The weights pi are the client's own: it keeps them, equal at first, and sends none. They are updated `weight_steps`
    times, by the components received, before it trains. None falls below `min_weight`; with 0, one that is 0 stays.
    """

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
        """`[M]` pi: equal where the client has none yet."""
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
        """`[..., B, M]`"""
        shares: Tensor = carry[0]
        return weights[..., None] * shares[positions]

    def objective(self, task: Task, params: Tensor, batch: Batch) -> Tensor:
        """Of all components, of which none sees another's parameters."""
        losses = _mixture(task).component_losses(params, batch.inputs, batch.targets, batch.key)
        return (losses * batch.weights).sum()

    def step(self, task: Task, params: Tensor, carry: Carry, batch: Batch) -> tuple[Tensor, Carry]:
        shares, weights, velocity = carry
        batch = batch._replace(weights=self.counted(carry, batch.weights, batch.positions))
        params, velocity = super().step(task, params, velocity, batch)
        return params, (shares, weights, velocity)

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        _, weights, _ = carry
        return {"delta": params - received}, {"weights": weights}

    def predict(self, task: Task, received: Tensor, state: Named, inputs: Tensor) -> Tensor:
        return _mixture(task).mixed(received, self.weights(state), inputs)


def _mixture(task: Task) -> MixtureTask:
    return cast(MixtureTask, task)
