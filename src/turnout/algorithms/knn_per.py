"""kNN-Per: a global model, and at every client a memory of its own samples that has a say in each prediction.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022; algorithm 12 in
Marfoq's thesis.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Count, Positive, Share
from turnout.local.datastore import Capacity, Keeping
from turnout.local.neighbours import HeldBack, Kernel, Tuning
from turnout.local.serving import Neighbours
from turnout.server.server import Server


@dataclass
class KNNPer(FedAvg):
    """Trains as FedAvg (with the sampler `fill`, as printed). A client, also one that never trained, then represents
    its training samples by what `layer` of the global model gives (None: what the last fully connected layer is given),
    keeps as many as its `capacity` allows (a share from 0.0 to 1.0 or a whole number; None: all), and serves
    lambda * vote of the `k` nearest + (1 - lambda) * global model. Which it keeps: `random` ones, `balanced` over the
    classes, or a `coreset` of prototypes, k-means of each class. See `turnout.local.neighbours.KNN` for the `kernel`,
    its `scale`, and how lambda is tuned on a `fraction` of the training samples, never on test samples. `index` is
    `exact`, `faiss` or `faiss:FACTORY` (`faiss:HNSW32`) for large memories. Measured on training samples, a memory
    finds those very samples in it."""

    reads_updates = False
    of_part = FedAvg.of_part | {"serve": tuple(part.name for part in fields(Neighbours))}

    k: Count = 10  # neighbours that vote
    kernel: Kernel = "laplace"  # how a vote falls with distance
    scale: Positive = 1.0  # distance at which it has fallen by e
    layer: str | None = None  # whose output represents a sample; none: what the last fully connected one is given
    capacity: Capacity | None = None  # samples a client keeps: a share, a number; none: all
    keep: Keeping = "random"  # which samples are kept
    tune: Tuning = "grid"  # how lambda is found
    fraction: HeldBack = 0.2  # of the training samples, to tune lambda on
    interpolation: Share = 0.5  # lambda, where it is not tuned
    index: str = "exact"  # exact, faiss or faiss:FACTORY

    def begin(self, server: Server) -> None:
        if self.capacity == 0:
            server.log("empty_memory", why="with a capacity of 0 the global model serves alone")

    def own_serve(self) -> Neighbours:
        return Neighbours(**{part.name: getattr(self, part.name) for part in fields(Neighbours)})
