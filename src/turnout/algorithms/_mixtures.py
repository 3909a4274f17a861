"""What algorithms share whose clients weigh the same few models, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from turnout.algorithms._algorithm import Algorithm
from turnout.core.random import FloatArray, IntArray
from turnout.local.mixture import MixtureSGD, MixtureTask, Outputs
from turnout.local.sgd import LocalSGD
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout.task.task import Task

STARVED = 0.01  # a component that makes up less than this of the samples learns next to nothing


@dataclass
class Mixtures(Algorithm):
    """Trains `components` models at once. A client serves the average of what they give, weighed by its own pi, of
    which none falls below `min_weight`; a client never seen finds its pi in `unseen_steps` updates from equal weights,
    and trains nothing. `outputs` says what is averaged, where the loss does not (see `MixtureTask`).

    The history has the share of each component in the samples of the round's clients, `mass_0`, `mass_1`, ..., and the
    mean entropy of their weights, `weights_entropy`; a share that falls below 1 % is an event.
    """

    cannot: ClassVar[dict[str, str]] = {
        "serve": "serves a mixture of several models",
    }
    trains: ClassVar[type[LocalSGD] | None] = MixtureSGD

    local: LocalSGD
    components: int = 3  # models that are trained at once
    min_weight: float = 0.0  # least weight that a client gives a component
    unseen_steps: int = 1  # updates in which a client never seen finds its weights
    outputs: Outputs | None = None  # what is averaged; none: what the loss says
    starved: list[int] = field(default_factory=list, init=False)

    def check(self) -> None:
        """Raise where an option is out of range."""
        self.adaptation(unseen=True)
        self.predictor()

    def trained_task(self, task: Task) -> MixtureTask:
        return MixtureTask(task, self.components, self.outputs)

    def predictor(self) -> MixtureSGD:
        return MixtureSGD.extend(self.local, components=self.components, min_weight=self.min_weight)

    def adaptation(self, unseen: bool) -> MixtureSGD | None:
        return replace(self.predictor(), steps=0, weight_steps=self.unseen_steps) if unseen else None

    def weights_of(self, server: Server, clients: ArrayLike) -> FloatArray:
        """`[len(clients), M]` pi: only a simulation knows it, nobody sends it."""
        kept = server.store.get(self.predictor().state_shapes(server.task), np.asarray(clients, np.int64))["weights"]
        weights: FloatArray = kept.double().cpu().numpy()
        return np.where(weights.sum(1, keepdims=True) > 0, weights, 1 / self.components)

    def about(self, server: Server, clients: IntArray) -> dict[str, NDArray[Any]]:
        return {f"weight_{m}": column for m, column in enumerate(self.weights_of(server, clients).T)}

    def take_note(self, server: Server, updates: Updates) -> None:
        """Tell the history of this round's clients."""
        if not len(updates):
            return
        weights = self.weights_of(server, updates.clients)
        mass = np.average(weights, axis=0, weights=updates.samples)
        server.note(**{f"mass_{m}": float(share) for m, share in enumerate(mass)})
        server.note(weights_entropy=float(entr(weights).sum(1).mean()))
        starved = np.flatnonzero(mass < STARVED).tolist()
        for component in sorted(set(starved) - set(self.starved)):
            server.log("starved_component", component=component, mass=float(mass[component]))
        self.starved = starved
