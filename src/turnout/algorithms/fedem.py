"""FedEM: the clients learn a few models together, and each the weights with which it averages what they say.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of distributions", NeurIPS 2021,
algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from turnout.algorithms._mixtures import note_weights, weight_columns
from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Count
from turnout.local.mixture import Least, MixtureSGD, MixtureTask, Outputs
from turnout.sampling._sampler import IntArray, Sampler, Selection
from turnout.sampling.renormalised import Renormalised
from turnout.server.server import Server
from turnout.server.updates import Updates
from turnout.task.task import Task


@dataclass
class FedEM(FedAvg):
    """Each round an invited client finds out how likely every one of the `components` is to have made each of its
    samples (q), takes the mean of q for its weights pi, of which none falls below `min_weight`, and trains all
    components from those received, sample i counting q[i, m] for component m. The server averages every component as
    FedAvg does its model; one component is FedAvg. A client serves the average of what the components give, weighed by
    its pi; one never seen finds its pi in `unseen_steps` updates from equal weights, and trains nothing. `outputs` says
    what is averaged, where the loss does not (see `MixtureTask`).

    The published runs let absent clients count as the unchanged model, which is the sampler `fill`. The history has the
    share of each component in the samples of the round's clients, `mass_0`, `mass_1`, ..., and the mean entropy of
    their weights, `weights_entropy`; a share that falls below 1 % is an event.
    """

    reads_updates = False
    cannot = {"serve": "serves a mixture of several models"}
    trains = MixtureSGD

    sampler: Sampler = field(default_factory=Renormalised)
    components: Count = 3  # models that are trained at once
    min_weight: Least = 0.0  # least weight that a client gives a component
    unseen_steps: Count = 1  # updates in which a client never seen finds its weights
    outputs: Outputs | None = None  # what is averaged; none: what the loss says
    starved: list[int] = field(default_factory=list, init=False)

    def trained_task(self, task: Task) -> MixtureTask:
        return MixtureTask(task, self.components, self.outputs)

    def own_work(self) -> MixtureSGD:
        return MixtureSGD.extend(self.local, components=self.components, min_weight=self.min_weight)

    def adaptation(self, unseen: bool) -> MixtureSGD | None:
        own = MixtureSGD.extend(self.local, components=self.components, min_weight=self.min_weight)
        return replace(own, steps=0, weight_steps=self.unseen_steps) if unseen else None

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        super().aggregate(server, updates, chosen)
        self.starved = note_weights(server, self.own_work(), updates, self.starved)

    def about(self, server: Server, clients: IntArray) -> dict[str, NDArray[Any]]:
        return weight_columns(server, self.own_work(), clients)
