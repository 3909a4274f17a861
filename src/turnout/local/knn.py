"""No training: a client remembers its samples as the global model sees them, and asks the nearest of them.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; see
`turnout.local.neighbours`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from turnout.core.shuffles import shuffles
from turnout.local.answers import Untrained
from turnout.local.datastore import check_keep, prototypes, room, subset
from turnout.local.neighbours import KNN, QUERIES_AT_ONCE, SMALLEST, check_votes, flat, mixed
from turnout.local.sgd import ClientData, Named
from turnout.task.inside import last_linear
from turnout.task.task import Task


@dataclass(frozen=True)
class MemoryOfSamples(Untrained):
    """Make a memory (`prepare`), and mix it with the model (`predict`). The other settings are those of the training
    that made the model; they say how many samples are looked at in one go."""

    knn: KNN = field(default_factory=KNN)
    layer: str | None = None
    capacity: float | int | None = None
    keep: str = "random"

    def prepared_numbers(self, task: Task, samples: int) -> int:
        shape = (last_linear(task.module).in_features,) if self.layer is None else task.layer_shapes.get(self.layer, ())
        compared = max(min(samples, QUERIES_AT_ONCE), self._room(samples) if self.keep == "coreset" else 0)
        return samples * (4 * torch.Size(shape).numel() + 6 * compared)  # both also as float64

    def prepare(self, task: Task, received: Tensor, state: Named, data: ClientData) -> Named:
        """Make `keys` [m, p] and `values` [m, ...] of what is kept of the client's samples, which rows are `stored` [m]
        and which fill up, and lambda.

        One shuffle decides: the samples held back come first in it, those that fit last. A memory of the others is
        asked about what is held back, to tune lambda. Where a key is not finite, neither is lambda.
        """
        parts = [self._represented(task, received, inputs) for inputs, _, _ in data.chunks()]
        keys, outputs = (torch.cat(column) for column in zip(*parts, strict=True))
        outputs, width, real = flat(outputs), len(data.index), data.weights > 0
        values = data.labels()
        check_votes(values, outputs)
        check_keep("algorithm.keep", self.keep, values)
        order = shuffles(data.key, data.count, width)
        rank = order.argsort()
        held, fits = (_of_count(rule, data.count, width) for rule in (self.knn.held_back, self._room))
        asked = order[: self.knn.held_back(width)]
        memory, trial = (self._kept(keys, values, among, rank, fits) for among in (real, real & (rank >= held)))
        local = self.knn.local(trial["keys"], trial["values"], keys[asked], outputs.shape[1], trial["stored"])
        served = outputs[asked] if values.is_floating_point() else outputs[asked].softmax(1)
        tuned = self.knn.tuned(local, served, values[asked], torch.arange(len(asked), device=keys.device) < held)
        own = torch.where(held > 0, tuned, self.knn.interpolation)
        interpolation = torch.where(memory["stored"].any(), own, 0)
        finite = (keys.isfinite().all(1) | ~real).all()
        return memory | {"interpolation": torch.where(finite, interpolation, torch.nan)}

    def _kept(self, keys: Tensor, values: Tensor, among: Tensor, rank: Tensor, fits: Tensor) -> Named:
        """Keep as many of the samples `among` [n] which there are as fit, or what stands for them."""
        most, number = self._room(len(rank)), torch.minimum(fits, among.sum())
        if self.keep == "coreset" and self.capacity is not None:
            return dict(zip(("keys", "values", "stored"), prototypes(keys, values, among, number, most), strict=True))
        stored = subset(values, among, rank, number, self.keep == "balanced")
        rows = stored.logical_not().to(torch.int8).argsort(stable=True)[:most]
        return {"keys": keys[rows], "values": values[rows], "stored": stored[rows]}

    def predict(self, task: Task, received: Tensor, state: Named, inputs: Tensor) -> Tensor:
        """Give logarithms of probabilities, as if they were logits; of a regression its values."""
        queries, outputs = self._represented(task, received, inputs)
        outputs, shape = flat(outputs), outputs.shape
        values, interpolation = state["values"], state["interpolation"]
        local = self.knn.local(state["keys"], values, queries, outputs.shape[1], state["stored"])
        if values.is_floating_point():
            return mixed(local, outputs, interpolation).view(shape)
        said = local.clamp(min=SMALLEST).log(), F.log_softmax(outputs, 1)
        return torch.logaddexp(interpolation.log() + said[0], torch.log1p(-interpolation) + said[1])

    def _represented(self, task: Task, params: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `[B, p]` keys, and the outputs."""
        outputs, features = task.represented(params, inputs, self.layer)
        return flat(features), outputs

    def _room(self, samples: int) -> int:
        return room(self.capacity, samples)


def _of_count(rule: Callable[[int], int], count: Tensor, most: int) -> Tensor:
    """Look up what a rule says of a client's number of samples, at most `most`."""
    table = torch.tensor([rule(number) for number in range(most + 1)], device=count.device)
    return table.gather(0, count.long()[None])[0]
