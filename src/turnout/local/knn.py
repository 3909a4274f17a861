"""No training: a client remembers its samples as the global model sees them, and asks the nearest of them.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; see
`turnout.personal.knn`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.cohort.batches import shuffles
from turnout.errors import UserError
from turnout.local.sgd import Carry, ClientData, LocalSGD, Named
from turnout.personal.datastore import room
from turnout.personal.knn import KNN, QUERIES_AT_ONCE, SMALLEST, flat, mixed
from turnout.task import Task, last_linear


@dataclass(frozen=True)
class MemoryOfSamples(LocalSGD):
    """`prepare` makes the memory, `predict` mixes it with the model. The other settings are those of the training that
    made the model; they say how many samples are looked at in one go."""

    knn: KNN = field(default_factory=KNN)
    layer: str | None = None
    capacity: float | int | None = None

    def num_steps(self, counts: ArrayLike) -> NDArray[np.int64]:
        return np.zeros_like(np.asarray(counts, np.int64))

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {}

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {}, {}

    def prepared_numbers(self, task: Task, samples: int) -> int:
        shape = (last_linear(task.module).in_features,) if self.layer is None else task.layer_shapes.get(self.layer, ())
        return samples * (3 * torch.Size(shape).numel() + 6 * min(samples, QUERIES_AT_ONCE))  # both also as float64

    def prepare(self, task: Task, received: Tensor, state: Named, data: ClientData) -> Named:
        """`keys` [n, p] and `values` [n, ...] of the client's samples, which rows of them are `stored` [n], and lambda.

        One shuffle decides: the samples held back come first in it, those that fit last. What fits and is not held back
        is asked about what is, to tune lambda. Where a key is not finite, neither is lambda.
        """
        parts = [self._represented(task, received, inputs) for inputs, _, _ in data.chunks()]
        keys, outputs = (torch.cat(column) for column in zip(*parts, strict=True))
        outputs, values, width, real = flat(outputs), data.targets[data.index], len(data.index), data.weights > 0
        _check(values, outputs)
        order = shuffles(data.key, data.count, width)
        rank = order.argsort()
        held, fits = (_of_count(rule, data.count, width) for rule in (self.knn.held_back, self._room))
        stored = real & (rank >= data.count - fits)
        asked = order[: self.knn.held_back(width)]
        local = self.knn.local(keys, values, keys[asked], outputs.shape[1], stored & (rank >= held))
        served = outputs[asked] if values.is_floating_point() else outputs[asked].softmax(1)
        tuned = self.knn.tuned(local, served, values[asked], torch.arange(len(asked), device=keys.device) < held)
        interpolation = torch.where(stored.any(), torch.where(held > 0, tuned, self.knn.interpolation), 0)
        finite = (keys.isfinite().all(1) | ~real).all()
        kept = stored.logical_not().to(torch.int8).argsort(stable=True)[: self._room(width)]
        memory = {"keys": keys[kept], "values": values[kept], "stored": stored[kept]}
        return memory | {"interpolation": torch.where(finite, interpolation, torch.nan)}

    def predict(self, task: Task, received: Tensor, state: Named, inputs: Tensor) -> Tensor:
        """Logarithms of probabilities, as if they were logits; of a regression its values."""
        queries, outputs = self._represented(task, received, inputs)
        outputs, shape = flat(outputs), outputs.shape
        values, interpolation = state["values"], state["interpolation"]
        local = self.knn.local(state["keys"], values, queries, outputs.shape[1], state["stored"])
        if values.is_floating_point():
            return mixed(local, outputs, interpolation).view(shape)
        said = local.clamp(min=SMALLEST).log(), F.log_softmax(outputs, 1)
        return torch.logaddexp(interpolation.log() + said[0], torch.log1p(-interpolation) + said[1])

    def _represented(self, task: Task, params: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, p]` keys, and the outputs."""
        outputs, features = task.represented(params, inputs, self.layer)
        return flat(features), outputs

    def _room(self, samples: int) -> int:
        return room(self.capacity, samples)


def _of_count(rule: Callable[[int], int], count: Tensor, most: int) -> Tensor:
    """What a rule says of a client's number of samples, at most `most`."""
    table = torch.tensor([rule(number) for number in range(most + 1)], device=count.device)
    return table.gather(0, count.long()[None])[0]


def _check(values: Tensor, outputs: Tensor) -> None:
    """Raise unless neighbours can vote on such targets."""
    classes, each = outputs.shape[1], torch.Size(values.shape[1:]).numel()
    if each != classes if values.is_floating_point() else values.ndim > 1 or classes == 1:
        compared = f"{classes} outputs with targets of shape {tuple(values.shape[1:])}"
        raise UserError(
            f"algorithm.name: knn_per cannot compare {compared}; it needs class labels and an output for each class, "
            "or a regression's values and as many outputs"
        )
