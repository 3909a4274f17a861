"""No training: a client says what its data look like through the model it received."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from turnout.local.sgd import Carry, ClientData, LocalSGD, Named
from turnout.task.task import Task


@dataclass(frozen=True)
class ProfileReport(LocalSGD):
    """Answers with its report alone (`report` profile:LAYER), in the time of one pass over the client's samples; the
    other settings are those of the training that pass is compared with."""

    def num_steps(self, counts: ArrayLike) -> NDArray[np.int64]:
        return np.zeros_like(np.asarray(counts, np.int64))

    def busy(self, counts: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
        a_pass = self.steps_a_pass(counts)
        return a_pass, np.asarray(counts) * a_pass / np.maximum(1, super().num_steps(counts))

    def payload_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return {}

    def finish(
        self, task: Task, received: Tensor, params: Tensor, carry: Carry, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {}, {}
